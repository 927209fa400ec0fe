"""POLICIES §9, every value that must come out, and what holds for all sizes."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.elastic.batch import batch
from policies.elastic.growth import gain_ms, keeps, worthwhile
from policies.elastic.resume import Layout, may_resume
from policies.elastic.sizes import Sizes, members_step, step_of
from policies.settings import HOUR_MS, MINUTE_MS


def test_a_job_starts_at_the_largest_valid_size_that_fits() -> None:
    sizes = Sizes(min=16, target=64, max=64, step=8)
    assert sizes.start(56) == 56
    assert sizes.start(59) == 56
    assert sizes.start(1000) == 64
    assert sizes.start(16) == 16
    assert sizes.start(15) is None


@pytest.mark.parametrize(("tp", "pp", "after"), [(8, 1, 48), (8, 4, 32)])
def test_to_give_up_16_of_64_whole_model_replicas_go(tp: int, pp: int, after: int) -> None:
    sizes = Sizes(min=16, target=64, max=64, step=step_of(tp * pp, 1))
    assert sizes.give_up(64, 16) == after


def test_nothing_is_given_up_below_min() -> None:
    assert Sizes(min=48, target=64, max=64, step=8).give_up(64, 17) is None


def test_two_of_eight_nodes_of_eight_are_revoked_and_48_go_on() -> None:
    sizes = Sizes(min=32, target=64, max=64, step=8)
    assert sizes.survive(64, 2 * 8) == 48
    assert sizes.survive(64, 5 * 8) is None


@pytest.mark.parametrize(
    ("model", "multiple", "each", "step"), [(1, 1, 0, 1), (8, 1, 8, 1), (32, 1, 8, 4), (4, 2, 8, 2), (12, 1, 8, 3)]
)
def test_the_step_in_members_makes_whole_model_replicas(model: int, multiple: int, each: int, step: int) -> None:
    assert members_step(model, multiple, each) == step


@pytest.mark.parametrize(
    ("dp", "now", "accumulation", "told", "scale"),
    [
        (8, 4, 1, 2, "1"),
        (8, 4, 3, 6, "1"),
        (8, 6, 3, 4, "1"),
        (8, 6, 1, 1, "3/4"),
        (4, 8, 2, 1, "1"),
        (4, 8, 1, 1, "2"),
        (8, 8, 5, 5, "1"),
    ],
)
def test_the_batch_follows_the_size(dp: int, now: int, accumulation: int, told: int, scale: str) -> None:
    found = batch(dp, now, accumulation)
    assert (found.accumulation, found.scale_text) == (told, scale)


@given(dp=st.integers(1, 512), now=st.integers(1, 512), accumulation=st.integers(1, 64))
def test_the_global_batch_and_the_rate_change_alike(dp: int, now: int, accumulation: int) -> None:
    found = batch(dp, now, accumulation)
    assert found.lr_scale == Fraction(now * found.accumulation, dp * accumulation)
    others = [max(1, found.accumulation + step) for step in (-1, 1)]
    missed = abs(now * found.accumulation - dp * accumulation)
    assert all(missed <= abs(now * other - dp * accumulation) for other in others), "no other comes nearer"


def test_a_growth_from_32_to_64_at_1_3_is_not_kept_and_at_1_4_is() -> None:
    assert not keeps((32, 1000), (64, 1300))
    assert not keeps((32, 1000), (64, 1399))
    assert keeps((32, 1000), (64, 1400))


def test_a_growth_must_gain_more_than_three_restarts() -> None:
    assert gain_ms(32, 64, 2 * HOUR_MS) == HOUR_MS
    assert worthwhile(32, 64, 2 * HOUR_MS, 19 * MINUTE_MS)
    assert not worthwhile(32, 64, 2 * HOUR_MS, 20 * MINUTE_MS), "exactly three restarts do not exceed them"
    assert worthwhile(32, 64, None, HOUR_MS), "a job without an end goes on for long"


@pytest.mark.parametrize(
    ("wanted", "reshardable", "may"),
    [
        (Layout(8, 2, 4), False, True),
        (Layout(8, 2, 2), False, False),
        (Layout(8, 2, 2), True, True),
        (Layout(4, 2, 4), True, False),
        (Layout(8, 1, 4), True, False),
    ],
)
def test_who_may_resume_at_another_size(wanted: Layout, *, reshardable: bool, may: bool) -> None:
    assert may_resume(Layout(8, 2, 4), wanted, reshardable=reshardable) is may


@given(
    least=st.integers(1, 64),
    more=st.integers(0, 64),
    most=st.integers(0, 64),
    step=st.integers(1, 16),
    size=st.integers(-8, 200),
)
def test_what_is_found_is_valid_and_nothing_valid_is_nearer(
    least: int, more: int, most: int, step: int, size: int
) -> None:
    sizes = Sizes(least, least + more, least + more + most, step)
    valid = [one for one in range(1, sizes.max + 1) if sizes.valid(one)]
    assert sizes.at_most(size) == max((one for one in valid if one <= size), default=None)
    assert sizes.at_least(size) == min((one for one in valid if one >= size), default=None)
