"""The decision of an attempt's workflow: every state, wish and observation, and what must never follow from silence."""

import itertools

import pytest

from policies.states import LIVE_ATTEMPT_STATES
from policies.vocabulary import AttemptState, Reason, StopCause
from tests.builders.attempts import NOW_MS, a_part, a_view, stopping
from workflows.decide import after_absence, after_refusal, next_step
from workflows.messages import AttemptView, Refusal
from workflows.steps import (
    AbortAll,
    Confirm,
    Launch,
    Leave,
    Mark,
    Prepare,
    SendCheckpoint,
    SendStop,
    Settle,
    Start,
    Step,
    Wait,
)

TWO = ["shared", "cloud"]


def kind(step: Step) -> type:
    return type(step)


# -- launching


def test_a_reserved_attempt_at_one_backend_is_launched_in_one_step() -> None:
    step = next_step(a_view("RESERVED"))
    assert isinstance(step, Launch)
    assert step.backend == "one"


def test_a_pending_attempt_whose_launch_was_lost_is_launched_again() -> None:
    assert kind(next_step(a_view("PENDING", prepared=[], started=[]))) is Launch
    assert kind(next_step(a_view("PENDING", started=[]))) is Launch


def test_a_gang_is_prepared_everywhere_before_anything_starts() -> None:
    assert next_step(a_view("RESERVED", backends=TWO)) == Prepare(a_view().attempt_id, TWO)
    half = a_view("PENDING", backends=TWO, prepared=["shared"], started=[])
    assert next_step(half) == Prepare(half.attempt_id, ["cloud"])


def test_the_least_certain_part_starts_first_and_the_next_only_once_it_runs() -> None:
    prepared = a_view("PENDING", backends=TWO, started=[])
    assert next_step(prepared) == Start(prepared.attempt_id, "shared")
    waiting = a_view("PENDING", a_part("shared", "Pending"), backends=TWO, started=["shared"])
    assert kind(next_step(waiting)) is Wait
    running = a_view("PENDING", a_part("shared"), backends=TWO, started=["shared"])
    assert next_step(running) == Start(prepared.attempt_id, "cloud")


def test_the_attempt_runs_when_every_part_does_and_since_the_last_came_up() -> None:
    late = a_part("cloud", started_ms=NOW_MS - 2_000)
    view = a_view("PENDING", a_part("shared"), late, backends=TWO)
    assert next_step(view) == Mark(view.attempt_id, AttemptState.RUNNING, NOW_MS - 2_000)


def test_gang_timeout_runs_from_the_first_part_that_runs() -> None:
    parts = (a_part("shared", started_ms=NOW_MS - 300_000), a_part("cloud", "Pending"))
    patient = a_view("PENDING", *parts, backends=TWO, gang_timeout_s=301)
    assert next_step(patient) == Wait(1.0)
    step = next_step(a_view("PENDING", *parts, backends=TWO, gang_timeout_s=300))
    assert isinstance(step, SendStop)
    assert step.cause == StopCause.GANG_TIMEOUT


def test_on_a_contingent_lease_objects_are_made_and_not_started() -> None:
    lease = {"lease_state": "contingent", "place_first": True}
    assert kind(next_step(a_view("RESERVED", **lease))) is Prepare
    assert kind(next_step(a_view("PENDING", started=[], **lease))) is Wait
    assert kind(next_step(a_view("PENDING", started=[], lease_state="held", place_first=True))) is Launch


def test_stuck_in_the_backend_the_attempt_is_withdrawn_and_its_pool_rests() -> None:
    stuck = a_view("PENDING", a_part(phase="Pending"), backend_wait_timeout_s=50, pools={"one": ["p1", "p2"]})
    step = next_step(stuck)
    assert isinstance(step, AbortAll)
    assert step.end.reason == Reason.BACKEND_WAIT_TIMEOUT
    assert step.rest == ["p1", "p2"]
    assert next_step(a_view("PENDING", a_part(phase="Pending"), backend_wait_timeout_s=51)) == Wait(1.0)


def test_the_wait_in_the_backend_counts_from_the_start_and_not_from_the_lease() -> None:
    view = a_view("PENDING", a_part(phase="Pending"), backend_wait_timeout_s=20, start_asked_ms=NOW_MS - 5_000)
    assert next_step(view) == Wait(15.0)


def test_a_dark_backend_expires_nothing() -> None:
    stuck = a_view("PENDING", a_part(phase="Pending"), backend_wait_timeout_s=10, dark=["one"])
    assert kind(next_step(stuck)) is Wait
    over = stopping("preempt", a_part(stop_confirmed=True), told_s_ago=1_000, dark=["one"])
    assert kind(next_step(over)) is Wait
    assert kind(next_step(a_view(stall_after_ms=NOW_MS - 1, dark=["one"]))) is Wait


