"""For one waiter: the cheapest set of victims over all pools, as one Act, or None. Preempts nobody for a waiter that
then could not start: a set counts only if the whole gang fits, within quota, once the set is gone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from policies.cycle import RANKS, State
from policies.decisions import Act, Admit, Preempt, Why
from policies.gang.fit import Gang, fit_in_one, public, spread_of
from policies.order.qad import qad_at
from policies.placement.filters import Candidate
from policies.placement.rooms import Part
from policies.placement.shadow import beyond
from policies.preemption.candidates import Bounds, Victim, Waiter, excess_of, victim_of
from policies.preemption.choose import cheapest_set
from policies.preemption.cost import Cost, Penalty, cost_of, milli_gpu
from policies.quota.tree import Tree, need_of
from policies.snapshot import QueuedJob
from policies.vocabulary import PriorityClass, StopCause


@dataclass(frozen=True, slots=True)
class _Found:
    candidate: Candidate
    victims: tuple[Victim, ...]
    costs: tuple[Cost, ...]

    @property
    def total(self) -> int:
        return sum(cost.gpu_ms for cost in self.costs)


@dataclass(frozen=True, slots=True)
class _Search:
    """One waiter in one pool."""

    job: QueuedJob
    waiter: Waiter
    candidate: Candidate
    tree: Tree | None
    state: State

    def fit_without(self, victims: Sequence[str]) -> Gang | None:
        """Places for the whole gang once these attempts are gone."""
        return _fit_without(victims, self.job, self.candidate, self.state)


def make_way(job: QueuedJob, choices: Sequence[Candidate], state: State) -> Act | None:
    """The Act of a waiter with its victims: its lease is contingent on them. Applied to the state when returned."""
    if job.preempted_in_cycle or state.victims >= state.settings.max_victims_per_cycle:
        return None
    found = [
        one
        for candidate in choices
        if _may_preempt(job, candidate, state) and (one := _search(job, candidate, state)) is not None
    ]
    if not found:
        return None
    best = min(found, key=lambda one: (one.total, one.candidate.pool.name))
    return _act(job, best, found, state)


def _may_preempt(job: QueuedJob, candidate: Candidate, state: State) -> bool:
    pool = candidate.pool
    if pool.name not in state.stoppable:
        return False
    if pool.name not in state.usable or not pool.place_first or pool.no_preemption_until_ms > state.now_ms:
        return False
    if state.searches >= state.settings.max_searches_per_cycle:
        return False
    # Somebody of the same or a higher class has been promised what would be freed here.
    promised = state.slots[pool.name].slots if pool.name in state.slots else ()
    return all(slot.rank > RANKS[state.class_of(job)] for slot in promised)


def _search(job: QueuedJob, candidate: Candidate, state: State) -> _Found | None:
    flavor = candidate.flavor.name
    tree = state.quotas.accelerators(flavor)
    waiter = Waiter(job.tenant, state.class_of(job), _reclaims(job, flavor, tree, state))
    if waiter.klass is PriorityClass.P2 and not waiter.reclaims:
        return None
    search = _Search(job, waiter, candidate, tree, state)
    if waiter.klass is not PriorityClass.P0 and _leaving_suffices(search):
        return None
    victims = _victims(search)
    if not victims:
        return None
    state.searches += 1
    # Order of means: what is only borrowed comes back before anybody's own is taken.
    owed = [victim for victim in victims if victim.cause is StopCause.RECLAIM]
    for some in (_largest_borrowers(search, owed), victims):
        if some and (chosen := _cheapest(search, some)) is not None:
            return chosen
    return None


def _leaving_suffices(search: _Search) -> bool:
    """Whether what is being stopped already, for nobody in particular, makes the room: then nobody else is told."""
    leaving = search.state.leaving
    return bool(leaving) and search.fit_without(leaving) is not None


def _reclaims(job: QueuedJob, flavor: str, tree: Tree | None, state: State) -> bool:
    """Whether the owner is far enough below its guarantee, and the whole job lies within it."""
    amount = state.requests.of(job).accelerators(flavor)
    if tree is None or not amount or not tree.ask(job.tenant, amount).entitled:
        return False
    demand = tree.level(job.tenant).use + amount
    return qad_at(tree, job.tenant, demand) * 1000 < state.settings.reclaim_below_permille


def _victims(search: _Search) -> list[Victim]:
    state, found = search.state, []
    for attempt in state.live:
        if attempt.id in state.promised or all(p.pool != search.candidate.pool.name for p in attempt.placed):
            continue
        bounds = Bounds(state.words, state.now_ms, state.settings)
        victim = victim_of(attempt, search.waiter, search.tree, bounds)
        if victim is not None:
            found.append(victim)
    return found


def _largest_borrowers(search: _Search, owed: list[Victim]) -> list[Victim]:
    """Victims of the fewest borrowers, largest excess over min first, who together can make room."""
    tree = search.tree
    if tree is None or not owed:
        return []
    by_tenant: dict[str, list[Victim]] = {}
    for victim in owed:
        by_tenant.setdefault(victim.attempt.tenant, []).append(victim)
    ordered = sorted(by_tenant, key=lambda tenant: (-excess_of(tree, tenant, search.waiter.tenant), tenant))
    some: list[Victim] = []
    for tenant in ordered:
        some += by_tenant[tenant]
        if search.fit_without([victim.attempt.id for victim in some]) is not None:
            return some
    return []


def _cheapest(search: _Search, victims: list[Victim]) -> _Found | None:
    state, job, candidate = search.state, search.job, search.candidate
    by_id = {victim.attempt.id: victim for victim in victims}
    costs = [_cost(search, victim) for victim in victims]
    costs = sorted(costs, key=lambda cost: (cost.gpu_ms, cost.attempt))[: state.settings.max_candidates]
    need = state.requests.of(job).accelerators(candidate.flavor.name)

    def suffices(chosen: Sequence[Cost]) -> bool:
        gang = search.fit_without([cost.attempt for cost in chosen])
        return gang is not None and _within_quota(job, gang, [by_id[cost.attempt] for cost in chosen], state)

    chosen = cheapest_set(costs, need, suffices, state.settings.max_victims_exact)
    if chosen is None:
        return None
    # A gang that needs more than a whole cycle's bound gets a cycle of its own, else it would never start.
    if state.victims and state.victims + len(chosen) > state.settings.max_victims_per_cycle:
        return None
    found = tuple(by_id[cost.attempt] for cost in chosen)
    taken_back = sum(milli_gpu(victim.attempt) for victim in found if victim.cause is StopCause.RECLAIM)
    if state.reclaimed and state.reclaimed + taken_back > state.settings.max_reclaim_per_cycle:
        return None
    return _Found(candidate, found, chosen)


def _cost(search: _Search, victim: Victim) -> Cost:
    attempt, state, tree = victim.attempt, search.state, search.tree
    if victim.forced:
        # An operator's word makes it the first choice wherever it helps.
        return Cost(attempt.id, milli_gpu(attempt), 0, 0, Penalty())
    level = tree.level(attempt.tenant) if tree is not None else None
    return cost_of(
        attempt,
        grace_ms=grace_of(victim.cause, search.waiter.klass, state),
        now_ms=state.now_ms,
        settings=state.settings,
        tenant_use=level.use if level else 0,
        tenant_min=level.min if level else 0,
        debt=state.debts.get((attempt.tenant, search.candidate.flavor.name), 0),
    )


def grace_of(cause: StopCause, waiter: PriorityClass, state: State) -> int:
    """How long a victim gets: none for P0, else the grace of the waiter's class or of reclaim."""
    if waiter is PriorityClass.P0 or cause is not StopCause.RECLAIM:
        return state.settings.grace_ms[waiter]
    return state.settings.reclaim_grace_ms


