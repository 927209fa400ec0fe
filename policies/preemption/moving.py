"""Where a victim goes on instead of waiting in the queue: free capacity elsewhere, now, of its own shape (POLICIES §7).

Its new place is taken in the same plan, so it needs room that is free already: what other victims leave is none. The
waiter's own share of the free room comes first. Decides no victim: `policies.preemption.search` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from policies.cycle import State
from policies.decisions import Loan
from policies.gang.fit import Gang, fit_in_one, give, public, take
from policies.placement.filters import Candidate, candidates
from policies.preemption.candidates import Victim
from policies.preemption.cost import Cost, Penalty, lost_ms, milli_gpu
from policies.quota.tree import need_of
from policies.snapshot import GroupRequest, LiveAttempt, QueuedJob


@dataclass(frozen=True, slots=True)
class Place:
    """A place that has been taken, nodes as a decision says them, and who lends what it borrows."""

    gang: Gang
    loans: tuple[Loan, ...]


def move_cost(attempt: LiveAttempt, grace_ms: int, state: State) -> Cost:
    """GPUs × (save + restart), where the grace covers the save; else what is lost of its work stands for the save.

    No penalty: a move does not send it to the queue.
    """
    lost = lost_ms(attempt, grace_ms, state.now_ms, state.settings)
    return Cost(attempt.id, milli_gpu(attempt), lost, attempt.restart_ms, Penalty())


def movable(victims: Sequence[Victim], state: State) -> list[Victim]:
    """Those that find a place all at once, the first of the list first. Leaves the rooms as they were."""
    found: list[Victim] = []
    taken: list[Gang] = []
    for victim in victims:
        if (gang := _fit(victim, state)) is not None:
            take(state.rooms.by_pool, gang)
            taken.append(gang)
            found.append(victim)
    for gang in taken:
        give(state.rooms.by_pool, gang)
    return found


def place(victim: Victim, state: State) -> Place | None:
    """A place for one victim, taken in the state, or None; asked when the victim itself is counted no longer."""
    gang = _fit(victim, state)
    wish = victim.attempt.wish
    if gang is None or wish is None:
        return None
    need = need_of(gang)
    if not state.quotas.ask(wish.tenant, need)[0].ok:
        return None
    loans = state.count(wish, gang)
    state.occupy(wish, gang)
    return Place(public(gang, state.rooms.by_pool), loans)


def _fit(victim: Victim, state: State) -> Gang | None:
    attempt, wish = victim.attempt, victim.attempt.wish
    if wish is None or wish.on_hold or victim.forced or victim.leaving or victim.displaced or attempt.keeps:
        return None
    if len({part.group for part in attempt.placed}) < len(attempt.placed):
        return None  # a group in two parts has no single shape to be placed again
    same = replace(wish, groups=_same_shape(attempt, wish))
    here = {placed.pool for placed in attempt.placed}
    for home in _homes(attempt.id, same, state):
        # A pool that places by itself cannot be told to use other nodes than it does.
        if home.pool.name in here and not home.pool.places_nodes:
            continue
        if home.pool.name in state.closed or state.in_the_way(same, home.pool.name) is not None:
            continue
        if (gang := fit_in_one(same, state.rooms.by_pool, home)) is not None:
            return gang
    return None


def _same_shape(attempt: LiveAttempt, wish: QueuedJob) -> tuple[GroupRequest, ...]:
    """What it has now, member by member: it goes on at the size at which it saves."""
    models = {group.name: group.accelerator for group in wish.groups}
    return tuple(
        GroupRequest(part.group, part.replicas, part.replicas, part.per_member, models.get(part.group, ""))
        for part in attempt.placed
    )


def _homes(name: str, wish: QueuedJob, state: State) -> tuple[Candidate, ...]:
    """Pools that it may go to and that take work, first choice first; remembered for the cycle."""
    found = state.homes.get(name)
    if found is None:
        every = candidates(wish, state.pools, state.flavors)
        found = state.homes[name] = tuple(home for home in every if home.pool.name in state.usable)
    return found
