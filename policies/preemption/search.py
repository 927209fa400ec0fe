"""For one waiter: the cheapest set of victims over all pools, as one Act, or None. Preempts nobody for a waiter that
then could not start: a set counts only if the whole gang fits, within quota, once the set is gone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from policies.cycle import RANKS, State
from policies.decisions import Act, Admit, Move, Preempt, Why
from policies.gang.fit import Gang, fit_in_one, public, spread_of
from policies.order.qad import qad_at
from policies.placement.filters import Candidate
from policies.placement.rooms import Part
from policies.placement.shadow import beyond
from policies.preemption.candidates import Bounds, Victim, Waiter, displaced, excess_of, victim_of
from policies.preemption.choose import cheapest_set
from policies.preemption.closed import closed
from policies.preemption.cost import Cost, Penalty, cost_of, milli_gpu
from policies.preemption.moving import movable, move_cost, place
from policies.quota.tree import Tree, need_of
from policies.snapshot import QueuedJob
from policies.vocabulary import PriorityClass, StopCause


@dataclass(frozen=True, slots=True)
class _Found:
    """The victims, a displaced waiter with those that it brings as one; `costs` of each of `everyone`."""

    candidate: Candidate
    victims: tuple[Victim, ...]
    costs: tuple[Cost, ...]

    @property
    def everyone(self) -> tuple[Victim, ...]:
        return tuple(one for victim in self.victims for one in victim.all)

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
    if pool.name not in state.usable or closed(pool, state.now_ms):
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
    # Order of means: what is only borrowed comes back before anybody's own is taken, and who can go on elsewhere goes
    # there before anybody is sent to the queue.
    owed = [victim for victim in victims if victim.cause is StopCause.RECLAIM]
    if (borrowers := _largest_borrowers(search, owed)) and (chosen := _cheapest(search, borrowers)) is not None:
        return chosen
    by_cost = sorted(victims, key=lambda victim: (_move_cost(search, victim).gpu_ms, victim.attempt.id))
    movers = movable(by_cost[: state.settings.max_candidates], state)
    if movers and (chosen := _cheapest(search, movers, _move_cost)) is not None:
        return chosen
    return _cheapest(search, victims)


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
    by_id = {attempt.id: attempt for attempt in state.live}
    for attempt in state.live:
        if attempt.id in state.promised or all(p.pool != search.candidate.pool.name for p in attempt.placed):
            continue
        bounds = Bounds(state.words, state.now_ms, state.settings)
        if attempt.contingent_on:
            waits_for = [by_id[name] for name in attempt.contingent_on if name in by_id]
            victim = displaced(attempt, waits_for, search.waiter, bounds)
        else:
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


def _cheapest(
    search: _Search, victims: list[Victim], price: Callable[["_Search", Victim], Cost] | None = None
) -> _Found | None:
    state, job, candidate = search.state, search.job, search.candidate
    by_id = {victim.attempt.id: victim for victim in victims}
    costs = [(price or _cost)(search, victim) for victim in victims]
    costs = sorted(costs, key=lambda cost: (cost.gpu_ms, cost.attempt))[: state.settings.max_candidates]
    need = state.requests.of(job).accelerators(candidate.flavor.name)

    def frees_enough(some: Sequence[Victim]) -> bool:
        gang = search.fit_without([one.attempt.id for victim in some for one in victim.all])
        return gang is not None and _within_quota(job, gang, some, state)

    def suffices(chosen: Sequence[Cost]) -> bool:
        return frees_enough([by_id[cost.attempt] for cost in chosen])

    chosen = cheapest_set(costs, need, suffices, state.settings.max_victims_exact)
    if chosen is None:
        return None
    found = _without_needless([by_id[cost.attempt] for cost in chosen], frees_enough)
    everyone = [one for victim in found for one in victim.all]
    # A gang that needs more than a whole cycle's bound gets a cycle of its own, else it would never start.
    if state.victims and state.victims + len(everyone) > state.settings.max_victims_per_cycle:
        return None
    taken_back = sum(_reclaimed(victim) for victim in everyone)
    if state.reclaimed and state.reclaimed + taken_back > state.settings.max_reclaim_per_cycle:
        return None
    return _Found(candidate, tuple(found), tuple((price or _own_cost)(search, victim) for victim in everyone))


def _without_needless(chosen: list[Victim], suffices: Callable[[Sequence[Victim]], bool]) -> list[Victim]:
    """The same victims, where a displaced waiter brings only those whose room is needed; the others are spared."""
    for at, victim in enumerate(chosen):
        for one in victim.brings:
            fewer = replace(chosen[at], brings=tuple(other for other in chosen[at].brings if other is not one))
            if suffices([*chosen[:at], fewer, *chosen[at + 1 :]]):
                chosen[at] = fewer
    return chosen


def _reclaimed(victim: Victim) -> int:
    """What counts against a cycle's bound; what was being stopped already has been counted when it was."""
    return milli_gpu(victim.attempt) if victim.cause is StopCause.RECLAIM and not victim.leaving else 0


def _move_cost(search: _Search, victim: Victim) -> Cost:
    grace_ms = grace_of(victim.cause, search.waiter.klass, search.state)
    return move_cost(victim.attempt, grace_ms, search.state)


