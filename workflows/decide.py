"""What an attempt's workflow does next: a pure function of its row, read at the database's time.

Decides when to launch, start, stop, withdraw and settle. Never acts, never reads a clock, never decides who goes
first. Silence is no evidence here: a dark backend starts no deadline and ends nothing. An observation of a stopped
or failing part ends the whole gang; the reason is chosen from the part that failed first.
"""

from collections.abc import Sequence
from typing import Final

from policies.endings import reason_of
from policies.reasons import CAUSES, verdict
from policies.states import LIVE_ATTEMPT_STATES
from policies.vocabulary import AttemptState, JobKind, Reason, RetryClass, StopCause
from workflows import gang
from workflows.messages import AttemptView, EndRequest, GroupSeen, Refusal, ResizeView
from workflows.steps import (
    AbortAll,
    Confirm,
    FinishResize,
    Launch,
    Leave,
    Mark,
    Prepare,
    SendCheckpoint,
    SendResize,
    SendStop,
    Settle,
    Start,
    Step,
    Wait,
)

REREAD_S: Final = 60.0  # the row is read again at least so often (DESIGN §4.5)
ABSENT_AFTER_MS: Final = 10_000  # an object younger than this may not be listed yet
NEARER_MS: Final = 1_000  # graces are whole seconds: a deadline that is nearer by less is the same one
WITHDRAWN_REST_S: Final = 300
_KINDS: Final = {
    StopCause.PREEMPT: "preempt",
    StopCause.RECLAIM: "preempt",
    StopCause.BACKFILL: "preempt",
    StopCause.MOVE: "preempt",
    StopCause.REVOCATION: "revoke",
    StopCause.DRAIN: "revoke",
    StopCause.RESIZE: "resize",
}
_TELLS_TO_GO: Final = frozenset({"revoke", "preempt"})


def next_step(view: AttemptView) -> Step:
    """The one thing to do now. Total: every state, wish and observation has an answer."""
    if view.state not in LIVE_ATTEMPT_STATES:
        return Leave()
    if gang.all_over(view):
        return Settle(_end(view))
    if view.want_cancel and view.stop_cause != StopCause.CANCEL:
        return _stop_for(view, StopCause.CANCEL, _cancel_grace_s(view))
    if view.stop_cause or view.stop_sent or view.state == AttemptState.STOPPING:
        return _stopping(view)
    return _trouble(view) or (_launching(view) if gang.incomplete(view) else _running(view))


def after_refusal(view: AttemptView, refusal: Refusal) -> Step:
    """A backend refused a part: the whole gang goes back, by the stop that leaves the started parts time to end."""
    if view.state not in LIVE_ATTEMPT_STATES:
        return Leave()
    if gang.begun(view):
        return _stop_for(view, StopCause.GANG_ROLLBACK, view.term_s)
    reason = Reason.INVALID_PARAMETER if refusal.permanent else Reason.BACKEND_REFUSED
    token = "Misconfigured" if refusal.misconfigured else refusal.reason
    refused_by = refusal.backend if refusal.tenant else ""
    return AbortAll(
        EndRequest(
            view.attempt_id,
            reason,
            message=f"{token}: {refusal.message}",
            refused_by=refused_by,
            no_room=refusal.no_room,
        )
    )


def after_absence(view: AttemptView) -> Step:
    """A started part surely does not exist any more: the rest is taken away, and what is known decides the end."""
    if view.state not in LIVE_ATTEMPT_STATES:
        return Leave()
    return AbortAll(_end(view, missing=True))


# -- stopping ---------------------------------------------------------------------------------------------------------


