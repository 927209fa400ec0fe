"""Shadow slots: where backfill promises a blocked job its start, and what is left for those behind it (EASY).

The slot is a time and places per node, not a GPU count. Where the backend places by itself it is an estimate. A slot
rests on leased ends: an attempt without one never ends here, and one that is past its end is expected at once.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from policies.gang.fit import Gang, fit_in_one, spread_of
from policies.placement.filters import Candidate
from policies.placement.rooms import Amounts, Part, Room, least, minus, plus
from policies.snapshot import QueuedJob


@dataclass(frozen=True, slots=True)
class Release:
    """Capacity that comes back at an instant."""

    at_ms: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """A promised start in one pool. `then` is what is free at that instant beside the owner and earlier slots."""

    job: str
    rank: int  # 0 for P0, rising: which class the owner has
    start_ms: int
    ends_ms: int | None
    pool: str
    parts: tuple[Part, ...]
    then: Room


class Slots:
    """The slots of one pool, soonest first. What may be used past the first k of them is free now and at each start.

    A job that is over before a slot opens does not see it, so those in a job's way are always the first k.
    """

    def __init__(self, now: Room) -> None:
        self._now = now
        self.slots: list[Slot] = []
        self._past: list[Room] = []
        self.version = 0

    def add(self, slot: Slot, version: int) -> None:
        """Promise one more; `version` is new in the cycle, since what an older set left is no measure of this one."""
        self.slots.append(slot)
        self.slots.sort(key=lambda one: (one.start_ms, one.job))
        self.version = version
        self._past = []
        room = self._now
        for one in self.slots:
            past = room.copy()
            for name, free in room.free.items():
                past.put(name, least(free, one.then.free[name]))
            self._past.append(past)
            room = past

    def in_the_way(self, rank: int, ends_ms: int | None) -> int:
        """How many slots a job of this class with this end must not delay; P0 yields to other P0 alone."""
        count = sum(1 for slot in self.slots if ends_ms is None or ends_ms > slot.start_ms)
        return 0 if rank == 0 and all(slot.rank > 0 for slot in self.slots[:count]) else count

    def past(self, count: int) -> Room:
        """What may be used without delaying the first `count`."""
        return self._past[count - 1] if count else self._now

    def follow(self, spread: Sequence[tuple[str, Amounts]], ends_ms: int | None) -> None:
        """Follow an admission that the pool's room already shows."""
        for slot in self.slots:
            if ends_ms is None or ends_ms > slot.start_ms:
                slot.then.take(spread)
        for name, _ in spread:
            free = self._now.free.get(name)
            if free is None:
                continue
            for slot, past in zip(self.slots, self._past, strict=True):
                free = least(free, slot.then.free[name])
                past.put(name, free)


@dataclass(frozen=True, slots=True)
class Ahead:
    """What decides when a pool has room: its room now, the ends of what runs, the slots promised already."""

    now: Room
    releases: Sequence[Release]
    slots: Sequence[Slot]


def slot_for(job: QueuedJob, rank: int, choices: Sequence[Candidate], ahead: Mapping[str, Ahead]) -> Slot | None:
    """The earliest start in any single pool, None where no end of what runs makes room."""
    best: Slot | None = None
    for candidate in choices:
        slot = _slot(job, rank, candidate, ahead[candidate.pool.name])
        if slot is not None and (best is None or slot.start_ms < best.start_ms):
            best = slot
    return best


def _slot(job: QueuedJob, rank: int, candidate: Candidate, ahead: Ahead) -> Slot | None:
    releases = [*ahead.releases]
    # Earlier slots hold their places from now on: a later one may open late, and never delays them.
    releases += [Release(slot.ends_ms, slot.parts) for slot in ahead.slots if slot.ends_ms is not None]
    times = sorted({release.at_ms for release in releases})
    # Room only grows with time, so the first instant that fits is found by halving.
    at = bisect_left(times, x=True, key=lambda t: _fits(job, candidate, ahead, releases, t) is not None)
    found = _fits(job, candidate, ahead, releases, times[at]) if at < len(times) else None
    if found is None:
        return None
    then, gang = found
    parts = tuple((placed.pool, node, amount) for placed in gang for node, amount in spread_of(placed))
    then.take([(node, amount) for _, node, amount in parts])
    ends = None if job.max_duration_ms is None else times[at] + job.max_duration_ms
    return Slot(job.id, rank, times[at], ends, candidate.pool.name, parts, then)


def _fits(
    job: QueuedJob, candidate: Candidate, ahead: Ahead, releases: Sequence[Release], until_ms: int
) -> tuple[Room, Gang] | None:
    pool, free = candidate.pool.name, dict(ahead.now.free)
    for slot in ahead.slots:
        for _, node, amount in slot.parts:
            if node in free:
                free[node] = minus(free[node], amount)
    for release in releases:
        if release.at_ms <= until_ms:
            for where, node, amount in release.parts:
                if where == pool and node in free:
                    free[node] = plus(free[node], amount)
    then = Room(ahead.now.pool, free, ahead.now.labels)
    then.overhang = ahead.now.overhang
    gang = fit_in_one(job, {pool: then}, candidate)
    return None if gang is None else (then, gang)


def beyond(gang_parts: Iterable[Part], victims: Iterable[Part]) -> list[Part]:
    """What a waiter takes beyond what its victims leave, per node."""
    cover: dict[tuple[str, str], Amounts] = {}
    for pool, node, amount in victims:
        cover[pool, node] = plus(cover.get((pool, node), (0, 0, 0, 0)), amount)
    rest = []
    for pool, node, amount in gang_parts:
        have = cover.get((pool, node), (0, 0, 0, 0))
        used = least(amount, have)
        cover[pool, node] = minus(have, used)
        rest.append((pool, node, minus(amount, used)))
    return rest