def _cost(search: _Search, victim: Victim) -> Cost:
    own = _own_cost(search, victim)
    if not victim.brings:
        return own
    brought = [_own_cost(search, one) for one in victim.brings]
    gpus = max(own.milli_gpu, sum(cost.milli_gpu for cost in brought))
    return replace(own, milli_gpu=gpus, brought_gpu_ms=sum(cost.gpu_ms for cost in brought))


def _own_cost(search: _Search, victim: Victim) -> Cost:
    attempt, state, tree = victim.attempt, search.state, search.tree
    if victim.displaced:
        return Cost(attempt.id, milli_gpu(attempt), 0, 0, Penalty())  # it never ran: nothing is lost
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
    everyone = [one for victim in victims for one in victim.all]
    by_class = [
        part
        for one in everyone
        if (one.cause is StopCause.PREEMPT or one.leaving) and not one.displaced  # a promise is no room
        for part in one.attempt.placed
    ]
    for one in everyone:
        _uncount(one, state)
    within = state.quotas.within(job.tenant, need_of(gang), need_of(by_class))
    for one in everyone:
        _uncount(one, state, sign=-1)
    return within


def _uncount(victim: Victim, state: State, sign: int = 1) -> None:
    """Take a victim out of the trees, or with sign −1 put it back."""
    if victim.displaced:
        state.quotas.withdraw(state.live, victim.attempt, sign)
    else:
        state.quotas.add(victim.attempt.tenant, need_of(victim.attempt.placed), -sign)


def _act(job: QueuedJob, best: _Found, found: Sequence[_Found], state: State) -> Act:
    everyone = best.everyone
    ids = [victim.attempt.id for victim in everyone]
    gang = _fit_without(ids, job, best.candidate, state)
    assert gang is not None
    klass = state.class_of(job)
    _apply(job, gang, best, state)
    state.count(job, gang)
    moves = _moves(job, best, klass, state)
    stopped = [
        (victim, cost) for victim, cost in zip(everyone, best.costs, strict=True) if victim.attempt.id not in moves
    ]
    cost_gpu_ms = sum(cost.gpu_ms for _, cost in stopped) + sum(cost.gpu_ms for _, cost in moves.values())
    numbers: dict[str, int | str] = {
        "cost_gpu_ms": cost_gpu_ms,
        "victims": len(ids),
        **({"moved": len(moves)} if moves else {}),
        **({"displaced": count} if (count := sum(one.displaced for one in everyone)) else {}),
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
            credit=_earns(victim, job),
            why=Why(_token(victim), cost.numbers()),
            again=victim.leaving,
            displaced=victim.displaced,
        )
        for victim, cost in stopped
    )
    admit = Admit(
        job=job.id,
        version=job.version,
        placed=public(gang, state.rooms.by_pool),
        why=Why("AfterPreemption", numbers),
        # A displaced waiter holds a promise and no room: nobody waits for its end.
        contingent_on=tuple(victim.attempt.id for victim in everyone if not victim.displaced),
        chunk=job.chunk,
        klass=state.lowered(job),
    )
    return Act(admits=(admit,), preempts=preempts, moves=tuple(move for move, _ in moves.values()))


def _moves(job: QueuedJob, best: _Found, klass: PriorityClass, state: State) -> dict[str, tuple[Move, Cost]]:
    """Of the victims those that go on elsewhere, each with its place taken: the dearest to stop choose first."""
    found: dict[str, tuple[Move, Cost]] = {}
    by_cost = sorted(zip(best.everyone, best.costs, strict=True), key=lambda pair: (-pair[1].gpu_ms, pair[1].attempt))
    for victim, _ in by_cost:
        if (home := place(victim, state)) is None:
            continue
        attempt, grace_ms = victim.attempt, grace_of(victim.cause, klass, state)
        cost = move_cost(attempt, grace_ms, state)
        move = Move(
            attempt=attempt.id,
            version=attempt.version,
            job=attempt.job,
            placed=home.gang,
            waiter=job.id,
            grace_ms=grace_ms,
            credit=_earns(victim, job),
            why=Why("Moved", {**cost.numbers(), "pool": home.gang[0].pool}),
            instead=victim.cause,
            loans=home.loans,
        )
        found[attempt.id] = (move, cost)
    return found


def _token(victim: Victim) -> str:
    if victim.displaced:
        return "Displaced"
    return "Forced" if victim.forced else victim.cause.value


def _earns(victim: Victim, job: QueuedJob) -> bool:
    ordered = victim.forced or victim.displaced
    return victim.cause is StopCause.PREEMPT and not ordered and victim.attempt.tenant != job.tenant


def _apply(job: QueuedJob, gang: Gang, best: _Found, state: State) -> None:
    """Take only what the victims do not cover: what they leave beyond the waiter's need stays theirs until they end."""
    wanted: list[Part] = [(p.pool, node, amount) for p in gang for node, amount in spread_of(p)]
    everyone = best.everyone
    covered = [part for victim in everyone for part in state.rooms.parts[victim.attempt.id]]
    for pool, node, amount in beyond(wanted, covered):
        state.rooms.by_pool[pool].take(((node, amount),))
    # Promises behind a higher class are computed again in the next cycle.
    state.slots.pop(best.candidate.pool.name, None)
    for victim in everyone:
        state.promised[victim.attempt.id] = job.id
        _uncount(victim, state)
        state.reclaimed += _reclaimed(victim)
    state.victims += len(everyone)