# -- refusals


def test_a_refusal_before_anything_started_gives_the_lease_back() -> None:
    view = a_view("PENDING", prepared=[], started=[])
    step = after_refusal(view, Refusal("one", "NoCapacity", "none left"))
    assert isinstance(step, AbortAll)
    assert step.end.reason == Reason.BACKEND_REFUSED
    assert step.end.message == "NoCapacity: none left"


def test_a_refusal_of_the_job_itself_ends_it() -> None:
    view = a_view("PENDING", prepared=[], started=[])
    step = after_refusal(view, Refusal("one", "BadImage", "no such image", permanent=True))
    assert isinstance(step, AbortAll)
    assert step.end.reason == Reason.INVALID_PARAMETER


def test_a_misconfigured_backend_leaves_the_job_waiting_with_its_token() -> None:
    view = a_view("PENDING", prepared=[], started=[])
    step = after_refusal(view, Refusal("one", "Misconfigured", "token expired", misconfigured=True))
    assert isinstance(step, AbortAll)
    assert step.end.reason == Reason.BACKEND_REFUSED
    assert step.end.message.startswith("Misconfigured: ")


def test_a_refusal_of_the_second_part_rolls_the_running_first_one_back() -> None:
    view = a_view("PENDING", a_part("shared"), backends=TWO, started=["shared"])
    step = after_refusal(view, Refusal("cloud", "NoCapacity", "none"))
    assert isinstance(step, SendStop)
    assert step.cause == StopCause.GANG_ROLLBACK


def test_a_refusal_that_arrives_after_the_end_changes_nothing() -> None:
    assert after_refusal(a_view("STOPPED"), Refusal("one", "x", "y")) == Leave()


# -- stopping


def test_a_cancel_before_the_start_takes_everything_away_and_settles() -> None:
    for state in ("RESERVED", "PENDING"):
        step = next_step(a_view(state, prepared=[], started=[], want_cancel=True))
        assert isinstance(step, AbortAll)
        assert step.end.reason == Reason.USER_CANCELLED


def test_a_cancel_while_the_backend_has_it_pending_tells_the_backend() -> None:
    step = next_step(a_view("PENDING", a_part(phase="Pending"), want_cancel=True))
    assert isinstance(step, SendStop)
    assert (step.cause, step.kind) == (StopCause.CANCEL, "stop")


def test_a_cancelled_job_that_can_save_gets_one_save_and_no_more() -> None:
    saves = next_step(a_view("RUNNING", a_part(), want_cancel=True, checkpoints=True, grace_s=300, save_timeout_s=90))
    cannot = next_step(a_view("RUNNING", a_part(), want_cancel=True, grace_s=300, term_s=10))
    assert isinstance(saves, SendStop)
    assert saves.grace_s == 90
    assert isinstance(cannot, SendStop)
    assert cannot.grace_s == 10


def test_ql_06_vii_a_cancel_overrides_a_preemption_that_was_asked_for() -> None:
    step = next_step(a_view("RUNNING", a_part(), want_cancel=True, stop_cause="preempt", stop_grace_s=60))
    assert isinstance(step, SendStop)
    assert step.cause == StopCause.CANCEL


@pytest.mark.parametrize(
    ("cause", "word"),
    [("preempt", "preempt"), ("reclaim", "preempt"), ("drain", "revoke"), ("resize", "resize"), ("budget", "stop")],
)
def test_members_hear_why_they_must_go(cause: str, word: str) -> None:
    step = next_step(a_view("RUNNING", a_part(), stop_cause=cause, stop_grace_s=60))
    assert isinstance(step, SendStop)
    assert (step.mode, step.grace_s, step.kind) == ("notice", 60, word)


def test_without_grace_they_are_killed_at_once() -> None:
    step = next_step(a_view("RUNNING", a_part(), stop_cause="preempt", stop_grace_s=0))
    assert isinstance(step, SendStop)
    assert step.mode == "kill"


def test_during_the_grace_it_waits_for_the_end() -> None:
    assert next_step(stopping("preempt", a_part(), told_s_ago=60)) == Wait(30.0)


def test_k8_06_capacity_comes_back_after_grace_and_recovery_and_not_before() -> None:
    over = stopping("preempt", a_part(stop_confirmed=True), told_s_ago=90)
    step = next_step(over)
    assert isinstance(step, AbortAll)
    assert step.end.reason == Reason.PREEMPTED
    assert kind(next_step(stopping("preempt", a_part(stop_confirmed=True), told_s_ago=89))) is Wait


