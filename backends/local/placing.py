"""Which node, which virtual GPUs and which ports each member gets. Pure: a launch is placed whole or not at all.

The arbiter has decided; this finds the same room in the slots, and refuses when it is not there (foreign load, a slot
that is being taken away).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from backends.environment import Member
from backends.local.config import GPU
from policies.snapshot import Resources

NOTHING: Final = Resources()


@dataclass(frozen=True, slots=True)
class Seat:
    """Where one member sits."""

    rank: int
    node: str
    gpus: tuple[int, ...]
    share: int = 0  # milli-GPU of `gpus[0]` where it takes only a part of one
    amount: Resources = NOTHING


@dataclass(slots=True)
class Slot:
    """One node with what is taken on it."""

    name: str
    pool: str
    capacity: Resources
    foreign: Resources = NOTHING
    open: bool = True
    taken: Resources = NOTHING
    gpus: dict[int, int] = field(default_factory=dict)  # index -> milli-GPU that are free

    def take(self, seat: Seat) -> None:
        """Count a seat on this node."""
        self.taken += seat.amount
        for index in seat.gpus:
            self.gpus[index] = self.gpus.get(index, 0) - (seat.share or GPU)


def slot(name: str, pool: str, capacity: Resources, foreign: Resources, *, is_open: bool) -> Slot:
    """An empty node. Foreign load takes the highest GPU indices."""
    count = capacity.accelerators // GPU
    free = dict.fromkeys(range(count), GPU)
    left = foreign.accelerators
    for index in reversed(range(count)):
        used = min(GPU, max(left, 0))
        free[index] -= used
        left -= used
    return Slot(name, pool, capacity, foreign, is_open, gpus=free)


def foreign_shares(load: Mapping[str, Resources], capacity: Resources) -> dict[str, Resources]:
    """What each owner uses of one node, together never more than there is: what is claimed beyond that is not there."""
    shares: dict[str, Resources] = {}
    left = capacity
    for owner in sorted(load):
        use = load[owner]
        shares[owner] = Resources(
            min(use.accelerators, left.accelerators),
            min(use.cpus, left.cpus),
            min(use.memory, left.memory),
            min(use.disk, left.disk),
        )
        left = left - shares[owner]
    return shares


def place(members: Iterable[Member], slots: Sequence[Slot]) -> tuple[Seat, ...] | str:
    """A seat for every member, or what is missing, in words. `slots` are used up as it goes."""
    seats = []
    for member in members:
        seat = _seat(member, slots)
        if seat is None:
            where = f"node {member.node}" if member.node else f"pool {member.group.pool}"
            return f"no room for rank {member.rank} on {where}"
        seats.append(seat)
    return tuple(seats)


def choose_port(first: int, last: int, used: frozenset[int], start: int) -> int:
    """A port of the range that no launch holds, beginning the search at a place that differs by launch."""
    size = last - first + 1
    for step in range(size):
        port = first + (start + step) % size
        if port not in used:
            return port
    raise ValueError("every port of the range is in use")


def _seat(member: Member, slots: Sequence[Slot]) -> Seat | None:
    need = member.group.per_member
    for each in slots:
        fitting = each.open and each.pool == member.group.pool and member.node in {"", each.name}
        if not fitting or not need.fits_in(each.capacity - each.foreign - each.taken):
            continue
        gpus = _gpus(need.accelerators, each.gpus)
        if gpus is not None:
            share = need.accelerators if 0 < need.accelerators < GPU else 0
            seat = Seat(member.rank, each.name, gpus, share, need)
            each.take(seat)
            return seat
    return None


def _gpus(wanted: int, free: Mapping[int, int]) -> tuple[int, ...] | None:
    """Whole GPUs are untouched ones; a share goes where the least is left, so that whole ones stay whole."""
    if 0 < wanted < GPU:
        fitting = sorted((left, index) for index, left in free.items() if left >= wanted)
        return (fitting[0][1],) if fitting else None
    whole = [index for index, left in sorted(free.items()) if left == GPU]
    count = -(-wanted // GPU)
    return tuple(whole[:count]) if len(whole) >= count else None
