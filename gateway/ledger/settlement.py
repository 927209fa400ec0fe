"""The end of an attempt, in ONE transaction and once (DESIGN §4.8): lease, posted use, borrowings, the waiters' share,
credit, states of attempt, task and job, counters, events, nudges. A second call changes nothing.

Decides nothing by itself: `policies.reasons` says what a reason means, `policies.retry` what becomes of the job.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import select, text
from sqlalchemy.orm import Session
from sqlmodel import col

from gateway.ledger import events, leases, moving, outbox, resizing, theft, waiters
from gateway.ledger.codec import from_ms, to_ms
from gateway.ledger.credits import Victim, earlier_preemptions, grant_credit
from gateway.ledger.items import items_of
from gateway.ledger.limits import amounts_of
from gateway.ledger.meter import gpu_milli_of
from gateway.ledger.settlement_jobs import JobEnd, goes_on, settle_job
from gateway.ledger.tables.work import AttemptRow, JobRow, LeaseRow
from gateway.ledger.transition import move_attempt
from policies.reasons import Verdict, verdict
from policies.settings import PolicySettings
from policies.states import ATTEMPT_EDGES, LIVE_ATTEMPT_STATES
from policies.vocabulary import AttemptState, JobState, LeaseState, Reason, StopCause
from workflows.messages import EndRequest, Settled

DEFAULT_RESTART_MS: Final = 60_000
_MAX_MESSAGE: Final = 2_000
_EARNING: Final = {StopCause.PREEMPT, StopCause.MOVE}


@dataclass(frozen=True, slots=True)
class _End:
    """The request, read against the row."""

    reason: Reason
    verdict: Verdict
    state: AttemptState
    started_at: datetime | None
    ended_at: datetime  # clamped to [attempt made, now]
    unknown: bool  # it ran, and nobody knows until when


def settle(
    session: Session,
    end: EndRequest,
    *,
    settings: PolicySettings | None = None,
    default_restart_ms: int = DEFAULT_RESTART_MS,
) -> Settled:
    """Settle the attempt within the caller's transaction. LookupError: no such attempt; ValueError: no such reason."""
    settings = settings or PolicySettings()
    job, attempt = _locked(session, end.attempt_id)
    if attempt.state not in LIVE_ATTEMPT_STATES:
        return Settled(first=False, attempt_state=attempt.state, job_state=job.state)
    now: datetime = session.execute(select(text("now()"))).scalar_one()
    facts = _facts(attempt, end, now)
    lease = leases.lock_for_end(session, attempt.id)
    theft.note(session, attempt, lease, end, settings)
    # A resized attempt's lease passes on whole, below; what it gave up is its waiters' in the same transaction.
    after = moving.next_of(session, job, attempt)
    follows = None if after is not None else resizing.may_follow(session, job, attempt, lease, facts.reason)
    if lease is not None and follows is None:
        _resolve(session, lease, facts)
    kept = None if follows is None else amounts_of(items_of(follows))
    held_now = leases.victim_settled(session, attempt.id, kept)
    _end_attempt(session, job, attempt, end, facts)
    credit = 0
    if lease is not None and _earns(attempt, job, facts):
        credit = _credit(session, attempt, lease, facts, settings, default_restart_ms)
    session.execute(_REVOKE_TOKENS, {"attempt": attempt.id})
    if not moving.speaks(session, attempt):
        outbox.wake_arbiter(session)
        return Settled(first=True, attempt_state=facts.state, job_state=job.state)
    job_end = JobEnd(
        reason=facts.reason,
        verdict=facts.verdict,
        ended_at=facts.ended_at,
        now_ms=to_ms(now) or 0,
        exit_code=end.exit_code,
        message=end.message[:_MAX_MESSAGE] or facts.verdict.words,
        bad_nodes=tuple(end.bad_nodes),
        refused_by=end.refused_by,
        credit_gpu_ms=credit,
    )
    if after is not None and not (after.viable and goes_on(job, job_end, settings)):
        moving.call_off(session, after)
        after = None
    job_state = settle_job(session, job, attempt, job_end, settings)
    if after is not None:
        moving.go_on(session, job.id, after)
        job_state = JobState.ADMITTED
    if follows is not None and job_state == JobState.QUEUED:
        resizing.succeed(session, job, attempt, follows)
        job_state = JobState.ADMITTED
    outbox.add(session, outbox.NUDGE, held_now)
    outbox.wake_arbiter(session)
    return Settled(first=True, attempt_state=facts.state, job_state=job_state)


