"""POLICIES §7: costs, scores and the sets that are chosen; QL-04."""

from dataclasses import replace
from typing import Any

import pytest

from policies.preemption.cost import cost_of
from policies.settings import HOUR_MS, MINUTE_MS, PolicySettings
from policies.snapshot import LiveAttempt, Override, Snapshot
from policies.vocabulary import AttemptState, PriorityClass, StopCause
from tests.builders.policies import (
    NOW_MS,
    P0,
    P1,
    P2,
    Answers,
    decide,
    group,
    job,
    live,
    nodes,
    placed,
    pool,
    quota,
    snapshot,
)

SETTINGS = PolicySettings()


def victim(name: str, count: int, age: int, restart: int, **more: Any) -> LiveAttempt:
    """GPUs on the one node; ages and restarts in minutes."""
    values: dict[str, Any] = {
        "tenant": "b",
        "started_ms": NOW_MS - 5 * HOUR_MS,
        "checkpoint_ms": NOW_MS - age * MINUTE_MS,
        "checkpoint_interval_ms": HOUR_MS,
        "restart_ms": restart * MINUTE_MS,
        **more,
    }
    return live(name, placed({"n000": count}), **values)


X = victim("X", 8, 60, 30)
Y = victim("Y", 4, 5, 10)
Z = victim("Z", 2, 0, 15, checkpoint_ms=None, started_ms=NOW_MS - 5 * MINUTE_MS)


@pytest.mark.parametrize(
    ("attempt", "gpu_ms", "score_milli"), [(X, 43_200_000, 5_333), (Y, 3_600_000, 16_000), (Z, 2_400_000, 6_000)]
)
def test_costs_and_scores_without_grace(attempt: LiveAttempt, gpu_ms: int, score_milli: int) -> None:
    cost = cost_of(attempt, grace_ms=0, now_ms=NOW_MS, settings=SETTINGS)
    assert (cost.gpu_ms, cost.score_milli) == (gpu_ms, score_milli)


@pytest.mark.parametrize(("attempt", "score_milli"), [(X, 15_000), (Y, 20_000)])
def test_scores_with_300_s_of_grace_and_saves_of_120_s(attempt: LiveAttempt, score_milli: int) -> None:
    saves = replace(attempt, save_ms=120_000)
    assert cost_of(saves, grace_ms=300_000, now_ms=NOW_MS, settings=SETTINGS).score_milli == score_milli


def test_a_grace_that_does_not_cover_the_save_loses_the_work() -> None:
    slow = replace(X, save_ms=301_000)
    assert cost_of(slow, grace_ms=300_000, now_ms=NOW_MS, settings=SETTINGS).lost_ms == HOUR_MS


@pytest.mark.parametrize(
    ("interval_ms", "lost_ms"),
    [
        (None, HOUR_MS),  # nothing declared: the checkpoint's age
        (HOUR_MS, HOUR_MS),
        (30 * MINUTE_MS, HOUR_MS),
        (20 * MINUTE_MS, 40 * MINUTE_MS),  # twice what it declared: it should have saved by then
        (5 * MINUTE_MS, 10 * MINUTE_MS),
    ],
)
def test_work_counts_as_lost_up_to_twice_the_declared_interval(interval_ms: int | None, lost_ms: int) -> None:
    declared = replace(X, checkpoint_interval_ms=interval_ms)
    assert cost_of(declared, grace_ms=0, now_ms=NOW_MS, settings=SETTINGS).lost_ms == lost_ms


def test_work_counts_as_lost_up_to_the_gap_that_is_credited() -> None:
    bounded = PolicySettings(max_credited_gap_ms=15 * MINUTE_MS)
    assert cost_of(X, grace_ms=0, now_ms=NOW_MS, settings=bounded).lost_ms == 15 * MINUTE_MS


def full(*attempts: LiveAttempt, size: int = 14) -> dict[str, Any]:
    return {"pools": (pool(nodes(1, size)),), "live": attempts}


