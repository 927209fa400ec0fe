"""One job at its turn: admit it, let it wait with the reason nearest to a start, or make way for it.

Quota is asked before room, per flavor; of several pools the one that comes nearest gives the reason, and in one pool
the worst thing that stands in the way does.
"""

from collections.abc import Mapping
from dataclasses import replace

from policies.cycle import RANKS, State
from policies.decisions import Act, Admit, Wait, Why
from policies.elastic.quota import largest_within
from policies.elastic.shrink import make_room
from policies.gang.fit import Gang, fit_across, fit_in_one, public
from policies.gates import not_yet, nowhere, too_late, wait
from policies.order.default import queued_since
from policies.order.standing import Key
from policies.placement.filters import Candidate
from policies.placement.rooms import NOTHING, least, minus, most
from policies.placement.shadow import slot_for
from policies.preemption.closed import explained
from policies.preemption.search import make_way
from policies.quota.tree import Answer, need_of
from policies.registry import rank_factor
from policies.requests import Request
from policies.snapshot import QueuedJob
from policies.vocabulary import CapacityType, Pending, PriorityClass, Resource

_SEVERITY: Mapping[Pending, int] = {token: at for at, token in enumerate(Pending)}
_BLOCKED_BY_ROOM = frozenset({Pending.WAITING_FOR_CAPACITY, Pending.TOPOLOGY_UNAVAILABLE, Pending.BEHIND_RESERVATION})


def consider(job: QueuedJob, key: Key, state: State) -> None:
    """Decide about one job and write the decision into the state. `key` is its rank: the loser is told by it."""
    request = state.requests.of(job)
    if not request.possible:
        _leave(job, nowhere(job, request.asked), state)
        return
    if (early := not_yet(job, state.now_ms)) is not None:
        _leave(job, early, state)
        return
    refusals: list[Wait] = []
    gang = _fit(job, request, state, refusals)
    if gang is not None:
        _admit(job, gang, state)
        state.rivals.update((placed.pool, (key, job)) for placed in gang)
        return
    if (act := make_room(job, request.choices, state) or make_way(job, request.choices, state)) is not None:
        state.acts.append(act)
        state.rivals.update((placed.pool, (key, job)) for admit in act.admits for placed in admit.placed)
        return
    nearest = max(refusals, key=_severity) if refusals else None
    if nearest is None:
        nearest = wait(job, Pending.WAITING_FOR_CAPACITY, request.asked)
    nearest = explained(nearest, job, request.choices, state)
    if state.class_of(job) is PriorityClass.P0:
        nearest = _with_rival(nearest, key, state)
    _leave(job, _of_size(job, _with_slot(job, request, nearest, state)), state)


def _of_size(job: QueuedJob, found: Wait) -> Wait:
    """A job whose checkpoint holds for one size waits for that size, though it could start anew at others."""
    sizes = [group.resumes_at for group in job.groups if group.resumes_at is not None]
    if not sizes or found.pending not in _BLOCKED_BY_ROOM:
        return found
    numbers = {**found.why.numbers, "size": sizes[0]}
    return wait(job, Pending.WAITING_FOR_SIZE, numbers, blocker=found.blocker, starts_ms=found.starts_ms)


def _with_rival(lost: Wait, key: Key, state: State) -> Wait:
    """A P0 that lost its place in this cycle learns to whom, and by which element of the rank (POLICIES §4)."""
    found = state.rivals.get(str(lost.why.numbers.get("pool", "")))
    if found is None:
        return lost
    rivals_key, rival = found
    numbers = {
        **lost.why.numbers,
        "rival": rival.id,
        "rival_class": state.class_of(rival).value,
        "rank_factor": "first_in_line" if rival.first_in_line else rank_factor(state.settings.order, key, rivals_key),
    }
    return replace(lost, why=replace(lost.why, numbers=numbers))


def _severity(refusal: Wait) -> int:
    return _SEVERITY[refusal.pending]


