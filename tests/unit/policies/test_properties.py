"""What holds for any snapshot."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.gang.fit import fit_in_one
from policies.placement.filters import Candidate
from policies.placement.rooms import Rooms
from policies.plan import plan
from policies.settings import HOUR_MS, MINUTE_MS, PolicySettings
from policies.snapshot import LiveAttempt, QueuedJob, Quota, Snapshot
from policies.vocabulary import PriorityClass
from tests.builders.policies import (
    NOW_MS,
    P0,
    P1,
    P2,
    Answers,
    flavor,
    group,
    job,
    live,
    nodes,
    placed,
    pool,
    quota,
    snapshot,
)

T = TypeVar("T")
TENANTS = ("o/a", "o/b/x", "o/b/y", "p")
CLASSES = (P0, P1, P2)
NODES, EACH = 4, 4


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    """Four nodes of four GPUs, a tree of quotas that add up, running and waiting jobs."""
    free = dict.fromkeys(range(NODES), EACH)
    running: list[LiveAttempt] = []
    for at in range(draw(st.integers(0, 8))):
        node = draw(st.integers(0, NODES - 1))
        size = draw(st.integers(1, EACH))
        if size <= free[node]:
            free[node] -= size
            running.append(
                live(
                    f"r{at}",
                    placed({f"n{node:03d}": size}),
                    tenant=draw(st.sampled_from(TENANTS)),
                    klass=draw(st.sampled_from(CLASSES)),
                    restart_ms=draw(st.integers(0, 3)) * MINUTE_MS,
                    ends_by_ms=draw(st.one_of(st.none(), st.integers(1, 9).map(lambda n: NOW_MS + n * HOUR_MS))),
                )
            )
    queued = tuple(
        job(
            f"q{at}",
            group(draw(st.integers(1, 5)), draw(st.integers(1, EACH))),
            tenant=draw(st.sampled_from(TENANTS)),
            klass=draw(st.sampled_from(CLASSES)),
            user=draw(st.sampled_from(("u", "v"))),
            submitted_ms=NOW_MS - draw(st.integers(0, 20)) * HOUR_MS,
            max_duration_ms=draw(st.one_of(st.none(), st.integers(1, 9).map(lambda n: n * HOUR_MS))),
        )
        for at in range(draw(st.integers(0, 8)))
    )
    # Ceilings never below what is held already, so that "not exceeded" is ours to keep.
    ceilings = {"o": (8, 12), "o/a": (4, 8), "o/b": (4, 8), "o/b/x": (2, 4), "p": (4, 8)}
    rows: list[Quota] = []
    for tenant, (least, most) in ceilings.items():
        held = sum(one.placed[0].replicas for one in running if f"{one.tenant}/".startswith(f"{tenant}/"))
        rows.append(quota(tenant, least, max(most, held), draw(st.integers(0, least))))
    return snapshot(pools=(pool(nodes(NODES, EACH)),), quotas=tuple(rows), live=tuple(running), queued=queued)


def answered(world: Snapshot) -> Answers:
    return Answers(plan(world, PolicySettings(), NOW_MS))


def mixed(draw: random.Random, values: Sequence[T]) -> tuple[T, ...]:
    return tuple(draw.sample(list(values), len(values)))


def shuffled(world: Snapshot, seed: int) -> Snapshot:
    draw = random.Random(seed)
    return replace(
        world,
        tenants=mixed(draw, world.tenants),
        quotas=mixed(draw, world.quotas),
        pools=tuple(replace(one, nodes=mixed(draw, one.nodes)) for one in mixed(draw, world.pools)),
        live=mixed(draw, world.live),
        queued=mixed(draw, world.queued),
    )


@given(worlds())
def test_every_queued_job_gets_exactly_one_answer(world: Snapshot) -> None:
    found = plan(world, PolicySettings(), NOW_MS)
    names = [admit.job for act in found.acts for admit in act.admits]
    names += [one.job for one in found.rejects] + [one.job for one in found.waits]
    assert sorted(names) == sorted(one.id for one in world.queued)


@given(worlds(), st.integers(0, 99))
def test_the_order_of_the_input_changes_nothing(world: Snapshot, seed: int) -> None:
    assert plan(shuffled(world, seed), PolicySettings(), NOW_MS) == plan(world, PolicySettings(), NOW_MS)


@given(worlds())
def test_no_max_is_exceeded_at_any_level(world: Snapshot) -> None:
    answers = answered(world)
    tenants = {one.id: one.tenant for one in world.queued}
    for row in world.quotas:
        inside = f"{row.tenant}/"
        held = sum(
            one.placed[0].total.accelerators
            for one in world.live
            if f"{one.tenant}/".startswith(inside) and one.id not in answers.preempts
        )
        held += sum(
            part.total.accelerators
            for name, admit in answers.admits.items()
            if f"{tenants[name]}/".startswith(inside)
            for part in admit.placed
        )
        assert row.max is not None
        assert held <= row.max


@given(worlds())
def test_no_node_is_given_twice(world: Snapshot) -> None:
    answers = answered(world)
    used: dict[str, int] = {}
    for one in world.live:
        if one.id not in answers.preempts:
            for node, members in one.placed[0].nodes:
                used[node] = used.get(node, 0) + members * one.placed[0].per_member.accelerators
    for admit in answers.admits.values():
        for part in admit.placed:
            assert sum(members for _, members in part.nodes) == part.replicas
            for node, members in part.nodes:
                used[node] = used.get(node, 0) + members * part.per_member.accelerators
    assert all(amount <= EACH * 1_000 for amount in used.values())


@given(worlds())
def test_a_waiter_never_takes_more_of_its_victims_than_it_needs_nor_a_protected_one(world: Snapshot) -> None:
    answers = answered(world)
    running = {one.id: one for one in world.live}
    classes = {one.id: one.klass for one in world.queued}
    for one in answers.preempts.values():
        victim = running[one.attempt]
        assert victim.klass is not P0
        if one.cause == "preempt":
            assert classes[one.waiter].base > victim.klass.base
            assert classes[one.waiter] is not P2


def room_without(world: Snapshot, victims: Sequence[str], wish: QueuedJob) -> bool:
    left = tuple(one for one in world.live if one.id not in victims)
    rooms = Rooms(world.pools, left)
    return fit_in_one(wish, rooms.by_pool, Candidate(world.pools[0], flavor())) is not None


@settings(max_examples=200)
@given(worlds(), st.sampled_from((P0, P1)), st.integers(1, 3), st.integers(1, EACH))
def test_no_proper_subset_of_the_victims_suffices(
    world: Snapshot, klass: PriorityClass, replicas: int, each: int
) -> None:
    """One waiter and no quotas, so that room alone decides."""
    wish = job("wish", group(replicas, each), tenant="p", klass=klass)
    alone = replace(world, quotas=(), queued=(wish,))
    for exact in (12, 0):
        found = Answers(plan(alone, PolicySettings(max_victims_exact=exact), NOW_MS))
        victims = sorted(found.preempts)
        if not victims:
            continue
        assert room_without(alone, victims, wish)
        for size in range(len(victims)):
            assert not any(room_without(alone, some, wish) for some in combinations(victims, size))


@given(worlds())
def test_planning_again_after_the_admissions_admits_nothing_twice(world: Snapshot) -> None:
    """A second cycle over the first one's result never preempts what was just admitted without need."""
    first = answered(world)
    waiting = tuple(one for one in world.queued if one.id in first.waits)
    admitted = tuple(
        live(f"of-{admit.job}", *admit.placed, job=admit.job, klass=P0, contingent_on=admit.contingent_on)
        for admit in first.admits.values()
    )
    again = Answers(plan(replace(world, live=(*world.live, *admitted), queued=waiting), PolicySettings(), NOW_MS))
    assert not {f"of-{name}" for name in first.admits} & set(again.preempts)
