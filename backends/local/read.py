"""What members and instances say → what the port says. Pure, by closed tables; the backend does what it advises."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from backends.local.records import Ended, InstanceView, Placement, Record, instant
from backends.types import End, Handle, Notice, NoticeKind, Observation, Phase
from policies.vocabulary import Reason

Status = Mapping[str, Any]  # a member, as the agent's status.json has it

SAVED: Final = 75
MAX_FAILED_GRACE_S: Final = 5.0

CAUSES: Final[Mapping[str, Reason]] = MappingProxyType(
    {
        "Completed": Reason.COMPLETED,
        "SavedAndExited": Reason.SAVED_AND_EXITED,
        "NonZeroExit": Reason.NON_ZERO_EXIT,
        "LaunchFailed": Reason.LAUNCH_FAILED,
        "NodeLost": Reason.NODE_LOST,
        "Stopped": Reason.USER_CANCELLED,  # while it was being set up: why we stopped it is known to who asked
    }
)


@dataclass(frozen=True, slots=True)
class Departure:
    """How one member left. Sorts by time, then rank."""

    at: float
    rank: int
    cause: Reason
    code: int | None
    detail: str = ""
    node: str = ""  # that was lost with it
    told: bool = False  # to leave, by us or by its provider

    @property
    def bad(self) -> bool:
        """Whether it takes the gang with it."""
        return self.cause is not Reason.COMPLETED


@dataclass(frozen=True, slots=True)
class StopRest:
    """Advice: the members that still live are to be stopped, because another one has left."""

    ranks: tuple[int, ...]
    kind: NoticeKind
    grace_s: float


def departures(
    placement: Placement, statuses: Mapping[int, Status], instances: Mapping[str, InstanceView], now: float
) -> tuple[Departure, ...]:
    """Every member that has left, the first one first. A member of a dead instance has died with it."""
    found = []
    for seat in placement.seats:
        status = statuses.get(seat.rank)
        instance = instances[placement.instances[seat.node]]
        if status is not None and status["state"] == "ended":
            found.append(_departure(seat.rank, seat.node, status, instance))
        elif not instance.alive:
            at = instance.ended_at or min(now, instance.deadline or now)
            text = "the instance was taken away" if instance.told else "the instance is gone"
            found.append(Departure(at, seat.rank, Reason.NODE_LOST, None, f"{instance.id}: {text}", seat.node))
    return tuple(sorted(found, key=lambda one: (one.at, one.rank)))


def first_bad(gone: Sequence[Departure]) -> Departure | None:
    """Who broke the gang: the earliest that failed by itself, else the earliest that failed when told to leave.

    Members that are stopped because another has left always fail later than that one, though the hour of a machine's
    death may be known only from when it was noticed.
    """
    return min((one for one in gone if one.bad), key=lambda one: (one.told, one.at, one.rank), default=None)


def stop_rest(record: Record, gone: Sequence[Departure], statuses: Mapping[int, Status], now: float) -> StopRest | None:
    """Who must be stopped because the gang is broken; None when nobody is, or all who live know already."""
    bad = first_bad(gone)
    if bad is None or record.placement is None:
        return None
    kind, grace_s = NoticeKind.STOP, min(float(record.request.term_s), MAX_FAILED_GRACE_S)
    stop = statuses.get(bad.rank, {}).get("stop")
    if bad.cause is Reason.NODE_LOST:
        grace_s = 0.0  # They hang in a collective and cannot save.
    elif stop is not None:  # It was told to leave and did; the others get the rest of that time.
        kind, grace_s = NoticeKind(stop["kind"]), max(0.0, stop["deadline"] - now)
    elif bad.code == SAVED:
        grace_s = float(record.request.grace_s)
    left = {one.rank for one in gone}
    ranks = [
        seat.rank
        for seat in record.placement.seats
        if seat.rank not in left and not _stops_by(statuses.get(seat.rank, {}), now + grace_s)
    ]
    return StopRest(tuple(ranks), kind, grace_s) if ranks else None


def conclude(
    record: Record,
    gone: Sequence[Departure],
    statuses: Mapping[int, Status],
    instances: Mapping[str, InstanceView],
    now: float,
) -> Ended | None:
    """The end of a launch whose members have all left; None while one lives."""
    if record.placement is None or len(gone) < len(record.placement.seats):
        return None
    first = first_bad(gone)
    codes = {one.rank: one.code for one in gone if one.code is not None}
    cause = _cause(record, first, statuses, instances)
    coded = first_bad([one for one in gone if one.code is not None])
    lost = first is not None and first.cause is Reason.NODE_LOST
    end = End(
        cause=cause,
        exit_code=0 if first is None else (None if lost or coded is None else coded.code),
        failed_rank=None if first is None else first.rank,
        codes=codes,
        detail="" if first is None else first.detail,
        bad_nodes=tuple(sorted({one.node for one in gone if one.node})) if cause is Reason.NODE_LOST else (),
        final=any(status.get("final", False) for status in statuses.values()),
    )
    return Ended(end, started_at(statuses), max((one.at for one in gone), default=now), _notice(record, instances))


def observation(
    handle: Handle, record: Record, statuses: Mapping[int, Status], instances: Mapping[str, InstanceView], now: float
) -> Observation:
    """The launch as it stands. `as_of` is when we looked: this machine's clock is the backend's own."""
    placement, ended = record.placement, record.ended
    began = ended.started_at if ended else started_at(statuses)
    notice = ended.notice if ended else _notice(record, instances)
    live = [status for status in statuses.values() if status["state"] in {"running", "stopping"}]
    phase = _phase(record, statuses)
    return Observation(
        handle=handle,
        phase=phase,
        as_of=instant(now),
        sequence=max(record.changed_us, *(one.changed_us for one in instances.values()), 0),
        started_at=None if began is None else instant(began),
        ended_at=None if ended is None else instant(ended.ended_at),
        end=None if ended is None else ended.end,
        notice=None if notice is None else _parse_notice(notice),
        waiting="StartingInstances" if phase is Phase.PENDING else "",
        ready=0 if ended else len(live),
        nodes={} if placement is None else {seat.rank: seat.node for seat in placement.seats},
        stop_confirmed=record.stop is not None and record.stop.confirmed,
    )


def started_at(statuses: Mapping[int, Status]) -> float | None:
    """When the first member began: from then on the launch uses what it holds."""
    return min((status["started_at"] for status in statuses.values() if status.get("started_at")), default=None)


def _phase(record: Record, statuses: Mapping[int, Status]) -> Phase:
    if record.ended is not None:
        return Phase.ENDED
    if record.placement is None:
        return Phase.PREPARED
    # Once it ran, members that come later do not make it wait again.
    whole = record.placement.resized or all(
        statuses.get(seat.rank, {}).get("state", "starting") != "starting" for seat in record.placement.seats
    )
    return Phase.RUNNING if record.placement.started and whole else Phase.PENDING


def _departure(rank: int, node: str, status: Status, instance: InstanceView) -> Departure:
    cause = CAUSES.get(status["cause"], Reason.NON_ZERO_EXIT)
    # Its keeper saw its agent die; a member that was killed because a PEER went sits on a good node.
    lost = node if cause is Reason.NODE_LOST and not instance.alive else ""
    told = status.get("stop") is not None
    return Departure(status["ended_at"], rank, cause, status["exit_code"], status.get("detail", ""), lost, told)


def _cause(
    record: Record, first: Departure | None, statuses: Mapping[int, Status], instances: Mapping[str, InstanceView]
) -> Reason:
    revoked = any(_stop_kind(status) == NoticeKind.REVOKE for status in statuses.values())
    told = any(instance.told for instance in instances.values())
    if first is not None and first.cause is Reason.NODE_LOST:
        return Reason.SPOT_REVOKED if told else Reason.NODE_LOST
    if revoked:
        done = any(status.get("final", False) for status in statuses.values()) or not record.request.checkpoint_url
        return Reason.COMPLETED if first is None and done else Reason.SPOT_REVOKED
    if first is None:
        return Reason.COMPLETED
    return Reason.TIME_LIMIT if _ran_out(record, statuses.get(first.rank, {})) else first.cause


def _ran_out(record: Record, status: Status) -> bool:
    """Whether the agent's own limit stopped it: a stop that nobody asked us for, at that time."""
    limit, stop = record.request.max_duration_s, status.get("stop")
    if limit is None or stop is None or record.stop is not None or status.get("started_at") is None:
        return False
    return bool(stop["kind"] == NoticeKind.STOP and stop["at"] >= status["started_at"] + limit - 1)


