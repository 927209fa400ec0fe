"""Resizes in random small worlds: valid sizes, one per attempt, never more than there is or than a ceiling allows."""

from collections import Counter
from dataclasses import replace

from hypothesis import event, given, settings
from hypothesis import strategies as st

from policies.elastic.places import size_of
from policies.elastic.sizes import Sizes
from policies.plan import plan
from policies.settings import PolicySettings
from policies.snapshot import Elastic, LiveAttempt, Placed, QueuedJob, Snapshot
from policies.vocabulary import PriorityClass
from tests.builders.policies import NOW_MS, P1, P2, gpus, group, job, live, nodes, pool, quota, snapshot

NODES, CARDS = 3, 4


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    free = {f"n{at:03d}": CARDS for at in range(NODES)}
    running: list[LiveAttempt] = []
    for at in range(draw(st.integers(1, 4))):
        step = draw(st.sampled_from([1, 2]))
        wanted = step * draw(st.integers(1, 4))
        on: list[tuple[str, int]] = []
        left = wanted
        for node in sorted(free):
            here = min(left, free[node])
            if here:
                on.append((node, here))
                free[node] -= here
                left -= here
        if left:
            for node, here in on:
                free[node] += here
            continue
        sizes = Sizes(step, step * draw(st.integers(1, 6)), 12, step)
        tenant = draw(st.sampled_from(["a", "b"]))
        wish = Elastic(
            "main",
            sizes,
            wanted,
            able=draw(st.booleans()) or at == 0,
            in_place=draw(st.booleans()),
            wished=draw(st.booleans()),
            rate=draw(st.sampled_from([0, 1000, 2000])),
            before=draw(st.sampled_from([None, (step, 1000)])),
        )
        where = Placed("main", "pool", "h100", wanted, gpus(1), tuple(on))
        klass = draw(st.sampled_from([P1, P2, P2]))
        running.append(live(f"e{at}", where, tenant=tenant, klass=klass, elastic=wish))
    waiting: list[QueuedJob] = [
        job(f"j{at}", group(draw(st.integers(1, 6)), 1), tenant="a", klass=draw(st.sampled_from([P1, P2])))
        for at in range(draw(st.integers(0, 2)))
    ]
    limits = draw(st.sampled_from([(), (quota("a", 0, 8), quota("b", 4, 10, 2))]))
    return snapshot(pools=(pool(nodes(NODES, CARDS)),), live=tuple(running), queued=tuple(waiting), quotas=limits)


@given(worlds())
@settings(deadline=None, max_examples=300)
def test_what_a_cycle_resizes_is_valid_fits_and_stays_within_every_ceiling(world: Snapshot) -> None:
    found = plan(world, PolicySettings(), NOW_MS)
    by_id = {attempt.id: attempt for attempt in world.live}
    resizes = [one for act in found.acts for one in act.resizes]
    stopped = {one.attempt for act in found.acts for one in act.preempts}
    assert len({one.attempt for one in resizes}) == len(resizes)
    assert not stopped & {one.attempt for one in resizes}, "nobody is resized and stopped in one cycle"
    taken: Counter[str] = Counter()
    used: Counter[str] = Counter()
    after = dict(by_id)
    for one in resizes:
        attempt = by_id[one.attempt]
        assert attempt.elastic is not None
        assert attempt.elastic.able
        assert attempt.elastic.sizes.valid(one.replicas)
        assert size_of(one.placed, "main") == one.replicas != attempt.elastic.size
        event("shrinks for a waiter" if one.waiter else "shrinks" if one.replicas < attempt.elastic.size else "grows")
        before, then = list(_members(attempt.placed)), list(_members(one.placed))
        assert before[: len(then)] == then[: len(before)], "a member that stays keeps its rank and its node"
        if one.waiter or one.replicas > attempt.elastic.size:
            after[one.attempt] = replace(attempt, placed=one.placed)
    for attempt in (each for name, each in after.items() if name not in stopped):
        for part in attempt.placed:
            taken.update(dict(part.nodes))
            used[attempt.tenant] += part.replicas
    for act in found.acts:
        for admit in act.admits:
            for part in admit.placed:
                taken.update(dict(part.nodes))
                used["a"] += part.replicas
    assert all(count <= CARDS for count in taken.values()), taken
    ceilings = {one.tenant: (one.max or 0) // 1000 for one in world.quotas}
    over = {name for name, most in ceilings.items() if used[name] > most}
    assert over <= {name for name, most in ceilings.items() if _now(world, name) > most}, (
        "no ceiling is passed by a plan"
    )


def _members(placed: tuple[Placed, ...]) -> list[str]:
    return [node for part in placed for node, count in part.nodes for _ in range(count)]


def _now(world: Snapshot, tenant: str) -> int:
    return sum(part.replicas for attempt in world.live if attempt.tenant == tenant for part in attempt.placed)


@given(worlds())
@settings(deadline=None, max_examples=100)
def test_no_class_is_shrunk_for_its_equal_or_lower_but_for_a_reclaim(world: Snapshot) -> None:
    found = plan(world, PolicySettings(), NOW_MS)
    classes = {one.id: one.klass for one in world.queued}
    by_id = {attempt.id: attempt for attempt in world.live}
    guaranteed = any(one.min for one in world.quotas if one.tenant == "a")
    for act in found.acts:
        for one in act.resizes:
            if one.waiter and not guaranteed:
                assert classes[one.waiter] is PriorityClass.P1
                assert by_id[one.attempt].klass is PriorityClass.P2