def test_an_unconfirmed_stop_is_sent_again_before_anything_is_concluded() -> None:
    again = next_step(stopping("preempt", a_part(), told_s_ago=90))
    assert isinstance(again, SendStop)
    assert again.mode == "kill"
    assert kind(next_step(stopping("preempt", a_part(), told_s_ago=150))) is AbortAll


def test_an_absence_that_is_newer_than_our_stop_is_the_end() -> None:
    step = next_step(stopping("preempt", a_part(phase="Absent", as_of_ms=NOW_MS)))
    assert isinstance(step, Settle)
    assert step.end.reason == Reason.PREEMPTED
    older = stopping("preempt", a_part(phase="Absent", as_of_ms=NOW_MS - 5_000), told_s_ago=1)
    assert kind(next_step(older)) is Wait


# -- what the outside did


def test_a_revocation_notice_tells_the_whole_gang_within_the_time_that_is_left() -> None:
    told = a_part("cloud", notice_kind="revoke", notice_deadline_ms=NOW_MS + 25_000)
    step = next_step(a_view("RUNNING", a_part("shared"), told, backends=TWO, grace_s=300))
    assert isinstance(step, SendStop)
    assert (step.cause, step.grace_s, step.mode) == (StopCause.REVOCATION, 25, "notice")


def test_advice_to_rebalance_stops_nothing() -> None:
    assert kind(next_step(a_view("RUNNING", a_part(notice_kind="rebalance")))) is Wait


def test_sp_08_one_member_gone_and_the_whole_gang_goes_as_revoked() -> None:
    gone = a_part("cloud", "Ended", cause="NodeLost", exit_code=None)
    step = next_step(a_view("RUNNING", a_part("shared"), gone, backends=TWO))
    assert isinstance(step, SendStop)
    assert step.cause == StopCause.MEMBER_LOST
    both = stopping("member_lost", a_part("shared", "Ended", cause="NonZeroExit", exit_code=143), gone, backends=TWO)
    end = next_step(both)
    assert isinstance(end, Settle)
    assert end.end.reason == Reason.NODE_LOST


def test_sp_08_gone_during_set_up_is_revoked_too_and_no_failure_of_the_job() -> None:
    gone = a_part("cloud", "Ended", cause="SpotRevoked", exit_code=None)
    step = next_step(a_view("PENDING", a_part("shared"), gone, backends=TWO))
    assert isinstance(step, SendStop)
    assert step.cause == StopCause.MEMBER_LOST


def test_a_member_that_failed_by_itself_keeps_its_exit_code() -> None:
    failed = a_part("cloud", "Ended", cause="NonZeroExit", exit_code=3, failed_rank=5)
    step = next_step(a_view("RUNNING", a_part("shared"), failed, backends=TWO))
    assert isinstance(step, AbortAll)
    assert (step.end.reason, step.end.exit_code, step.end.failed_rank) == (Reason.NON_ZERO_EXIT, 3, 5)


def test_a_part_that_is_done_waits_for_the_others() -> None:
    assert kind(next_step(a_view("RUNNING", a_part("shared", "Ended"), a_part("cloud"), backends=TWO))) is Wait


def test_sl_09_an_absence_is_confirmed_by_key_and_a_young_one_is_not_believed() -> None:
    missing = a_part(phase="Absent", as_of_ms=NOW_MS)
    assert next_step(a_view("RUNNING", missing)) == Confirm(a_view().attempt_id, "one")
    young = a_view("PENDING", missing, start_asked_ms=NOW_MS - 1_000)
    assert kind(next_step(young)) is Wait
    assert kind(next_step(a_view("RUNNING"))) is Wait, "nothing was seen yet: that is no absence"


def test_a_confirmed_absence_is_lost_unless_a_notice_explains_it() -> None:
    lost = after_absence(a_view("RUNNING", a_part(phase="Absent")))
    assert isinstance(lost, AbortAll)
    assert lost.end.reason == Reason.LOST
    told = after_absence(a_view("RUNNING", a_part(phase="Absent", notice_kind="revoke")))
    assert isinstance(told, AbortAll)
    assert told.end.reason == Reason.SPOT_REVOKED


def test_requeued_by_the_backend_is_a_revocation() -> None:
    step = next_step(a_view("RUNNING", a_part(phase="Pending", restarts=1)))
    assert isinstance(step, AbortAll)
    assert step.end.reason == Reason.BACKEND_REQUEUED


# -- running and ending