@pytest.mark.parametrize(
    ("need", "chosen", "cost_gpu_ms"),
    [
        (2, {"Z"}, 2_400_000),
        (4, {"Y"}, 3_600_000),
        (6, {"Y", "Z"}, 6_000_000),
        (8, {"X"}, 43_200_000),
        (10, {"X", "Z"}, 45_600_000),
        (12, {"X", "Y"}, 46_800_000),
    ],
)
def test_the_cheapest_set_is_chosen(need: int, chosen: set[str], cost_gpu_ms: int) -> None:
    answers = decide(snapshot(**full(X, Y, Z), queued=(job("wish", group(need), klass=P0),)))
    assert set(answers.preempts) == chosen
    admit = answers.admits["wish"]
    assert set(admit.contingent_on) == chosen
    assert admit.why.numbers["cost_gpu_ms"] == cost_gpu_ms
    assert len(answers.plan.acts) == 1


@pytest.mark.parametrize(
    ("waiter", "running", "grace_ms"),
    [
        (P0, P1, 0),
        (P0, P2, 0),
        (P1, P2, 300_000),
        (P0, P0, None),
        (P1, P0, None),
        (P1, P1, None),
        (P2, P1, None),
        (P2, P2, None),
    ],
)
def test_which_class_preempts_which_and_with_what_grace(
    waiter: PriorityClass, running: PriorityClass, grace_ms: int | None
) -> None:
    runs = replace(X, klass=running)
    answers = decide(snapshot(**full(runs, size=8), queued=(job("wish", group(8), klass=waiter),)))
    assert [one.grace_ms for one in answers.preempts.values()] == ([] if grace_ms is None else [grace_ms])
    assert ("wish" in answers.admits) is (grace_ms is not None)


def test_another_grace_is_what_the_victims_get() -> None:
    grace = {P0: 0, P1: 60_000, P2: 0}
    answers = decide(snapshot(**full(X, size=8), queued=(job("wish", group(8), klass=P1),)), grace_ms=grace)
    assert answers.preempts["X"].grace_ms == 60_000


def test_credit_is_for_another_tenants_victim_only() -> None:
    mine, theirs = replace(Y, id="mine", tenant="a"), replace(Y, id="theirs")
    answers = decide(snapshot(**full(mine, theirs, size=8), queued=(job("wish", group(8), klass=P1),)))
    assert {name: one.credit for name, one in answers.preempts.items()} == {"mine": False, "theirs": True}


def test_scattered_gpus_are_no_answer_but_one_node_is() -> None:
    cheap = [live(f"cheap{n}", placed({f"n00{n}": 4}), tenant="b", started_ms=NOW_MS) for n in range(2)]
    dear = [live(f"dear{n}", placed({f"n00{n}": 4}), tenant="b", restart_ms=(n + 1) * HOUR_MS) for n in range(2)]
    found = snapshot(pools=(pool(nodes(2, 8)),), live=(*cheap, *dear), queued=(job("wish", group(1, 8), klass=P0),))
    assert set(decide(found).preempts) == {"cheap0", "dear0"}


def test_a_gang_counts_whole() -> None:
    gang = live("gang", placed({"n000": 1, "n001": 1, "n002": 1}, each=8), tenant="b", restart_ms=MINUTE_MS)
    single = live("single", placed({"n003": 8}), tenant="b", restart_ms=2 * MINUTE_MS)
    found = snapshot(pools=(pool(nodes(4, 8)),), live=(gang, single), queued=(job("wish", group(1, 8), klass=P0),))
    assert set(decide(found).preempts) == {"single"}


def test_beyond_the_exact_search_no_member_is_redundant() -> None:
    many = [live(f"v{n:02d}", placed({f"n{n // 8:03d}": 1}), tenant="b", restart_ms=(n % 7) * 1_000) for n in range(32)]
    found = snapshot(pools=(pool(nodes(4, 8)),), live=tuple(many), queued=(job("wish", group(1, 8), klass=P0),))
    chosen = decide(found).preempts
    assert len(chosen) == 8
    assert len({many[int(name[1:])].placed[0].nodes[0][0] for name in chosen}) == 1


def wish(attempt: LiveAttempt, klass: PriorityClass = P1, **more: Any) -> Answers:
    found = snapshot(pools=(pool(nodes(1, 8)),), live=(attempt,), queued=(job("wish", group(8), klass=klass),), **more)
    return decide(found)


