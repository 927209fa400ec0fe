"""What stands on disk about launches, slots and instances, as typed values. Parsing only; `client` does the reading."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from backends.local.placing import Seat
from backends.types import End, LaunchRequest
from policies.snapshot import Resources
from policies.vocabulary import Reason


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a launch runs. `started`: every member was given to its agent.

    leaving: seats of members that a resize has told to go. joining: of those that it is just starting. resized: members
    have come or gone since it began.
    """

    seats: tuple[Seat, ...]
    instances: Mapping[str, str]  # node -> instance id
    master_port: int
    coord_port: int
    gang_port: int
    secret: str  # of the gang's heartbeats
    at: float
    started: bool = False
    leaving: tuple[Seat, ...] = ()
    joining: tuple[Seat, ...] = ()
    resized: bool = False

    def instance_of(self, rank: int) -> str:
        """The instance that has the member."""
        return self.instances[next(seat.node for seat in (*self.seats, *self.leaving) if seat.rank == rank)]

    def ranks_on(self, instance: str) -> tuple[int, ...]:
        """The members of an instance."""
        return tuple(seat.rank for seat in self.seats if self.instances.get(seat.node) == instance)

    @property
    def ports(self) -> frozenset[int]:
        """All it holds."""
        return frozenset((self.master_port, self.coord_port, self.gang_port))


@dataclass(frozen=True, slots=True)
class Stop:
    """That we were asked to stop it. `confirmed`: every agent has it."""

    kind: str
    at: float
    deadline: float
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended; written once."""

    end: End
    started_at: float | None
    ended_at: float
    notice: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Record:
    """One launch. `changed_us` grows with every change of what stands on disk."""

    request: LaunchRequest
    created_at: float
    uid: int | None
    placement: Placement | None = None
    stop: Stop | None = None
    ended: Ended | None = None
    changed_us: int = 0

    @property
    def key(self) -> str:
        """The launch's name everywhere."""
        return self.request.key


@dataclass(frozen=True, slots=True)
class InstanceView:
    """An instance as its record and the process table show it."""

    id: str
    node: str
    alive: bool
    state: str
    socket: str
    folder: str
    interrupted_at: float | None = None
    deadline: float | None = None
    rebalance_at: float | None = None
    ended_at: float | None = None
    changed_us: int = 0

    @property
    def told(self) -> bool:
        """Whether it was given notice before it went."""
        return self.interrupted_at is not None

    @property
    def usable(self) -> bool:
        """Whether new members may be started in it."""
        return self.alive and self.state == "running"


def instant(epoch_s: float) -> datetime:
    """Aware, in UTC."""
    return datetime.fromtimestamp(epoch_s, UTC)


def placement_to_json(placement: Placement) -> dict[str, Any]:
    """For `placement.json`."""
    return asdict(placement)


def placement_from_json(value: dict[str, Any] | None) -> Placement | None:
    """None where the launch holds no place, or gave it back."""
    if value is None or not value["seats"]:
        return None
    parts: dict[str, Any] = {name: _seats(value[name]) for name in ("seats", "leaving", "joining") if name in value}
    return Placement(**{**value, **parts})


def _seats(value: Iterable[Mapping[str, Any]]) -> tuple[Seat, ...]:
    return tuple(
        Seat(seat["rank"], seat["node"], tuple(seat["gpus"]), seat["share"], Resources(**seat["amount"]))
        for seat in value
    )


def ended_to_json(ended: Ended) -> dict[str, Any]:
    """For `end.json`; keys of a JSON object are texts, so ranks become texts."""
    return asdict(ended)


def ended_from_json(value: dict[str, Any] | None) -> Ended | None:
    """The end, or None while there is none."""
    if value is None:
        return None
    end = value["end"]
    codes = {int(rank): code for rank, code in end["codes"].items()}
    parsed = End(**{**end, "cause": Reason(end["cause"]), "codes": codes, "bad_nodes": tuple(end["bad_nodes"])})
    return Ended(**{**value, "end": parsed})