@pytest.mark.parametrize(
    ("part", "changes", "reason"),
    [
        (a_part(phase="Ended"), {}, Reason.COMPLETED),
        (a_part(phase="Ended", cause="NonZeroExit", exit_code=7), {}, Reason.NON_ZERO_EXIT),
        (a_part(phase="Ended", cause="OutOfMemory", exit_code=137), {}, Reason.OUT_OF_MEMORY),
        (a_part(phase="Ended", cause="SpotRevoked", exit_code=143), {}, Reason.SPOT_REVOKED),
        (a_part(phase="Ended", cause="NonZeroExit", exit_code=75), {"checkpoints": True}, Reason.SAVED_AND_EXITED),
        (
            a_part(phase="Ended", cause="NonZeroExit", exit_code=75),
            {"checkpoints": True, "no_progress": 1},
            Reason.NO_PROGRESS,
        ),
        (
            a_part(phase="Ended", cause="NonZeroExit", exit_code=75),
            {"checkpoints": True, "no_progress": 1, "newer_checkpoint": True},
            Reason.SAVED_AND_EXITED,
        ),
    ],
)
def test_an_end_by_itself_is_settled_as_what_it_was(part: object, changes: dict[str, object], reason: Reason) -> None:
    step = next_step(a_view("RUNNING", part, **changes))  # type: ignore[arg-type]
    assert isinstance(step, Settle)
    assert step.end.reason == reason
    assert step.end.ended_ms == NOW_MS - 1_000


def test_after_our_stop_the_cause_decides_whatever_the_exit_code() -> None:
    for code in (0, 1, 75, 143):
        part = a_part(phase="Ended", cause="NonZeroExit" if code else "Completed", exit_code=code)
        step = next_step(stopping("preempt", part, checkpoints=True))
        assert isinstance(step, Settle)
        assert step.end.reason == Reason.PREEMPTED


def test_work_that_is_finished_is_not_run_again_for_a_stop() -> None:
    step = next_step(stopping("preempt", a_part(phase="Ended", final=True), checkpoints=True))
    assert isinstance(step, Settle)
    assert step.end.reason == Reason.COMPLETED


def test_the_first_failing_member_gives_the_code_and_all_codes_travel() -> None:
    first = a_part("cloud", "Ended", cause="NonZeroExit", exit_code=9, failed_rank=3, ended_ms=10, codes={"3": 9})
    later = a_part("shared", "Ended", cause="NonZeroExit", exit_code=1, failed_rank=0, ended_ms=20, codes={"0": 1})
    step = next_step(a_view("RUNNING", later, first, backends=TWO))
    assert isinstance(step, Settle)
    assert (step.end.exit_code, step.end.failed_rank, step.end.ended_ms) == (9, 3, 20)
    assert step.end.codes == {"0": 1, "3": 9}


def test_a_checkpoint_wish_is_carried_out_once() -> None:
    assert next_step(a_view("RUNNING", a_part(), want_checkpoint=2, checkpoint_done=1)) == SendCheckpoint(
        a_view().attempt_id, 2
    )
    assert kind(next_step(a_view("RUNNING", a_part(), want_checkpoint=2, checkpoint_done=2))) is Wait


def test_the_limits_of_a_running_attempt_wake_the_workflow_in_time() -> None:
    assert next_step(a_view("RUNNING", a_part(), max_duration_s=15)) == Wait(5.0)
    limit = next_step(a_view("RUNNING", a_part(), max_duration_s=10))
    assert isinstance(limit, SendStop)
    assert limit.cause == StopCause.TIME_LIMIT
    stalled = next_step(a_view("RUNNING", a_part(), stall_after_ms=NOW_MS))
    assert isinstance(stalled, SendStop)
    assert stalled.cause == StopCause.STALL
    assert next_step(a_view("RUNNING", a_part())) == Wait(60.0)


# -- the whole table


def every_view() -> list[AttemptView]:
    phases = ("Absent", "Prepared", "Pending", "Running", "Ended")
    stops = (("", False), ("preempt", False), ("preempt", True), ("cancel", True), ("waiter_gone", True))
    leases = ("held", "contingent", "voided")
    return [
        a_view(
            state,
            a_part("one", phase),
            stop_cause=cause,
            stop_sent=sent,
            stopping_ms=NOW_MS - 1000 if sent else None,
            want_cancel=cancel,
            lease_state=lease,
            dark=["one"] if dark else [],
            started=started,
        )
        for state, phase, (cause, sent), cancel, lease, dark, started in itertools.product(
            AttemptState, phases, stops, (False, True), leases, (False, True), ([], ["one"])
        )
    ]


def test_every_state_wish_and_observation_has_an_answer() -> None:
    for view in every_view():
        step = next_step(view)
        assert isinstance(step, Leave) == (view.state not in LIVE_ATTEMPT_STATES)
        if isinstance(step, Wait):
            assert 0 < step.wake_after_s <= 60


def test_nothing_is_ever_started_on_a_lease_that_is_not_held_or_after_a_stop() -> None:
    for view in every_view():
        if isinstance(next_step(view), Launch | Start):
            assert view.lease_state == "held"
            assert not view.stop_cause
            assert not view.want_cancel
