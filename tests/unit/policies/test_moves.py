"""POLICIES §7: a victim that fits free capacity elsewhere goes on there, before anybody is sent to the queue."""

from dataclasses import replace
from typing import Any

import pytest

from policies.decisions import Move
from policies.settings import HOUR_MS, MINUTE_MS
from policies.snapshot import LiveAttempt, PlacementWish, Snapshot
from policies.vocabulary import AttemptState, StopCause
from tests.builders.policies import (
    NOW_MS,
    P0,
    P1,
    Answers,
    decide,
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

HERE = PlacementWish(pools=("pool",))


def runs(name: str, count: int, node: str = "n000", **more: Any) -> LiveAttempt:
    """A checkpointing job of b's with members of one GPU on one node; restart 10 min, a save takes 2."""
    tenant = more.pop("tenant", "b")
    values: dict[str, Any] = {
        "tenant": tenant,
        "started_ms": NOW_MS - 5 * HOUR_MS,
        "checkpoint_ms": NOW_MS - 5 * MINUTE_MS,
        "checkpoint_interval_ms": HOUR_MS,
        "save_ms": 2 * MINUTE_MS,
        "restart_ms": 10 * MINUTE_MS,
        "wish": job(f"job-of-{name}", group(count), tenant=tenant),
        **more,
    }
    return live(name, placed({node: count}), **values)


Y = runs("Y", 4)


def urgent(count: int = 4, **more: Any) -> Any:
    return job("wish", group(1, count), **{"klass": P1, "placement": HERE, **more})


def world(*running: LiveAttempt, free: int = 4, **more: Any) -> Snapshot:
    size = sum(part.total.accelerators // 1000 for one in running for part in one.placed)
    pools = (pool(nodes(1, size)), pool(nodes(1, free, "m"), "there"))
    return snapshot(**{"pools": pools, "live": running, "queued": (urgent(),), **more})


def moves(answers: Answers) -> dict[str, Move]:
    return {move.attempt: move for act in answers.plan.acts for move in act.moves}


def test_y_is_moved_for_0_8_gpu_hours() -> None:
    answers = decide(world(Y))
    (move,) = moves(answers).values()
    assert (move.attempt, move.job, move.waiter) == ("Y", "job-of-Y", "wish")
    assert move.placed == (replace(placed({"m000": 4}, pool="there"), group="main"),)
    assert (move.grace_ms, move.credit, move.instead) == (300_000, True, StopCause.PREEMPT)
    assert move.why.numbers["cost_gpu_ms"] == 4 * 12 * MINUTE_MS == 2_880_000
    admit = answers.admits["wish"]
    assert admit.contingent_on == ("Y",)
    assert (admit.why.numbers["cost_gpu_ms"], admit.why.numbers["moved"]) == (2_880_000, 1)
    assert not answers.preempts
    assert len(answers.plan.acts) == 1


def test_without_free_capacity_elsewhere_it_is_preempted() -> None:
    answers = decide(world(Y, free=3))
    assert set(answers.preempts) == {"Y"}
    assert not moves(answers)


def test_a_p0_gives_a_mover_no_time_to_save() -> None:
    answers = decide(world(Y, queued=(urgent(klass=P0),)))
    (move,) = moves(answers).values()
    assert move.grace_ms == 0
    assert move.why.numbers["cost_gpu_ms"] == 4 * 15 * MINUTE_MS  # the work since its checkpoint, and the restart


@pytest.mark.parametrize(("tenant", "credit"), [("a", False), ("b", True)])
def test_a_move_for_another_tenant_earns_credit(tenant: str, credit: bool) -> None:  # noqa: FBT001
    (move,) = moves(decide(world(runs("Y", 4, tenant=tenant)))).values()
    assert move.credit is credit


def test_who_is_moved_to_give_back_what_it_borrowed_earns_nothing() -> None:
    quotas = (quota("a", 4, None, 4), quota("b", 0, None))
    (move,) = moves(decide(world(Y, quotas=quotas))).values()
    assert (move.credit, move.instead) == (False, StopCause.RECLAIM)


def test_whom_a_move_saves_from_the_queue_is_chosen_before_a_cheaper_victim() -> None:
    cheap = runs("cheap", 4, wish=None, restart_ms=MINUTE_MS, started_ms=NOW_MS - MINUTE_MS)
    answers = decide(world(Y, cheap))
    assert set(moves(answers)) == {"Y"}
    assert not answers.preempts


def test_with_one_place_for_two_the_dearer_is_moved_and_the_other_stopped() -> None:
    small, large = runs("small", 4), runs("large", 4, restart_ms=HOUR_MS)
    answers = decide(world(small, large, queued=(urgent(8),)))
    assert set(moves(answers)) == {"large"}
    assert set(answers.preempts) == {"small"}
    assert set(answers.admits["wish"].contingent_on) == {"small", "large"}


def test_no_place_is_given_twice() -> None:
    first, second = runs("v0", 4), runs("v1", 4)
    queued = (urgent(submitted_ms=1), replace(urgent(), id="second"))
    answers = decide(world(first, second, queued=queued))
    assert set(answers.admits) == {"wish", "second"}
    assert len(moves(answers)) == 1
    assert len(answers.preempts) == 1


def test_in_one_pool_a_move_makes_a_whole_node_and_the_waiter_chooses_first() -> None:
    pools = (pool(nodes(2, 8)),)
    other = runs("other", 4, "n001", klass=P0)
    found = snapshot(pools=pools, live=(Y, other), queued=(urgent(8),))
    answers = decide(found)
    (move,) = moves(answers).values()
    assert move.placed[0].nodes == (("n001", 4),)
    assert answers.admits["wish"].placed[0].nodes == (("n000", 1),)


@pytest.mark.parametrize("more", [{"dark": True}, {"draining": True}, {"rested_until_ms": NOW_MS + 1}])
def test_nobody_is_moved_to_where_nothing_is_started(more: dict[str, Any]) -> None:
    pools = (pool(nodes(1, 4)), pool(nodes(1, 4, "m"), "there", **more))
    assert not moves(decide(world(Y, pools=pools)))


@pytest.mark.parametrize(
    "wish",
    [
        None,
        job("job-of-Y", group(4), tenant="b", placement=HERE),
        job("job-of-Y", group(4, accelerator="A100"), tenant="b"),
        job("job-of-Y", group(4), tenant="b", max_price=1),
        job("job-of-Y", group(4), tenant="b", on_hold=True),
    ],
)
def test_a_job_is_moved_to_where_it_wants_to_be_or_not_at_all(wish: Any) -> None:
    answers = decide(world(replace(Y, wish=wish)))
    assert not moves(answers)
    assert set(answers.preempts) == {"Y"}


def test_a_move_counts_its_quota_once_and_not_at_the_price_of_another_limit() -> None:
    at_its_max = (quota("a", 0, None), quota("b", 0, 4))
    assert set(moves(decide(world(Y, quotas=at_its_max)))) == {"Y"}
    pools = (pool(nodes(1, 4)), pool(nodes(1, 4, "m"), "there", of="other"))
    elsewhere: dict[str, Any] = {"pools": pools, "flavors": (flavor(), flavor("other"))}
    assert set(moves(decide(world(Y, **elsewhere)))) == {"Y"}
    forbidden = decide(world(Y, **elsewhere, quotas=(quota("b", 0, 0, of="other"),)))
    assert not moves(forbidden)
    assert set(forbidden.preempts) == {"Y"}


def test_a_promised_start_is_not_put_off_by_a_move() -> None:
    """The head of the queue is promised the other pool as soon as what runs there ends."""
    there = live("there", placed({"m000": 4}, pool="there"), tenant="c", klass=P0, ends_by_ms=NOW_MS + HOUR_MS)
    pools = (pool(nodes(1, 4)), pool(nodes(1, 8, "m"), "there"))
    head = job("head", group(8), klass=P0, tenant="c", placement=PlacementWish(pools=("there",)))
    answers = decide(snapshot(pools=pools, live=(Y, there), queued=(head, urgent())))
    assert answers.token("head") == "WaitingForCapacity"
    assert not moves(answers)


def under_way(**more: Any) -> tuple[LiveAttempt, LiveAttempt, LiveAttempt]:
    """Y has been told; its next attempt has the other place, and the waiter what it leaves."""
    stopping = replace(Y, stopping=StopCause.MOVE, state=AttemptState.STOPPING, **more)
    follows = replace(
        Y,
        id="Y-2",
        state=AttemptState.RESERVED,
        placed=(placed({"m000": 4}, pool="there"),),
        contingent_on=("Y",),
        moved_from="Y",
        started_ms=None,
        **more,
    )
    waiter = live("w", placed({"n000": 4}), tenant="a", klass=P1, state=AttemptState.PENDING, contingent_on=("Y",))
    return stopping, follows, waiter


def test_nobody_takes_the_new_place_nor_the_old_one() -> None:
    queued = (job("one", group(1), tenant="c"), job("two", group(1), tenant="c", klass=P1))
    pools = (pool(nodes(1, 4)), pool(nodes(1, 4, "m"), "there"))
    answers = decide(snapshot(pools=pools, live=under_way(), queued=queued))
    assert set(answers.waits) == {"one", "two"}
    assert not answers.preempts


def test_a_move_under_way_counts_once_for_its_tenant_and_as_two_for_the_whole() -> None:
    """org: what the waiter takes over and what the mover takes anew, 4 each. b: the mover's 4 alone."""
    stopping, follows, waiter = under_way(tenant="org/b")
    running = (stopping, follows, replace(waiter, tenant="org/a"))
    pools = (pool(nodes(1, 4)), pool(nodes(1, 4, "m"), "there"), pool(nodes(1, 8, "x"), "more"))
    queued = (
        job("of-b", group(1), tenant="org/b"),
        job("fits", group(2), tenant="org/c", order_value=1),
        job("too-much", group(1), tenant="org/c", order_value=2),
    )
    found = snapshot(pools=pools, live=running, queued=queued, quotas=(quota("org", 0, 10), quota("org/b", 0, 4)))
    answers = decide(found)
    assert answers.token("of-b") == "TenantLimit"
    assert set(answers.admits) == {"fits"}
    assert answers.token("too-much") == "TenantLimit"
    room_for_one = decide(replace(found, queued=queued[:1], quotas=(quota("org", 0, 10), quota("org/b", 0, 5))))
    assert "of-b" in room_for_one.admits


def test_a_p0_takes_the_new_place_and_the_mover_goes_to_the_queue() -> None:
    pools = (pool(nodes(1, 4)), pool(nodes(1, 4, "m"), "there"))
    there = PlacementWish(pools=("there",))
    answers = decide(snapshot(pools=pools, live=under_way(), queued=(urgent(klass=P0, placement=there),)))
    assert set(answers.preempts) == {"Y-2"}
    assert answers.preempts["Y-2"].displaced
    assert answers.admits["wish"].contingent_on == ()


def test_the_order_of_the_input_changes_nothing() -> None:
    found = world(runs("v0", 4), runs("v1", 4), queued=(urgent(8),))
    turned = replace(found, live=found.live[::-1], pools=found.pools[::-1])
    assert decide(found).plan == decide(turned).plan
