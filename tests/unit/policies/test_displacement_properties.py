"""Properties of plans over federations in which preemptions are under way: some told, some waiting, a P0 arriving."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.plan import plan
from policies.settings import PolicySettings
from policies.snapshot import LiveAttempt, Quota, Snapshot
from policies.vocabulary import AttemptState, StopCause
from tests.builders.policies import NOW_MS, P0, P1, P2, Answers, group, job, live, nodes, placed, pool, quota, snapshot

NODES, EACH = 3, 4
TENANTS = ("o", "o/a", "o/b", "p")


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    """Each node has a victim of all its cards; waiters hold promises over some of them, of one or two nodes."""
    causes = st.sampled_from((StopCause.PREEMPT, StopCause.RECLAIM, None, StopCause.CANCEL))
    victims: list[LiveAttempt] = []
    told: list[LiveAttempt] = []
    for at in range(NODES):
        name = f"n{at:03d}"
        cause = draw(causes)
        made = live(
            f"v{at}",
            placed({name: 1}, each=EACH),
            tenant=draw(st.sampled_from(TENANTS)),
            stopping=cause,
            restart_ms=1_000,
        )
        if cause is not None:
            made = replace(
                made, restart_ms=0, state=draw(st.sampled_from((AttemptState.STOPPING, AttemptState.RUNNING)))
            )
            told.append(made)
        victims.append(made)
    waiters: list[LiveAttempt] = []
    while told and (not waiters or draw(st.booleans())):
        mine = [told.pop() for _ in range(draw(st.integers(1, min(2, len(told)))))]
        where = {node: 1 for one in mine for node, _ in one.placed[0].nodes}
        size = draw(st.integers(1, EACH))
        waiter = live(
            f"w{len(waiters)}",
            placed(where, each=size),
            tenant=draw(st.sampled_from(TENANTS)),
            klass=draw(st.sampled_from((P1, P2, P0))),
        )
        on = tuple(one.id for one in mine)
        waiters.append(replace(waiter, state=AttemptState.PENDING, started_ms=None, contingent_on=on))
    queued = tuple(
        job(
            f"q{at}",
            group(draw(st.integers(1, NODES)), draw(st.integers(1, EACH))),
            tenant=draw(st.sampled_from(TENANTS)),
            klass=draw(st.sampled_from((P0, P1, P2))) if at else P0,
        )
        for at in range(draw(st.integers(1, 4)))
    )
    running = (*victims, *waiters)
    rows: list[Quota] = []
    for tenant in TENANTS:
        held = used(running, tenant, ())
        rows.append(quota(tenant, 0, -(-held // 1000) + draw(st.integers(0, EACH))))
    return snapshot(
        pools=(pool(nodes(NODES + draw(st.integers(0, 1)), EACH)),), quotas=tuple(rows), live=running, queued=queued
    )


def inside(tenant: str, of: str) -> bool:
    return f"{tenant}/".startswith(f"{of}/")


def used(running: tuple[LiveAttempt, ...], tenant: str, gone: tuple[str, ...]) -> int:
    """milli-GPU below a tenant, what a waiter and its victims below it both hold counted once."""
    by_id = {one.id: one for one in running}
    total = 0
    for one in running:
        if one.id in gone or not inside(one.tenant, tenant):
            continue
        own = one.placed[0].total.accelerators
        victims = [by_id[name] for name in one.contingent_on if name not in gone]
        twice = sum(v.placed[0].total.accelerators for v in victims if inside(v.tenant, tenant))
        total += own - min(own, twice)
    return total


def answered(world: Snapshot) -> Answers:
    return Answers(plan(world, PolicySettings(), NOW_MS))


@settings(max_examples=200)
@given(worlds())
def test_nothing_is_promised_twice(world: Snapshot) -> None:
    found = answered(world)
    gone = set(found.preempts)
    promises = [name for admit in found.admits.values() for name in admit.contingent_on]
    promises += [name for one in world.live if one.id not in gone for name in one.contingent_on]
    assert len(promises) == len(set(promises))


@settings(max_examples=200)
@given(worlds())
def test_only_a_p0_takes_over_and_nobody_takes_over_from_a_p0(world: Snapshot) -> None:
    found = answered(world)
    running = {one.id: one for one in world.live}
    classes = {one.id: one.klass for one in world.queued}
    for one in found.preempts.values():
        victim = running[one.attempt]
        assert victim.klass is not P0
        assert one.displaced == bool(victim.contingent_on)
        assert one.again == (victim.stopping is not None)
        assert victim.stopping is not StopCause.CANCEL
        if one.again or one.displaced:
            assert classes[one.waiter] is P0
            assert one.grace_ms == 0
        if one.again:
            assert one.cause is victim.stopping


@settings(max_examples=200)
@given(worlds())
def test_no_max_is_exceeded_at_any_level(world: Snapshot) -> None:
    found = answered(world)
    tenants = {one.id: one.tenant for one in world.queued}
    for row in world.quotas:
        held = used(world.live, row.tenant, tuple(found.preempts))
        held += sum(
            part.total.accelerators
            for name, admit in found.admits.items()
            if inside(tenants[name], row.tenant)
            for part in admit.placed
        )
        assert row.max is not None
        assert held <= row.max


@settings(max_examples=200)
@given(worlds())
def test_no_node_is_given_twice(world: Snapshot) -> None:
    found = answered(world)
    by_id = {one.id: one for one in world.live}
    taken: dict[str, int] = {}
    for one in world.live:
        if one.id in found.preempts:
            continue
        covered = {
            node for name in one.contingent_on if name not in found.preempts for node, _ in by_id[name].placed[0].nodes
        }
        for node, members in one.placed[0].nodes:
            if node not in covered:
                taken[node] = taken.get(node, 0) + members * one.placed[0].per_member.accelerators
    for admit in found.admits.values():
        for part in admit.placed:
            for node, members in part.nodes:
                taken[node] = taken.get(node, 0) + members * part.per_member.accelerators
    assert all(amount <= EACH * 1_000 for amount in taken.values())


@settings(max_examples=100)
@given(worlds())
def test_the_order_of_the_input_changes_nothing(world: Snapshot) -> None:
    turned = replace(world, live=world.live[::-1], queued=world.queued[::-1], quotas=world.quotas[::-1])
    assert plan(turned, PolicySettings(), NOW_MS) == plan(world, PolicySettings(), NOW_MS)