def _fit_without(victims: Sequence[str], job: QueuedJob, candidate: Candidate, state: State) -> Gang | None:
    for victim in victims:
        state.rooms.release(victim)
    gang = fit_in_one(job, state.rooms.by_pool, candidate)
    for victim in victims:
        state.rooms.retake(victim)
    return gang


def _within_quota(job: QueuedJob, gang: Gang, victims: Sequence[Victim], state: State) -> bool:
    """Limits and borrowing net of the victims, at every common ancestor.

    A higher class may take what its victims were guaranteed (their cost says so), but no guarantee that lies idle.
    """
    by_class = [part for victim in victims if victim.cause is StopCause.PREEMPT for part in victim.attempt.placed]
    for victim in victims:
        state.quotas.add(victim.attempt.tenant, need_of(victim.attempt.placed), -1)
    within = state.quotas.within(job.tenant, need_of(gang), need_of(by_class))
    for victim in victims:
        state.quotas.add(victim.attempt.tenant, need_of(victim.attempt.placed))
    return within


def _act(job: QueuedJob, best: _Found, found: Sequence[_Found], state: State) -> Act:
    ids = [victim.attempt.id for victim in best.victims]
    gang = _fit_without(ids, job, best.candidate, state)
    assert gang is not None
    klass = state.class_of(job)
    numbers: dict[str, int | str] = {
        "cost_gpu_ms": best.total,
        "victims": len(ids),
        "pool": best.candidate.pool.name,
        "class": klass.value,
    }
    for other in found:
        if other is not best:
            numbers[f"cost_gpu_ms_in_{other.candidate.pool.name}"] = other.total
    preempts = tuple(
        Preempt(
            attempt=victim.attempt.id,
            version=victim.attempt.version,
            waiter=job.id,
            cause=victim.cause,
            grace_ms=grace_of(victim.cause, klass, state),
            credit=victim.cause is StopCause.PREEMPT and not victim.forced and victim.attempt.tenant != job.tenant,
            why=Why("Forced" if victim.forced else victim.cause.value, cost.numbers()),
        )
        for victim, cost in zip(best.victims, best.costs, strict=True)
    )
    _apply(job, gang, best, state)
    state.count(job, gang)
    admit = Admit(
        job=job.id,
        version=job.version,
        placed=public(gang, state.rooms.by_pool),
        why=Why("AfterPreemption", numbers),
        contingent_on=tuple(ids),
        chunk=job.chunk,
        klass=state.lowered(job),
    )
    return Act(admits=(admit,), preempts=preempts)


def _apply(job: QueuedJob, gang: Gang, best: _Found, state: State) -> None:
    """Take only what the victims do not cover: what they leave beyond the waiter's need stays theirs until they end."""
    wanted: list[Part] = [(p.pool, node, amount) for p in gang for node, amount in spread_of(p)]
    covered = [part for victim in best.victims for part in state.rooms.parts[victim.attempt.id]]
    for pool, node, amount in beyond(wanted, covered):
        state.rooms.by_pool[pool].take(((node, amount),))
    # Promises behind a higher class are computed again in the next cycle.
    state.slots.pop(best.candidate.pool.name, None)
    for victim in best.victims:
        state.promised[victim.attempt.id] = job.id
        state.quotas.add(victim.attempt.tenant, need_of(victim.attempt.placed), -1)
        if victim.cause is StopCause.RECLAIM:
            state.reclaimed += milli_gpu(victim.attempt)
    state.victims += len(best.victims)