@pytest.mark.parametrize(
    "bound",
    [
        {"min_runtime_ms": HOUR_MS, "started_ms": NOW_MS - 30 * MINUTE_MS},
        {"preemptions_today": 3},
        {"last_preempted_ms": NOW_MS - 29 * MINUTE_MS},
        {"ends_by_ms": NOW_MS + 9 * MINUTE_MS},
        {"stopping": StopCause.CANCEL},
        {"state": AttemptState.STOPPING},
        {"state": AttemptState.RESERVED},
    ],
)
def test_the_bounds_spare_a_victim(bound: dict[str, Any]) -> None:
    assert set(wish(X).preempts) == {"X"}
    assert not wish(replace(X, **bound)).preempts


def test_a_promised_runtime_is_capped_per_class_and_does_not_hold_against_p0() -> None:
    endless = replace(X, min_runtime_ms=99 * HOUR_MS, started_ms=NOW_MS - 30 * MINUTE_MS)
    assert not wish(endless).preempts
    assert set(wish(endless, P0).preempts) == {"X"}
    assert set(wish(replace(endless, started_ms=NOW_MS - HOUR_MS)).preempts) == {"X"}


def test_a_job_about_to_finish_is_spared_once() -> None:
    soon = replace(X, ends_by_ms=NOW_MS + 9 * MINUTE_MS)
    assert set(wish(replace(soon, finish_spared=True)).preempts) == {"X"}


@pytest.mark.parametrize("more", [{"place_first": False}, {"no_preemption_until_ms": NOW_MS + 1}, {"dark": True}])
def test_a_pool_that_cannot_place_first_preempts_nobody(more: dict[str, Any]) -> None:
    found = snapshot(pools=(pool(nodes(1, 8), **more),), live=(X,), queued=(job("wish", group(8), klass=P0),))
    answers = decide(found)
    assert not answers.preempts
    assert "wish" in answers.waits


def test_an_operator_forbids_and_forces_until_the_word_expires() -> None:
    forbid = Override("Z", force=False, until_ms=NOW_MS + 1, reason="demo")
    force = Override("X", force=True, until_ms=NOW_MS + 1, reason="demo")
    queued = (job("wish", group(2), klass=P0),)
    assert set(decide(snapshot(**full(X, Y, Z), queued=queued, overrides=(forbid,))).preempts) == {"Y"}
    forced = decide(snapshot(**full(X, Y, Z), queued=queued, overrides=(force,)))
    assert set(forced.preempts) == {"X"}
    assert forced.preempts["X"].credit is False
    over = replace(forbid, until_ms=NOW_MS)
    assert set(decide(snapshot(**full(X, Y, Z), queued=queued, overrides=(over,))).preempts) == {"Z"}


def test_a_requeued_victim_preempts_nobody_in_the_same_cycle() -> None:
    queued = (job("wish", group(2), klass=P0, preempted_in_cycle=True),)
    assert not decide(snapshot(**full(X, Y, Z), queued=queued)).preempts


def test_two_waiters_never_share_a_victim() -> None:
    queued = tuple(job(f"w{n}", group(4), klass=P0) for n in range(2))
    answers = decide(snapshot(**full(X, Y, Z), queued=queued))
    taken = [name for admit in answers.admits.values() for name in admit.contingent_on]
    assert len(taken) == len(set(taken))
    assert set(answers.admits) == {"w0", "w1"}


def test_the_cheapest_pool_wins_and_the_others_are_named() -> None:
    cheap = live("cheap", placed({"m000": 8}, pool="there"), tenant="b", restart_ms=MINUTE_MS, started_ms=NOW_MS)
    found = snapshot(
        pools=(pool(nodes(1, 8)), pool(nodes(1, 8, "m"), "there")),
        live=(X, cheap),
        queued=(job("wish", group(8), klass=P0),),
    )
    answers = decide(found)
    assert set(answers.preempts) == {"cheap"}
    assert answers.admits["wish"].why.numbers["cost_gpu_ms_in_pool"] == 43_200_000


