"""Settings: each is used, and each that bounds something does so at another value too."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from policies.preemption.cost import cost_of
from policies.reasons import verdict
from policies.retry import Counters, next_step
from policies.settings import DAY_MS, HOUR_MS, MINUTE_MS, PolicySettings
from policies.snapshot import Borrowing, Snapshot
from policies.vocabulary import PriorityClass, Reason
from tests.builders.policies import (
    FLAVOR,
    NOW_MS,
    P0,
    P1,
    P2,
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

POLICIES = Path(__file__).parents[3] / "policies"


@pytest.mark.parametrize("name", [field.name for field in fields(PolicySettings)])
def test_every_setting_is_read_by_some_policy(name: str) -> None:
    readers = [path for path in POLICIES.rglob("*.py") if path.name != "settings.py"]
    assert any(f"settings.{name}" in path.read_text() for path in readers)


@pytest.mark.parametrize("name", [field.name for field in fields(PolicySettings)])
def test_every_setting_is_documented(name: str) -> None:
    assert f"| `{name}` |" in (POLICIES.parent / "docs" / "POLICIES.md").read_text()


def one_victim(klass: PriorityClass = P1, **victim: Any) -> Snapshot:
    runs = live("v", placed({"n000": 8}), tenant="b", **victim)
    return snapshot(pools=(pool(nodes(1, 8)),), live=(runs,), queued=(job("wish", group(8), klass=klass),))


@pytest.mark.parametrize(
    ("victim", "spared", "told"),
    [
        ({"preemptions_today": 2}, {"max_preemptions_per_job_day": 2}, {"max_preemptions_per_job_day": 3}),
        ({"last_preempted_ms": NOW_MS - 60_000}, {"cool_down_ms": 60_001}, {"cool_down_ms": 60_000}),
        ({"ends_by_ms": NOW_MS + 60_000}, {"finish_soon_ms": 60_000}, {"finish_soon_ms": 59_999}),
        (
            {"min_runtime_ms": DAY_MS},
            {"min_runtime_cap_ms": {P0: 0, P1: 0, P2: 3 * HOUR_MS}},
            {"min_runtime_cap_ms": {P0: 0, P1: 0, P2: 2 * HOUR_MS}},
        ),
        ({}, {"max_searches_per_cycle": 0}, {"max_searches_per_cycle": 1}),
    ],
    ids=["per day", "cool-down", "finish soon", "min_runtime", "searches"],
)
def test_a_bound_holds_at_two_values(victim: dict[str, Any], spared: dict[str, Any], told: dict[str, Any]) -> None:
    assert not decide(one_victim(**victim), **spared).preempts
    assert set(decide(one_victim(**victim), **told).preempts) == {"v"}


def owner_wants(*asks: int) -> Snapshot:
    """An owner of 8 whose guarantee is lent out to eight jobs of 1."""
    borrowers = tuple(live(f"b{n}", placed({"n000": 1}), tenant="b") for n in range(8))
    queued = tuple(job(f"w{n}", group(ask), order_value=n) for n, ask in enumerate(asks))
    quotas = (quota("a", 8, None, 8), quota("b", 0, None))
    return snapshot(pools=(pool(nodes(1, 8)),), quotas=quotas, live=borrowers, queued=queued)


@pytest.mark.parametrize(("bound", "told"), [(4_000, 3), (6_000, 6)])
def test_reclaim_is_bounded_per_cycle(bound: int, told: int) -> None:
    assert len(decide(owner_wants(3, 3), max_reclaim_per_cycle=bound).preempts) == told


@pytest.mark.parametrize(("permille", "told"), [(950, 1), (0, 0)])
def test_the_trigger_of_reclaim_is_a_setting(permille: int, told: int) -> None:
    assert len(decide(owner_wants(1), reclaim_below_permille=permille).preempts) == told


def test_the_grace_of_reclaim_is_its_own() -> None:
    (told,) = decide(owner_wants(1), reclaim_grace_ms=7_000).preempts.values()
    assert told.grace_ms == 7_000


def test_the_terms_of_the_penalty_are_settings() -> None:
    often = live("v", placed({"n": 1}), preemptions_week=2, deadline_ms=NOW_MS, ends_by_ms=NOW_MS)
    for scale in (1, 2):
        settings = PolicySettings(
            frequency_penalty_ms=scale * 10,
            deadline_penalty_ms=scale * 100,
            below_min_penalty_ms=scale * 1_000,
            debt_relief_ms=scale * 2,
            debt_relief_days=3,
        )
        cost = cost_of(
            often,
            grace_ms=0,
            now_ms=NOW_MS,
            settings=settings,
            tenant_use=1_000,
            tenant_min=1_000,
            debt=99 * 1_000 * DAY_MS,
        )
        assert cost.penalty.total_ms == scale * (20 + 100 + 1_000 - 6)


def test_a_tenant_deep_in_debt_gives_way_first() -> None:
    runs = tuple(
        live(name, placed({"n000": 8}), tenant=name, restart_ms=restart, preemptions_week=1, started_ms=NOW_MS)
        for name, restart in (("b", 0), ("c", MINUTE_MS))
    )
    owed = Borrowing("a", "c", FLAVOR, 8_000, NOW_MS - 10 * DAY_MS)
    found = snapshot(pools=(pool(nodes(1, 16)),), live=runs, queued=(job("wish", group(8), klass=P0),))
    assert set(decide(found).preempts) == {"b"}
    assert set(decide(replace(found, borrowings=(owed,))).preempts) == {"c"}
    assert set(decide(replace(found, borrowings=(owed,)), debt_half_life_ms=MINUTE_MS).preempts) == {"b"}


@pytest.mark.parametrize("delay", [1, 5_000])
def test_the_pause_after_a_refusal_is_a_setting(delay: int) -> None:
    step = next_step(
        verdict(Reason.BACKEND_REFUSED),
        Counters(),
        retry_max=0,
        now_ms=NOW_MS,
        settings=PolicySettings(refused_delay_ms=delay),
    )
    assert step.not_before_ms == NOW_MS + delay


@pytest.mark.parametrize(("cap", "winner"), [(900, "aged"), (0, "first")])
def test_ageing_is_capped(cap: int, winner: str) -> None:
    aged = job("aged", order_value=9, user="u1", submitted_ms=NOW_MS - 99 * HOUR_MS)
    queued = (aged, job("first", order_value=1, user="u2"))
    answers = decide(snapshot(pools=(pool(nodes(1, 1)),), queued=queued), ageing_cap=cap)
    assert set(answers.admits) == {winner}


@pytest.mark.parametrize(("step", "winner"), [(100, "first"), (10, "aged")])
def test_the_step_of_ageing_is_a_setting(step: int, winner: str) -> None:
    aged = job("aged", order_value=9, user="u1", submitted_ms=NOW_MS - HOUR_MS)
    queued = (aged, job("first", order_value=1, user="u2"))
    answers = decide(snapshot(pools=(pool(nodes(1, 1)),), queued=queued), ageing_step=step)
    assert set(answers.admits) == {winner}


@pytest.mark.parametrize("most", [3, 200])
def test_only_the_cheapest_candidates_are_looked_at(most: int) -> None:
    runs = tuple(live(f"v{n:02d}", placed({"n000": 1}), tenant="b", restart_ms=n) for n in range(16))
    found = snapshot(pools=(pool(nodes(1, 16)),), live=runs, queued=(job("wish", group(4), klass=P0),))
    told = decide(found, max_candidates=most).preempts
    assert len(told) == (0 if most < 4 else 4)