def _stopping(view: AttemptView) -> Step:
    cause = StopCause(view.stop_cause) if view.stop_cause else None
    if not gang.begun(view):
        return AbortAll(_end(view, missing=True))
    notice = _notice(view)
    sooner_ms = notice.notice_deadline_ms if notice is not None else None
    if not view.stop_sent:
        left_s = view.stop_grace_s if sooner_ms is None else _seconds_to(view, sooner_ms)
        return _stop_for(view, cause, min(view.stop_grace_s, left_s))
    due_ms = _due_ms(view)
    if sooner_ms is not None and sooner_ms < due_ms - NEARER_MS and view.now_ms < due_ms:
        # The provider wants it back before the grace is over: the whole gang hears of it. A later one changes nothing.
        return SendStop(view.attempt_id, *_mode(_seconds_to(view, sooner_ms)), "revoke")
    over_ms = due_ms + 1000 * view.recovery_s
    living = gang.living(view)
    if view.now_ms < over_ms:
        return _wait_until(view, over_ms)
    if any(part.backend in view.dark for part in living):
        return Wait(REREAD_S)  # it frees nothing until it answers
    if all(part.stop_confirmed for part in living) or view.now_ms >= over_ms + 1000 * view.recovery_s:
        return AbortAll(_end(view, missing=True))
    # Told, but never confirmed: tell it again; an answer to that proves that the backend has the wish.
    return SendStop(view.attempt_id, "kill", 0, _kind(cause))


def _stop_for(view: AttemptView, cause: StopCause | None, grace_s: int) -> Step:
    if not gang.begun(view):
        reason = CAUSES[cause] if cause else Reason.GANG_ROLLED_BACK
        return AbortAll(EndRequest(view.attempt_id, reason))
    return SendStop(view.attempt_id, *_mode(grace_s), _kind(cause), cause or "")


def _mode(grace_s: int) -> tuple[str, int]:
    return ("notice", grace_s) if grace_s > 0 else ("kill", 0)


def _due_ms(view: AttemptView) -> int:
    """When the grace of the stop that was sent is over."""
    return (view.stopping_ms or view.stop_asked_ms or view.now_ms) + 1000 * view.stop_grace_s


