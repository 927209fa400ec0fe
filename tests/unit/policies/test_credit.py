"""POLICIES §8 in integers."""

from typing import Any

import pytest

from policies.credit.amount import credit_of, earns, redeemable_gpu_ms
from policies.settings import HOUR_MS, MINUTE_MS, PolicySettings
from policies.vocabulary import StopCause
from tests.builders.policies import NOW_MS


def earned(gpus: int, **more: Any) -> int:
    values: dict[str, Any] = {
        "started_ms": NOW_MS - 5 * HOUR_MS,
        "ended_ms": NOW_MS,
        "checkpoint_ms": None,
        "save_ms": 0,
        "restart_ms": 0,
        "preemptions_in_period": 0,
        "settings": PolicySettings(),
        **more,
    }
    return credit_of(milli_gpu=gpus * 1_000, **values).gpu_ms


@pytest.mark.parametrize(
    ("gpus", "more", "gpu_ms"),
    [
        (8, {"checkpoint_ms": NOW_MS - HOUR_MS, "restart_ms": 30 * MINUTE_MS}, 43_200_000),  # X
        (4, {"checkpoint_ms": NOW_MS - 5 * MINUTE_MS, "restart_ms": 10 * MINUTE_MS}, 3_600_000),  # Y
        (2, {"started_ms": NOW_MS - 5 * MINUTE_MS, "restart_ms": 15 * MINUTE_MS}, 2_400_000),  # Z
        (4, {"checkpoint_ms": NOW_MS, "save_ms": 2 * MINUTE_MS, "restart_ms": 10 * MINUTE_MS}, 2_880_000),
        (8, {"restart_ms": 10 * MINUTE_MS}, 33_600_000),  # no checkpoint for 5 h: the gap is capped at 1 h
    ],
)
def test_the_values_of_the_credit(gpus: int, more: dict[str, Any], gpu_ms: int) -> None:
    assert earned(gpus, **more) == gpu_ms


def test_the_cap_of_the_gap_is_a_setting() -> None:
    assert earned(1, settings=PolicySettings(max_credited_gap_ms=2 * HOUR_MS)) == 2 * HOUR_MS


def test_a_checkpoint_of_an_earlier_attempt_never_widens_the_gap() -> None:
    start = NOW_MS - 5 * MINUTE_MS
    assert earned(1, started_ms=start, checkpoint_ms=NOW_MS - 3 * HOUR_MS) == 5 * MINUTE_MS


def test_a_claim_from_the_future_lowers_the_credit_to_nothing_and_never_below() -> None:
    assert earned(1, checkpoint_ms=NOW_MS + HOUR_MS) == 0


def test_what_never_started_earns_nothing() -> None:
    assert earned(8, started_ms=None, restart_ms=HOUR_MS) == 0


@pytest.mark.parametrize(("before", "percent"), [(2, 100), (3, 110)])
def test_the_bonus_comes_when_preempted_more_than_three_times(before: int, percent: int) -> None:
    assert earned(1, preemptions_in_period=before) == HOUR_MS * percent // 100


def test_the_bonus_is_a_setting() -> None:
    assert earned(1, settings=PolicySettings(frequency_after=0, frequency_bonus_percent=50)) == HOUR_MS * 3 // 2


@pytest.mark.parametrize("cause", list(StopCause))
def test_only_a_preemption_or_move_for_another_tenant_earns(cause: StopCause) -> None:
    assert earns(cause, "a", "b") is (cause in {StopCause.PREEMPT, StopCause.MOVE})
    assert not earns(cause, "a", "a")
    assert not earns(cause, "a", "b", by_operator=True)


def test_a_period_redeems_at_most_its_share_of_what_the_lenders_may_lend() -> None:
    assert redeemable_gpu_ms(10**12, 100_000, HOUR_MS, PolicySettings()) == 10 * HOUR_MS
    assert redeemable_gpu_ms(10**12, 100_000, HOUR_MS, PolicySettings(credit_share_percent=20)) == 20 * HOUR_MS
    assert redeemable_gpu_ms(5, 100_000, HOUR_MS, PolicySettings()) == 5
    assert redeemable_gpu_ms(-5, 100_000, HOUR_MS, PolicySettings()) == 0
