"""What an end is called, and what follows it."""

from typing import Any

import pytest

from policies.arrays import array_end, chunks
from policies.endings import reason_of
from policies.reasons import CAUSES, verdict
from policies.retry import Counters, Next, backoff_ms, next_step
from policies.settings import HOUR_MS, PolicySettings
from policies.vocabulary import JobState, Reason, StopCause

NOW = 1_800_000_000_000
SETTINGS = PolicySettings()


def ending(**more: Any) -> Reason:
    values: dict[str, Any] = {
        "stop_cause": None,
        "seen_cause": None,
        "exit_code": None,
        "final": False,
        "checkpoints": True,
        "previous_no_progress": False,
        "newer_checkpoint": True,
        **more,
    }
    return reason_of(**values)


@pytest.mark.parametrize("cause", list(StopCause))
@pytest.mark.parametrize("exit_code", [None, 0, 1, 75, 137, 143])
def test_after_a_stop_we_asked_for_the_cause_decides(cause: StopCause, exit_code: int | None) -> None:
    assert ending(stop_cause=cause, exit_code=exit_code, seen_cause=Reason.NON_ZERO_EXIT) is CAUSES[cause]


@pytest.mark.parametrize("cause", [StopCause.PREEMPT, StopCause.REVOCATION, StopCause.CANCEL, None])
def test_a_final_mark_beside_the_newest_checkpoint_is_completion(cause: StopCause | None) -> None:
    assert ending(stop_cause=cause, exit_code=143, final=True) is Reason.COMPLETED


def test_a_job_without_checkpoints_that_exits_0_in_its_notice_is_done() -> None:
    assert ending(stop_cause=StopCause.PREEMPT, exit_code=0, checkpoints=False) is Reason.COMPLETED
    assert ending(stop_cause=StopCause.PREEMPT, exit_code=0, checkpoints=True) is Reason.PREEMPTED


def test_a_users_word_outweighs_a_command_that_leaves_politely() -> None:
    assert ending(stop_cause=StopCause.REQUEUE, exit_code=0, checkpoints=False) is Reason.REQUEUED
    assert ending(stop_cause=StopCause.CANCEL, exit_code=0, checkpoints=False) is Reason.USER_CANCELLED


@pytest.mark.parametrize("seen", [Reason.NODE_LOST, Reason.EVICTED, Reason.BACKEND_PREEMPTED, Reason.GPU_XID])
def test_a_stop_because_of_a_revocation_keeps_what_the_backend_named(seen: Reason) -> None:
    assert ending(stop_cause=StopCause.REVOCATION, seen_cause=seen, exit_code=137) is seen
    assert ending(stop_cause=StopCause.PREEMPT, seen_cause=seen, exit_code=137) is Reason.PREEMPTED


@pytest.mark.parametrize("exit_code", [None, 0, 75, 137, 143])
def test_an_eviction_is_not_a_failure_whatever_code_the_job_left_by(exit_code: int | None) -> None:
    assert ending(seen_cause=Reason.EVICTED, exit_code=exit_code) is Reason.EVICTED


def test_75_means_saved_and_the_second_time_without_a_newer_checkpoint_no_progress() -> None:
    assert ending(exit_code=75) is Reason.SAVED_AND_EXITED
    assert ending(exit_code=75, newer_checkpoint=False) is Reason.SAVED_AND_EXITED
    assert ending(exit_code=75, previous_no_progress=True) is Reason.SAVED_AND_EXITED
    assert ending(exit_code=75, previous_no_progress=True, newer_checkpoint=False) is Reason.NO_PROGRESS


@pytest.mark.parametrize(
    ("exit_code", "seen", "reason"),
    [
        (0, None, Reason.COMPLETED),
        (0, Reason.COMPLETED, Reason.COMPLETED),
        (1, None, Reason.NON_ZERO_EXIT),
        (1, Reason.COMPLETED, Reason.NON_ZERO_EXIT),
        (137, Reason.OUT_OF_MEMORY, Reason.OUT_OF_MEMORY),
        (137, None, Reason.NON_ZERO_EXIT),
        (127, None, Reason.LAUNCH_FAILED),
        (None, Reason.TIME_LIMIT, Reason.TIME_LIMIT),
        (None, Reason.COMPLETED, Reason.COMPLETED),
        (None, None, Reason.LOST),
    ],
)
def test_an_end_of_its_own(exit_code: int | None, seen: Reason | None, reason: Reason) -> None:
    assert ending(exit_code=exit_code, seen_cause=seen) is reason