def _seconds_to(view: AttemptView, instant_ms: int) -> int:
    return max(0, (instant_ms - view.now_ms) // 1000)


def _kind(cause: StopCause | None) -> str:
    return _KINDS.get(cause, "stop") if cause else "stop"


def _cancel_grace_s(view: AttemptView) -> int:
    """A job that cannot save has no use for more than its SIGTERM; one that can gets one save. A grace that runs
    already is not extended.
    """
    own_s = min(view.grace_s, view.save_timeout_s) if view.checkpoints else view.term_s
    return min(own_s, _seconds_to(view, _due_ms(view))) if view.stop_sent else own_s


# -- what the outside did ---------------------------------------------------------------------------------------------


def _trouble(view: AttemptView) -> Step | None:
    notice = _notice(view)
    if notice is not None:
        # Those that are left go on at a smaller size, without a requeue (POLICIES §9).
        cause = StopCause.RESIZE if view.survives else StopCause.REVOCATION
        return _stop_for(view, cause, _grace_until(view, notice.notice_deadline_ms))
    failure = gang.first_failure(view)
    if failure is not None:
        return _member_failed(view, failure)
    for part in gang.begun_parts(view):
        if part.phase == gang.ABSENT and part.as_of_ms >= _launched_ms(view) + ABSENT_AFTER_MS:
            return Confirm(view.attempt_id, part.backend)
        if part.phase == gang.PENDING and part.restarts > 0 and view.started_ms is not None:
            return AbortAll(EndRequest(view.attempt_id, Reason.BACKEND_REQUEUED))
    return None


def _member_failed(view: AttemptView, failure: GroupSeen) -> Step:
    """The others only wait for it in a collective: one ends, all end (SP-08).

    Taken by the outside: the others get their SIGTERM, and what took it stays the reason. Failed by itself: they are
    taken away, and no cause of ours may cover the exit code.
    """
    if verdict(Reason(failure.cause or Reason.NON_ZERO_EXIT)).retry is RetryClass.INFRASTRUCTURE:
        return _stop_for(view, StopCause.MEMBER_LOST, view.term_s)
    return AbortAll(_end(view, missing=True))


def _notice(view: AttemptView) -> GroupSeen | None:
    told = [part for part in gang.living(view) if part.notice_kind in _TELLS_TO_GO]
    return min(told, key=lambda part: (part.notice_deadline_ms or 0, part.backend), default=None)


def _grace_until(view: AttemptView, deadline_ms: int | None) -> int:
    if deadline_ms is None:
        return view.grace_s
    return min(view.grace_s, _seconds_to(view, deadline_ms))


def _launched_ms(view: AttemptView) -> int:
    return max(view.start_asked_ms or 0, view.pending_ms or view.created_ms)


# -- launching --------------------------------------------------------------------------------------------------------


def _launching(view: AttemptView) -> Step:
    missing = [backend for backend in view.backends if backend not in view.prepared]
    contingent = view.lease_state == "contingent"
    if view.lease_state == "voided":
        return _give_up(view)  # what may have been made has still to be taken away
    if contingent and view.follows:
        return _following(view)
    if missing and (contingent or len(view.backends) > 1):
        return (_not_placed(view) if contingent else _in_vain(view)) or Prepare(view.attempt_id, missing)
    if view.lease_state != "held" or not view.backends:
        return Wait(REREAD_S)  # until the victims are settled; its lease becomes held in that transaction
    return _in_vain(view) or _starting(view)


def _starting(view: AttemptView) -> Step:
    if len(view.backends) == 1:
        backend = view.backends[0]
        return _pending(view) if backend in view.started else Launch(view.attempt_id, backend)
    for backend in view.backends:
        if backend not in view.started:
            return Start(view.attempt_id, backend)
        if not gang.has_run(view, backend):
            return _pending(view)
    return _pending(view)


def _in_vain(view: AttemptView) -> Step | None:
    """Its backends answer, and some part is neither refused nor launched, again and again: that has an end too."""
    if view.launching_ms is None or view.dark or gang.all_running(view):
        return None
    running_ms = gang.first_running_ms(view)
    if running_ms is not None:
        whole_by_ms = running_ms + 1000 * view.gang_timeout_s
        return _stop_for(view, StopCause.GANG_TIMEOUT, view.term_s) if view.now_ms >= whole_by_ms else None
    if view.backend_wait_timeout_s <= 0 or view.now_ms < view.launching_ms + 1000 * view.backend_wait_timeout_s:
        return None
    return _give_up(view)


def _following(view: AttemptView) -> Step:
    """Its place is leased; it is launched once the attempt before it is settled, to resume from what that saved."""
    if view.follows == "stays":
        return AbortAll(EndRequest(view.attempt_id, Reason.GANG_ROLLED_BACK, message="the move was called off"))
    return Wait(REREAD_S)


def _not_placed(view: AttemptView) -> Step | None:
    """A waiter whose objects cannot be made: it lets its victims go on before any of them is told (DESIGN §5)."""
    if view.pending_ms is None or view.place_timeout_s <= 0:
        return None  # nothing has been tried yet
    if view.now_ms < view.pending_ms + 1000 * view.place_timeout_s:
        return None
    return _give_up(view)


def _give_up(view: AttemptView) -> Step:
    rest = sorted({pool for pools in view.pools.values() for pool in pools})
    end = EndRequest(view.attempt_id, Reason.BACKEND_WAIT_TIMEOUT, message="it could not be placed in time")
    return AbortAll(end, rest, WITHDRAWN_REST_S, Reason.BACKEND_WAIT_TIMEOUT)


def _pending(view: AttemptView) -> Step:
    """Started as far as may be; now the backend has to say RUNNING."""
    running_ms = gang.first_running_ms(view)
    if gang.all_running(view):
        return Mark(view.attempt_id, AttemptState.RUNNING, gang.last_started_ms(view))
    if running_ms is not None:
        over_ms = running_ms + 1000 * view.gang_timeout_s
        if view.now_ms >= over_ms and _any_dark(view, gang.waiting(view)):
            return Wait(REREAD_S)  # what nobody can see may run
        if view.now_ms >= over_ms:
            return _stop_for(view, StopCause.GANG_TIMEOUT, view.term_s)
        return _wait_until(view, over_ms)
    if view.backend_wait_timeout_s <= 0:
        return Wait(REREAD_S)
    over_ms = _launched_ms(view) + 1000 * view.backend_wait_timeout_s
    if view.now_ms < over_ms:
        return _wait_until(view, over_ms)
    waiting = gang.waiting(view)
    if _any_dark(view, waiting):
        return Wait(REREAD_S)
    rest = sorted({pool for backend in waiting for pool in view.pools.get(backend, ())})
    end = EndRequest(view.attempt_id, Reason.BACKEND_WAIT_TIMEOUT, no_room=True)
    return AbortAll(end, rest, WITHDRAWN_REST_S, Reason.BACKEND_WAIT_TIMEOUT)


# -- running ----------------------------------------------------------------------------------------------------------


def _running(view: AttemptView) -> Step:
    if view.state in {AttemptState.RESERVED, AttemptState.PENDING}:
        return _pending(view)
    started_ms = view.started_ms or gang.last_started_ms(view) or view.now_ms
    limit_ms = None if view.max_duration_s is None else started_ms + 1000 * view.max_duration_s
    if limit_ms is not None and view.now_ms >= limit_ms:
        if view.dark:
            return Wait(REREAD_S)  # no stop would arrive, and it may have ended within its time
        return _stop_for(view, StopCause.TIME_LIMIT, view.grace_s)
    if view.stall_after_ms is not None and view.now_ms >= view.stall_after_ms and not view.dark:
        return _stop_for(view, StopCause.STALL, view.term_s)  # what makes no progress would not save either
    if view.want_checkpoint > view.checkpoint_done:
        return SendCheckpoint(view.attempt_id, view.want_checkpoint)
    if view.resize is not None:
        return _resizing(view, view.resize)
    return _wait_until(view, limit_ms, view.stall_after_ms)


def _resizing(view: AttemptView, wish: ResizeView) -> Step:
    """Members come or go under the launch, until they are there or gone, or the time for it is over."""
    backend = view.backends[0]
    if not wish.sent:
        return SendResize(view.attempt_id, backend, wish.group, wish.replicas, wish.nodes)
    part = gang.seen(view, backend)
    if part.phase == gang.RUNNING and part.ready == wish.replicas:
        return FinishResize(view.attempt_id, backend, wish.group, wish.before, reached=True)
    over_ms = (view.stop_asked_ms or view.now_ms) + 1000 * (view.stop_grace_s + view.recovery_s)
    if view.now_ms < over_ms:
        return _wait_until(view, over_ms)
    if backend in view.dark:
        return Wait(REREAD_S)
    return FinishResize(view.attempt_id, backend, wish.group, wish.before, reached=False)


def _any_dark(view: AttemptView, backends: Sequence[str]) -> bool:
    return any(backend in view.dark for backend in backends)


def _wait_until(view: AttemptView, *instants_ms: int | None) -> Wait:
    left_s = [(instant - view.now_ms) / 1000 for instant in instants_ms if instant is not None]
    return Wait(min([REREAD_S, *(max(0.1, left) for left in left_s)]))


# -- the end ----------------------------------------------------------------------------------------------------------


def _end(view: AttemptView, *, missing: bool = False) -> EndRequest:
    """What is known of the end: what was seen, weighed against what we asked (policies.endings)."""
    ended = [part for part in view.seen if part.phase == gang.ENDED]
    told = gang.first_failure(view) or max(ended, key=lambda part: (part.ended_ms or 0, part.backend), default=None)
    times = [part.ended_ms for part in ended if part.ended_ms is not None]
    codes = {rank: code for part in ended for rank, code in part.codes.items()}
    return EndRequest(
        attempt_id=view.attempt_id,
        reason=_reason(view, told, missing=missing),
        ended_ms=max(times) if times and not missing else None,
        exit_code=told.exit_code if told else None,
        failed_rank=told.failed_rank if told else None,
        codes=codes,
        bad_nodes=sorted({node for part in ended for node in part.bad_nodes}),
        final=any(part.final for part in ended),
    )


def _reason(view: AttemptView, told: GroupSeen | None, *, missing: bool) -> Reason:
    if told is not None and missing and not gang.failed(told):
        told = None  # this part was done, the attempt was not
    seen_cause = Reason(told.cause) if told is not None and told.cause else None
    if told is None and any(part.notice_kind in _TELLS_TO_GO for part in view.seen):
        seen_cause = Reason.SPOT_REVOKED  # it was told to go, and went without a word
    return reason_of(
        stop_cause=StopCause(view.stop_cause) if view.stop_cause else None,
        seen_cause=seen_cause,
        exit_code=told.exit_code if told is not None else None,
        final=told is not None and any(part.final for part in view.seen),
        checkpoints=view.checkpoints or view.kind == JobKind.INFERENCE,
        previous_no_progress=view.no_progress > 0,
        newer_checkpoint=view.newer_checkpoint,
    )
