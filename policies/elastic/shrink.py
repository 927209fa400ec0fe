"""For one waiter: elastic jobs made smaller so that it starts, before anybody is stopped for it (POLICIES §7).

Whoever might be its victim may be made smaller for it, and nobody else; never below min, never twice within the
cool-down. Each gives as little as suffices, the cheapest first. Decides for one pool at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.cycle import RANKS, State
from policies.decisions import Act, Admit, Resize, Why
from policies.elastic.places import shrunk
from policies.gang.fit import Gang, fit_in_one, public, spread_of
from policies.order.qad import qad_at
from policies.placement.filters import Candidate
from policies.placement.rooms import Part, tail
from policies.placement.shadow import beyond
from policies.preemption.candidates import Bounds, Waiter, victim_of
from policies.preemption.cost import MILLI, milli_gpu
from policies.quota.tree import need_of
from policies.snapshot import Elastic, LiveAttempt, Placed, QueuedJob, given_up
from policies.vocabulary import AttemptState, PriorityClass, Resource, StopCause


@dataclass(frozen=True, slots=True)
class Shrinkable:
    """An attempt that may be made smaller, with what its relaunch costs and for which cause it gives way."""

    attempt: LiveAttempt
    elastic: Elastic
    cost_gpu_ms: int
    cause: StopCause

    def sizes(self) -> tuple[int, ...]:
        """Valid sizes below the present one, the largest first."""
        sizes, size = self.elastic.sizes, self.elastic.size
        return tuple(one for one in range(size - 1, sizes.min - 1, -1) if sizes.valid(one))

    def leaves(self, size: int) -> tuple[Placed, ...]:
        """What is free at that size."""
        kept = shrunk(self.attempt.placed, self.elastic.group, size)
        return given_up(self.attempt.placed, kept)


@dataclass(frozen=True, slots=True)
class _Search:
    """One waiter in one pool."""

    job: QueuedJob
    candidate: Candidate
    state: State
    by_id: Mapping[str, Shrinkable]

    def freed(self, chosen: Mapping[str, int]) -> list[Part]:
        return [
            part
            for name, size in chosen.items()
            for part in tail(self.state.rooms.parts[name], self.by_id[name].leaves(size))
        ]

    def gang(self, chosen: Mapping[str, int]) -> Gang | None:
        """Places for the whole waiter within quota, once these have these sizes."""
        freed = self.freed(chosen)
        for pool, node, amount in freed:
            self.state.rooms.by_pool[pool].give(((node, amount),))
        gang = fit_in_one(self.job, self.state.rooms.by_pool, self.candidate)
        for pool, node, amount in freed:
            self.state.rooms.by_pool[pool].take(((node, amount),))
        return gang if gang is not None and self._within_quota(gang, chosen) else None

    def _within_quota(self, gang: Gang, chosen: Mapping[str, int]) -> bool:
        self.count(chosen, -1)
        taken = need_of(
            part
            for name, size in chosen.items()
            if self.by_id[name].cause is StopCause.PREEMPT
            for part in self.by_id[name].leaves(size)
        )
        within = self.state.quotas.within(self.job.tenant, need_of(gang), taken)
        self.count(chosen, 1)
        return within

    def count(self, chosen: Mapping[str, int], sign: int) -> None:
        """Count what these give up; the job itself goes on, and still counts as one."""
        for name, size in chosen.items():
            need = {
                flavor: {**wanted, Resource.JOBS: 0}
                for flavor, wanted in need_of(self.by_id[name].leaves(size)).items()
            }
            self.state.quotas.add(self.by_id[name].attempt.tenant, need, sign)


def make_room(job: QueuedJob, choices: Sequence[Candidate], state: State) -> Act | None:
    """The Act of a waiter with those that shrink for it, or None. Applied to the state when returned."""
    if job.preempted_in_cycle or not state.elastic:
        return None
    best: tuple[int, str, _Search, dict[str, int]] | None = None
    for candidate in choices:
        waiter = _waiter(job, candidate, state)
        found = _shrinkable(waiter, candidate, state) if waiter is not None else []
        if not found:
            continue
        search = _Search(job, candidate, state, {one.attempt.id: one for one in found})
        state.searches += 1
        chosen = _choose(search, found)
        if chosen is None:
            continue
        cost = sum(search.by_id[name].cost_gpu_ms for name in chosen)
        if best is None or (cost, candidate.pool.name) < best[:2]:
            best = cost, candidate.pool.name, search, chosen
    return None if best is None else _act(best[2], best[3], best[0])


def _waiter(job: QueuedJob, candidate: Candidate, state: State) -> Waiter | None:
    pool, klass = candidate.pool, state.class_of(job)
    if pool.name not in state.stoppable or pool.name not in state.usable or not pool.place_first:
        return None
    if pool.no_preemption_until_ms > state.now_ms or state.searches >= state.settings.max_searches_per_cycle:
        return None
    promised = state.slots[pool.name].slots if pool.name in state.slots else ()
    if any(slot.rank <= RANKS[klass] for slot in promised):
        return None
    tree = state.quotas.accelerators(candidate.flavor.name)
    amount = state.requests.of(job).accelerators(candidate.flavor.name)
    reclaims = False
    if tree is not None and amount and tree.ask(job.tenant, amount).entitled:
        demand = tree.level(job.tenant).use + amount
        reclaims = qad_at(tree, job.tenant, demand) * 1000 < state.settings.reclaim_below_permille
    return None if klass is PriorityClass.P2 and not reclaims else Waiter(job.tenant, klass, reclaims)


def _shrinkable(waiter: Waiter, candidate: Candidate, state: State) -> list[Shrinkable]:
    tree = state.quotas.accelerators(candidate.flavor.name)
    bounds = Bounds(state.words, state.now_ms, state.settings)
    found = []
    for attempt in state.elastic:
        elastic = attempt.elastic
        if elastic is None or not may_resize(attempt, elastic, state) or not cooled_down(elastic, state):
            continue
        if all(part.pool != candidate.pool.name for part in attempt.placed if part.group == elastic.group):
            continue
        victim = victim_of(attempt, waiter, tree, bounds)
        if victim is not None:
            one = Shrinkable(attempt, elastic, _cost(attempt, elastic, state), victim.cause)
            found += [one] if one.sizes() else []
    return sorted(found, key=lambda one: (one.cost_gpu_ms, one.attempt.id))[: state.settings.max_candidates]


def may_resize(attempt: LiveAttempt, elastic: Elastic, state: State) -> bool:
    """Whether it can be given another size in this cycle at all."""
    return (
        elastic.able
        and not elastic.under_way
        and attempt.state is AttemptState.RUNNING
        and attempt.stopping is None
        and not attempt.contingent_on
        and attempt.id not in state.promised
        and attempt.id not in state.resizing
    )


def cooled_down(elastic: Elastic, state: State) -> bool:
    """Whether its last resize is long enough ago for one that nobody asked for."""
    return elastic.resized_ms is None or state.now_ms - elastic.resized_ms >= state.settings.resize_cool_down_ms


def _cost(attempt: LiveAttempt, elastic: Elastic, state: State) -> int:
    """Its members all save and start again; in place nobody who stays is disturbed."""
    if elastic.in_place:
        return 0
    age = max(0, state.now_ms - (attempt.started_ms or state.now_ms))
    return milli_gpu(attempt) * (min(age, attempt.save_ms or 0) + attempt.restart_ms) // MILLI


def _choose(search: _Search, found: Sequence[Shrinkable]) -> dict[str, int] | None:
    chosen: dict[str, int] = {}
    for one in found:
        chosen[one.attempt.id] = one.sizes()[-1]
        if search.gang(chosen) is not None:
            break
    else:
        return None
    # The dearest first: each keeps all that it can, and whoever need not shrink at all does not.
    for one in reversed(found[: len(chosen)]):
        others = {name: size for name, size in chosen.items() if name != one.attempt.id}
        if others and search.gang(others) is not None:
            chosen = others
            continue
        size = next(size for size in one.sizes() if search.gang({**chosen, one.attempt.id: size}) is not None)
        chosen[one.attempt.id] = size
    return chosen


def _act(search: _Search, chosen: Mapping[str, int], cost: int) -> Act:
    state, job = search.state, search.job
    gang = search.gang(chosen)
    assert gang is not None
    wanted: list[Part] = [(p.pool, node, amount) for p in gang for node, amount in spread_of(p)]
    for pool, node, amount in beyond(wanted, search.freed(chosen)):
        state.rooms.by_pool[pool].take(((node, amount),))
    state.slots.pop(search.candidate.pool.name, None)
    search.count(chosen, -1)
    state.count(job, gang)
    klass = state.class_of(job)
    resizes = []
    for name, size in sorted(chosen.items()):
        one = search.by_id[name]
        state.promised[name] = job.id
        state.resizing.add(name)
        grace_ms = state.settings.grace_ms[klass]
        if one.cause is StopCause.RECLAIM and klass is not PriorityClass.P0:
            grace_ms = state.settings.reclaim_grace_ms
        numbers: dict[str, int | str] = {"from": one.elastic.size, "to": size, "cost_gpu_ms": one.cost_gpu_ms}
        resizes.append(
            Resize(
                attempt=name,
                version=one.attempt.version,
                job=one.attempt.job,
                job_version=one.elastic.job_version,
                group=one.elastic.group,
                replicas=size,
                placed=shrunk(one.attempt.placed, one.elastic.group, size),
                why=Why("ShrunkForWaiter", numbers),
                in_place=one.elastic.in_place,
                waiter=job.id,
                grace_ms=grace_ms,
            )
        )
    admit = Admit(
        job=job.id,
        version=job.version,
        placed=public(gang, state.rooms.by_pool),
        why=Why("AfterShrinking", {"cost_gpu_ms": cost, "shrunk": len(resizes), "pool": search.candidate.pool.name}),
        contingent_on=tuple(sorted(chosen)),
        chunk=job.chunk,
        klass=state.lowered(job),
    )
    return Act(admits=(admit,), resizes=tuple(resizes))