def step(reason: Reason, failures: int = 0, retry_max: int = 3, **more: Any) -> Next:
    counters = Counters(failures=failures)
    return next_step(verdict(reason), counters, retry_max=retry_max, now_ms=NOW, settings=SETTINGS, **more)


def test_ql_06_five_preemptions_leave_three_retries_untouched() -> None:
    counters = Counters()
    for _ in range(5):
        after = next_step(verdict(Reason.PREEMPTED), counters, retry_max=3, now_ms=NOW, settings=SETTINGS)
        assert after.job_state is JobState.QUEUED
        assert after.not_before_ms is None
        counters = Counters(after.failures, after.preemptions, after.revocations)
    done = next_step(verdict(Reason.COMPLETED), counters, retry_max=3, now_ms=NOW, settings=SETTINGS)
    assert done == Next(JobState.SUCCEEDED, None, 0, 5, 0)


def test_a_revocation_is_counted_as_one_and_tried_again_at_once() -> None:
    assert step(Reason.SPOT_REVOKED, failures=2) == Next(JobState.QUEUED, None, 2, 0, 1)


def test_failures_wait_longer_each_time_up_to_a_bound_and_then_end_the_job() -> None:
    base, cap = SETTINGS.backoff_base_ms, SETTINGS.backoff_cap_ms
    delays = [step(Reason.NON_ZERO_EXIT, failures=n, retry_max=99).not_before_ms for n in (0, 1, 2, 20, 90)]
    assert delays == [NOW + base, NOW + 2 * base, NOW + 4 * base, NOW + cap, NOW + cap]
    assert step(Reason.NON_ZERO_EXIT, failures=3) == Next(JobState.FAILED, None, 4, 0, 0)
    assert step(Reason.NON_ZERO_EXIT, retry_max=0).job_state is JobState.FAILED


def test_another_base_delays_otherwise() -> None:
    assert backoff_ms(3, PolicySettings(backoff_base_ms=1_000, backoff_cap_ms=HOUR_MS)) == 4_000


def test_no_attempt_follows_a_cancel_that_came_while_it_stopped_for_another_cause() -> None:
    assert step(Reason.PREEMPTED, cancel_wanted=True).job_state is JobState.CANCELLED
    assert step(Reason.COMPLETED, cancel_wanted=True).job_state is JobState.SUCCEEDED


def test_a_refused_launch_costs_nothing_but_a_pause() -> None:
    assert step(Reason.BACKEND_REFUSED) == Next(JobState.QUEUED, NOW + SETTINGS.refused_delay_ms, 0, 0, 0)


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_next_step_that_the_job_table_knows(reason: Reason) -> None:
    after = step(reason, retry_max=0)
    assert after.job_state in {*JobState} - {JobState.ADMITTED, JobState.RUNNING, JobState.STOPPING}


@pytest.mark.parametrize(
    ("size", "limit", "expected"),
    [
        (1, 1_000, ((0, 0),)),
        (1_000, 5_000, ((0, 999),)),
        (1_001, 1_000, ((0, 499), (500, 1_000))),
        (10, 4, ((0, 2), (3, 5), (6, 9))),
    ],
)
def test_an_array_is_cut_into_nearly_equal_chunks(size: int, limit: int, expected: tuple[tuple[int, int], ...]) -> None:
    found = chunks(size, limit)
    assert found == expected
    assert [n for first, last in found for n in range(first, last + 1)] == list(range(size))


def test_an_array_ends_with_its_last_task_by_its_failures() -> None:
    assert array_end(size=5, ended=4, failed=4, max_failed=0) is None
    assert array_end(size=5, ended=5, failed=2, max_failed=2) is JobState.SUCCEEDED
    assert array_end(size=5, ended=5, failed=3, max_failed=2) is JobState.FAILED
    assert array_end(size=5, ended=5, failed=0, max_failed=0, cancelled=True) is JobState.CANCELLED
    with pytest.raises(ValueError, match="size 0"):
        chunks(0)
