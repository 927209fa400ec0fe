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


@dataclass(slots=True)
class Slot:
    """A promised start in one pool. `extra` is what may be used past it: free now, and still free then."""

    job: str
    rank: int  # 0 for P0, rising: which class the owner has
    start_ms: int
    pool: str
    gang: Gang
    then: Room
    extra: Room

    def take(self, spread: Sequence[tuple[str, Amounts]], now: Room, *, ends_in_time: bool) -> None:
        """Follow an admission that `now` already shows."""
        if not ends_in_time:
            self.then.take(spread)
        for name, _ in spread:
            if name in self.extra.free:
                self.extra.put(name, least(now.free[name], self.then.free[name]))


def slot_for(
    job: QueuedJob,
    rank: int,
    by_pool: Mapping[str, Room],
    choices: Sequence[Candidate],
    releases: Mapping[str, Sequence[Release]],
) -> Slot | None:
    """The earliest start in any single pool, None where no end of what runs makes room."""
    best: Slot | None = None
    for candidate in choices:
        name = candidate.pool.name
        slot = _slot(job, rank, by_pool[name], candidate, releases.get(name, ()))
        if slot is not None and (best is None or slot.start_ms < best.start_ms):
            best = slot
    return best


def _slot(job: QueuedJob, rank: int, room: Room, candidate: Candidate, releases: Sequence[Release]) -> Slot | None:
    ordered = sorted(releases, key=lambda release: release.at_ms)
    times = sorted({release.at_ms for release in ordered})
    # Room only grows with time, so the first instant that fits is found by halving.
    at = bisect_left(times, x=True, key=lambda t: _fits(job, room, candidate, ordered, t) is not None)
    if at == len(times):
        return None
    then, gang = _fits(job, room, candidate, ordered, times[at]) or (None, None)
    assert then is not None
    assert gang is not None
    for placed in gang:
        then.take(spread_of(placed))
    extra = room.copy()
    for name, free in room.free.items():
        extra.put(name, least(free, then.free[name]))
    return Slot(job.id, rank, times[at], candidate.pool.name, gang, then, extra)


def _fits(
    job: QueuedJob, room: Room, candidate: Candidate, releases: Iterable[Release], until_ms: int
) -> tuple[Room, Gang] | None:
    free = dict(room.free)
    for release in releases:
        if release.at_ms <= until_ms:
            for pool, node, amount in release.parts:
                if pool == candidate.pool.name and node in free:
                    free[node] = plus(free[node], amount)
    then = Room(room.pool, free, room.labels)
    then.overhang = room.overhang
    gang = fit_in_one(job, {candidate.pool.name: then}, candidate)
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