def test_the_penalty_has_its_terms_and_is_never_below_0() -> None:
    often = replace(X, preemptions_week=2, deadline_ms=NOW_MS + HOUR_MS, ends_by_ms=NOW_MS + HOUR_MS)
    day_of_debt = 8_000 * 24 * HOUR_MS
    cost = cost_of(
        often, grace_ms=0, now_ms=NOW_MS, settings=SETTINGS, tenant_use=8_000, tenant_min=8_000, debt=day_of_debt
    )
    assert cost.penalty.frequency_ms == HOUR_MS // 2
    assert cost.penalty.deadline_ms == HOUR_MS
    assert cost.penalty.below_min_ms == HOUR_MS // 2
    assert cost.penalty.debt_relief_ms == HOUR_MS // 10
    assert cost.penalty.total_ms == 2 * HOUR_MS - HOUR_MS // 10
    deep = cost_of(X, grace_ms=0, now_ms=NOW_MS, settings=SETTINGS, tenant_min=1_000, debt=99 * day_of_debt)
    assert (deep.penalty.debt_relief_ms, deep.penalty.total_ms) == (HOUR_MS // 2, 0)


def test_an_allowance_that_is_used_up_lowers_the_class_of_the_next_renewal() -> None:
    from policies.snapshot import Allowance

    an_hour = 8 * HOUR_MS
    short = Allowance("a", P1, an_hour - 1)
    assert not wish(X, P1, allowances=(short,)).preempts
    enough = wish(X, P1, allowances=(Allowance("a", P1, an_hour),))
    assert set(enough.preempts) == {"X"}
    assert enough.admits["wish"].klass is None
    free = snapshot(pools=(pool(nodes(1, 8)),), queued=(job("wish", klass=P1),), allowances=(Allowance("a", P1, 0),))
    assert decide(free).admits["wish"].klass is P2


def test_what_runs_in_a_class_has_its_hour_of_the_allowance_too() -> None:
    from policies.snapshot import Allowance

    runs = live("mine", placed({"n000": 6}), tenant="a", klass=P1)
    found = snapshot(
        pools=(pool(nodes(2, 8)),),
        live=(runs,),
        queued=(job("wish", group(4), klass=P1),),
        allowances=(Allowance("a", P1, 10 * HOUR_MS - 1),),
    )
    assert decide(found).admits["wish"].klass is P2
    more = replace(found, allowances=(Allowance("a", P1, 10 * HOUR_MS),))
    assert decide(more).admits["wish"].klass is None


def test_nobody_is_told_to_go_while_enough_is_leaving_already_except_for_p0() -> None:
    leaving = replace(X, id="leaving", stopping=StopCause.CANCEL, state=AttemptState.STOPPING)
    for klass, told in ((P1, set()), (P0, {"X"})):
        found = snapshot(**full(X, leaving, size=16), queued=(job("wish", group(8), klass=klass),))
        assert set(decide(found).preempts) == told


def test_a_gang_that_needs_more_victims_than_a_cycles_bound_gets_a_cycle_of_its_own() -> None:
    many = tuple(live(f"v{n}", placed({"n000": 1}), tenant="b") for n in range(8))
    found = snapshot(**full(*many, size=8), queued=(job("wish", group(8), klass=P0),))
    assert len(decide(found, max_victims_per_cycle=2).preempts) == 8
    two = (job("first", group(1), klass=P0, submitted_ms=1), job("then", group(2), klass=P0))
    assert set(decide(replace(found, queued=two), max_victims_per_cycle=2).admits) == {"first"}


def test_what_a_waiter_and_its_victims_both_hold_is_used_once_above_both() -> None:
    """org has a max of 8: the waiter's 8 and the victims' 8 are the same 8, so that 4 of 12 are left."""
    victims = tuple(
        live(f"v{n}", placed({"n000": 4}), tenant="org/b", stopping=StopCause.PREEMPT, state=AttemptState.STOPPING)
        for n in range(2)
    )
    waiter = live("w", placed({"n000": 8}), tenant="org/a", state=AttemptState.PENDING, contingent_on=("v0", "v1"))
    found = snapshot(
        pools=(pool(nodes(2, 8)),),
        quotas=(quota("org", 0, 12),),
        live=(*victims, waiter),
        queued=(job("wish", group(4), tenant="org/c"), job("more", group(1), tenant="org/c", order_value=1)),
    )
    answers = decide(found)
    assert set(answers.admits) == {"wish"}
    assert answers.token("more") == "TenantLimit"


def evictions(second: int, waiter: bool, a_gone: bool, b_gone: bool) -> Answers:  # noqa: FBT001
    """QL-04 as it stands at one second after the first round."""
    stopping: dict[str, Any] = {"stopping": StopCause.RECLAIM, "state": AttemptState.STOPPING, "tenant": "q2"}
    a, b = live("wlA", placed({"n000": 4}), **stopping), live("wlB", placed({"n000": 4}), **stopping)
    left = (*(() if a_gone else (a,)), *(() if b_gone else (b,)))
    p = live("P", placed({"n000": 8}), tenant="q1", state=AttemptState.PENDING, contingent_on=tuple(v.id for v in left))
    queued = (job("wlA", group(4), tenant="q2"),) if a_gone else ()
    found = snapshot(
        pools=(pool(nodes(1, 8)),),
        quotas=(quota("q1", 8, None, 8), quota("q2", 0, 8)),
        live=(*left, *((p,) if waiter else ())),
        queued=queued,
    )
    return decide(found, NOW_MS + second * 1_000)


def test_ql_04_what_the_first_victim_frees_is_kept_for_the_waiter() -> None:
    first = snapshot(
        pools=(pool(nodes(1, 8)),),
        quotas=(quota("q1", 8, None, 8), quota("q2", 0, 8)),
        live=(live("wlA", placed({"n000": 4}), tenant="q2"), live("wlB", placed({"n000": 4}), tenant="q2")),
        queued=(job("P", group(8), tenant="q1"),),
    )
    assert set(decide(first).preempts) == {"wlA", "wlB"}
    for second in range(10, 40):
        answers = evictions(second, waiter=True, a_gone=True, b_gone=False)
        assert set(answers.waits) == {"wlA"}
        assert not answers.preempts
    assert set(evictions(40, waiter=True, a_gone=True, b_gone=True).waits) == {"wlA"}


def test_ql_04_the_waiter_gone_the_first_victim_is_admitted_again() -> None:
    answers = evictions(20, waiter=False, a_gone=True, b_gone=False)
    assert set(answers.admits) == {"wlA"}


def test_what_a_victim_frees_beyond_the_need_is_nobodys_before_it_is_gone() -> None:
    queued = (job("wish", group(2), klass=P0), job("other", group(4), tenant="c"))
    answers = decide(snapshot(**full(X, size=8), queued=queued))
    assert set(answers.admits) == {"wish"}
    assert "other" in answers.waits


def test_a_pool_that_places_by_itself_is_promised_by_its_total() -> None:
    runs = live("runs", replace(placed({"n000": 8}), nodes=()), tenant="b")
    found: Snapshot = snapshot(
        pools=(pool(nodes(1, 8), places_nodes=False),), live=(runs,), queued=(job("wish", group(8), klass=P0),)
    )
    answers = decide(found)
    assert set(answers.preempts) == {"runs"}
    assert answers.admits["wish"].placed[0].nodes == ()


@pytest.mark.parametrize(("idle", "told"), [(0, {"v1"}), (2, set())])
def test_a_higher_class_takes_what_its_victims_were_guaranteed_but_no_idle_guarantee(idle: int, told: set[str]) -> None:
    """b keeps 4 and lends nothing. Of its running 2 the waiter may have one; of its idle 2 it may have none."""
    runs = tuple(live(f"v{n}", placed({"n000": 1}), tenant="b", restart_ms=9 - n) for n in range(2))
    rest = live("rest", placed({"n000": 2 - idle}), tenant="b", klass=P0) if idle < 2 else None
    found = snapshot(
        pools=(pool(nodes(1, 4)),),
        quotas=(quota("b", 4, 4, 0),),
        live=(*runs, *((rest,) if rest else ())),
        queued=(job("wish", group(1 + idle), tenant="a", klass=P1),),
    )
    assert set(decide(found).preempts) == told


def test_a_victim_whose_tenant_would_fall_below_its_min_costs_more() -> None:
    owner = live("owner", placed({"n000": 4}), tenant="b", started_ms=NOW_MS)
    guest = live("guest", placed({"n000": 4}), tenant="c", started_ms=NOW_MS, restart_ms=20 * MINUTE_MS)
    found = snapshot(pools=(pool(nodes(1, 8)),), live=(owner, guest), queued=(job("wish", group(4), klass=P1),))
    assert set(decide(found).preempts) == {"owner"}
    assert set(decide(replace(found, quotas=(quota("b", 4, None, 4),))).preempts) == {"guest"}