def _leave(job: QueuedJob, found: Wait, state: State) -> None:
    rejected = None if found.pending is Pending.ON_HOLD else too_late(job, state.now_ms)
    if rejected is not None:
        state.rejects.append(rejected)
    else:
        state.waits.append(found)


def _fit(job: QueuedJob, request: Request, state: State, refusals: list[Wait]) -> Gang | None:
    """Places within quota in the first pool that has them; what stood in the way of each is written to `refusals`."""
    for choice in request.choices:
        if (shut := _shut(job, choice, state)) is not None:
            refusals.append(shut)
            continue
        sized = _within_quota(job, choice, state, refusals)
        if sized is None:
            continue
        gang = _in_pool(sized, choice, state, refusals)
        if gang is not None:
            return gang
    if len(job.groups) > 1:
        return _across(job, request, state)
    return None


def _shut(job: QueuedJob, choice: Candidate, state: State) -> Wait | None:
    pool = choice.pool
    if pool.name in state.closed:
        return wait(job, Pending.BEHIND_RESERVATION, {"pool": pool.name}, blocker=state.closed[pool.name])
    if pool.name in state.usable:
        return None
    numbers: dict[str, int | str] = {"pool": pool.name, "backend": pool.backend}
    if pool.dark:
        return wait(job, Pending.BACKEND_UNREACHABLE, numbers, blocker=pool.backend)
    if pool.draining:
        return wait(job, Pending.WAITING_FOR_CAPACITY, {**numbers, "draining": 1}, blocker=pool.backend)
    spot = choice.flavor.capacity_type is CapacityType.SPOT
    token = Pending.NO_SPOT_CAPACITY if spot else Pending.WAITING_FOR_CAPACITY
    numbers["rested_until_ms"] = pool.rested_until_ms
    return wait(job, token, numbers, blocker=pool.name, starts_ms=pool.rested_until_ms)


def _within_quota(job: QueuedJob, choice: Candidate, state: State, refusals: list[Wait]) -> QueuedJob | None:
    """The job, or an elastic one at its largest size that quota allows, if it allows any in this flavor."""
    flavor = choice.flavor.name
    if not state.quotas.by_flavor.get(flavor):
        return job
    request = state.requests.of(job)
    answer, where, resource = state.quotas.ask(job.tenant, request.needs[flavor])
    if answer.ok:
        return job
    if request.elastic and (smaller := largest_within(job, flavor, state)) is not None:
        return smaller
    refusals.append(_refused(job, answer, where, resource, state))
    return None


def _refused(job: QueuedJob, answer: Answer, flavor: str, resource: Resource, state: State) -> Wait:
    asked = state.requests.of(job).needs[flavor][flavor].get(resource, 0)
    numbers: dict[str, int | str] = {"flavor": flavor, "resource": resource.value, "asked": asked}
    if (level := answer.limit) is not None:
        numbers |= {"limit": level.max or 0, "used": level.use, "tenant": level.path}
        if level.observed:
            numbers["observed"] = level.observed
        return wait(job, Pending.TENANT_LIMIT, numbers, blocker=level.path)
    return wait(job, Pending.WAITING_FOR_QUOTA, {**numbers, "short": answer.short, "borrowed": answer.borrowed})


def _in_pool(job: QueuedJob, choice: Candidate, state: State, refusals: list[Wait]) -> Gang | None:
    pool = choice.pool.name
    blocked = state.requests.of(job).blocked
    if (pool, 0, 0) in blocked:
        refusals.append(_no_room(job, choice, state))
        return None
    room, memory, first = state.rooms.by_pool[pool], (pool, 0, 0), None
    if (way := state.in_the_way(job, pool)) is not None:
        slots, count = way
        room, memory, first = slots.past(count), (pool, slots.version, count), slots.slots[0]
    gang = fit_in_one(job, {pool: room}, choice) if memory not in blocked else None
    if gang is not None:
        return gang
    blocked.add(memory)
    if first is not None and fit_in_one(job, state.rooms.by_pool, choice) is not None:
        numbers = {**state.requests.of(job).asked, "pool": pool, "slot_starts_ms": first.start_ms}
        refusals.append(wait(job, Pending.BEHIND_RESERVATION, numbers, blocker=first.job))
        return None
    blocked.add((pool, 0, 0))
    refusals.append(_no_room(job, choice, state))
    return None