def _stops_by(status: Status, deadline: float) -> bool:
    stop = status.get("stop")
    return stop is not None and bool(stop["deadline"] <= deadline + 0.5)


def _stop_kind(status: Status) -> str:
    stop = status.get("stop")
    return stop["kind"] if stop is not None else ""


def _notice(record: Record, instances: Mapping[str, InstanceView]) -> dict[str, Any] | None:
    """The provider's word to the launch: the earliest interruption, else an advice to leave."""
    if record.placement is None:
        return None
    taken = sorted((one.deadline or 0.0, one.id) for one in instances.values() if one.told)
    if taken:
        ids = [name for _, name in taken]
        kind, deadline = NoticeKind.REVOKE, taken[0][0]
    else:
        ids = sorted(one.id for one in instances.values() if one.rebalance_at is not None)
        kind, deadline = NoticeKind.REBALANCE, None
    if not ids:
        return None
    ranks = sorted(rank for name in ids for rank in record.placement.ranks_on(name))
    return {"kind": kind.value, "deadline": deadline, "members": ranks, "detail": ", ".join(ids)}


def _parse_notice(value: Mapping[str, Any]) -> Notice:
    deadline = value["deadline"]
    return Notice(
        NoticeKind(value["kind"]),
        None if deadline is None else instant(deadline),
        tuple(value["members"]),
        value["detail"],
    )