def _locked(session: Session, attempt_id: str) -> tuple[JobRow, AttemptRow]:
    """Job before attempt, as everybody locks them."""
    fresh: dict[str, Any] = {"populate_existing": True}
    of_attempt = select(col(AttemptRow.job_id)).where(col(AttemptRow.id) == attempt_id).scalar_subquery()
    locking = select(JobRow).where(col(JobRow.id) == of_attempt).with_for_update(key_share=True)
    job = session.execute(locking, execution_options=fresh).scalar_one_or_none()
    if job is None:
        raise LookupError(f"no attempt {attempt_id}")
    attempt = session.get_one(AttemptRow, attempt_id, with_for_update={"key_share": True}, execution_options=fresh)
    return job, attempt


def _facts(attempt: AttemptRow, end: EndRequest, now: datetime) -> _End:
    reason = Reason(end.reason)
    meaning = verdict(reason)
    if meaning.attempt is None:
        raise ValueError(f"reason: {reason} can reject a job but not end an attempt")
    state = meaning.attempt
    if state is AttemptState.REFUSED and state not in ATTEMPT_EDGES[AttemptState(attempt.state)]:
        state = AttemptState.STOPPED  # it had begun already: a refusal of a part is a stop of the whole
    started_at = attempt.started_at or _seen_start(attempt)
    said = None if end.ended_ms is None else from_ms(end.ended_ms)
    return _End(
        reason=reason,
        verdict=meaning,
        state=state,
        started_at=started_at,
        ended_at=min(max(said or now, attempt.created_at), now),
        unknown=started_at is not None and said is None and reason is Reason.LOST,
    )


def _seen_start(attempt: AttemptRow) -> datetime | None:
    """A short attempt may have begun and ended between two looks: then the observations alone say when."""
    seen = [part["started_ms"] for part in attempt.observed.values() if part.get("started_ms")]
    return from_ms(min(seen)) if seen else None


def _resolve(session: Session, lease: LeaseRow, facts: _End) -> None:
    waited = lease.state == LeaseState.CONTINGENT
    leases.release(
        session,
        lease,
        used_from=None if waited else facts.started_at,
        used_until=None if facts.unknown else facts.ended_at,
        payer=facts.verdict.payer,
    )
    if waited:
        waiters.spare_victims(session, [lease.attempt_id])


def _end_attempt(session: Session, job: JobRow, attempt: AttemptRow, end: EndRequest, facts: _End) -> None:
    state = AttemptState(attempt.state)
    if facts.state not in ATTEMPT_EDGES[state]:
        # RESERVED has no edge to an end of its own making: the launch had happened, only its row did not say so.
        move_attempt(session, attempt.id, AttemptState.PENDING, job=job)
    values: dict[str, Any] = {
        "exit_code": end.exit_code,
        "failed_rank": end.failed_rank,
        "codes": dict(end.codes),
        "message": end.message[:_MAX_MESSAGE],
    }
    if facts.started_at is not None:
        values["started_at"] = facts.started_at
    moved = move_attempt(
        session,
        attempt.id,
        facts.state,
        at=facts.ended_at,
        reason=facts.reason,
        values=values,
        data={"exit_code": end.exit_code, "number": attempt.number},
        job=job,
    )
    if not moved:
        raise AssertionError(f"attempt {attempt.id} was {state} under its lock and would not become {facts.state}")


def _earns(attempt: AttemptRow, job: JobRow, facts: _End) -> bool:
    """Our arbiter preempted it for another tenant and said so; a user's cancel before the notice earns nothing."""
    return (
        facts.verdict.credit
        and attempt.stop_credit
        and attempt.stop_cause in _EARNING
        and facts.started_at is not None
        and not job.want_cancel
    )


def _credit(  # noqa: PLR0917  (private, one caller's facts)
    session: Session,
    attempt: AttemptRow,
    lease: LeaseRow,
    facts: _End,
    settings: PolicySettings,
    default_restart_ms: int,
) -> int:
    assert facts.started_at is not None
    victim = Victim(
        attempt_id=attempt.id,
        tenant_id=lease.tenant_id,
        gpu_milli=gpu_milli_of(lease.items),
        started_at=max(facts.started_at, lease.created_at),
        ended_at=facts.ended_at,
        noticed_at=attempt.noticed_at,
        restart_ms=attempt.restart_ms or default_restart_ms,
        preemptions=earlier_preemptions(session, attempt.id),
    )
    granted = grant_credit(session, victim, attempt.stop_for or attempt.id, settings)
    if granted:
        events.append(
            session,
            attempt.job_id,
            events.CREDIT_GRANTED,
            attempt_id=attempt.id,
            data={"gpu_ms": granted, "preemption": attempt.stop_for or attempt.id},
        )
    return granted


_REVOKE_TOKENS = text("UPDATE tokens SET revoked_at = now() WHERE attempt_id = :attempt AND revoked_at IS NULL")