def _no_room(job: QueuedJob, choice: Candidate, state: State) -> Wait:
    pool = choice.pool.name
    request = state.requests.of(job)
    room = state.rooms.by_pool[pool]
    free = room.total()
    for node in job.placement.avoid_nodes:  # what is free there is no room for this job
        free = minus(free, least(free, most(NOTHING, room.free.get(node, NOTHING))))
    numbers = {**request.asked, "pool": pool, "free_milli_gpu": free[0]}
    needs = request.needs[choice.flavor.name][choice.flavor.name]
    enough = (
        needs[Resource.ACCELERATORS] <= free[0]
        and needs[Resource.CPUS] <= free[1]
        and needs[Resource.MEMORY] <= free[2]
        and sum(group.per_member.disk * group.replicas for group in job.groups) <= free[3]
    )
    token = Pending.TOPOLOGY_UNAVAILABLE if enough else Pending.WAITING_FOR_CAPACITY
    return wait(job, token, numbers)


def _across(job: QueuedJob, request: Request, state: State) -> Gang | None:
    """Groups in different pools. Pools with a slot of somebody else's are left out: their promise is not weakened."""
    open_pools = [
        choice
        for choice in request.matching
        if _shut(job, choice, state) is None and state.in_the_way(job, choice.pool.name) is None
    ]
    gang = fit_across(job, state.rooms.by_pool, open_pools)
    if gang is None or not state.quotas.ask(job.tenant, need_of(gang))[0].ok:
        return None
    return gang


def _admit(job: QueuedJob, gang: Gang, state: State) -> None:
    numbers = {**state.requests.of(job).asked, "pool": gang[0].pool, "class": state.class_of(job).value}
    answer, _, _ = state.quotas.ask(job.tenant, need_of(gang))
    if answer.borrowed:
        numbers["borrowed"] = answer.borrowed
    loans = state.count(job, gang)
    state.occupy(job, gang)
    placed, why = public(gang, state.rooms.by_pool), Why("Fits", numbers)
    admit = Admit(job.id, job.version, placed, why, loans=loans, chunk=job.chunk, klass=state.lowered(job))
    state.acts.append(Act(admits=(admit,)))


def _with_slot(job: QueuedJob, request: Request, nearest: Wait, state: State) -> Wait:
    """The head, and a job past `max_wait`, are promised a start that those behind them respect."""
    if nearest.pending not in _BLOCKED_BY_ROOM:
        return nearest
    if state.settings.backfill == "none":
        for choice in request.choices:
            if choice.pool.name in state.usable:
                state.closed.setdefault(choice.pool.name, job.id)
        return nearest
    overdue = state.now_ms - queued_since(job) > state.settings.max_wait_ms
    if request.promised_never or (state.slots and not overdue):
        return nearest
    open_pools = [c for c in request.choices if state.open_for_slots(c.pool.name)]
    if not open_pools:
        return nearest
    within = [c for c in open_pools if state.quotas.ask(job.tenant, request.needs[c.flavor.name])[0].ok]
    if not within:
        return nearest
    slot = slot_for(job, RANKS[state.class_of(job)], within, state.ahead(c.pool.name for c in within))
    if slot is None:
        # Only for good where nothing but time was in the way of every pool.
        request.promised_never = len(within) == len(request.choices)
        return nearest
    state.promise(slot)
    numbers = {**nearest.why.numbers, "slot_pool": slot.pool, "slot_starts_ms": slot.start_ms}
    return wait(job, nearest.pending, numbers, blocker=nearest.blocker, starts_ms=slot.start_ms)
