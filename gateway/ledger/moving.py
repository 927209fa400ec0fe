"""Move (DESIGN §3): an attempt leaves for another's sake, and its job's next attempt has a place elsewhere already.

From the commit on, the next attempt is RESERVED on a lease that is contingent on the one before it: the room is taken
there, so that nobody else gets it, and the quota of both counts once. It is launched when the other is settled, in
which its lease becomes held, and not before: it resumes from what that one saved last. Until then it speaks for no job.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID, uuid4

from sqlalchemy import null, text
from sqlalchemy.orm import Session

from backends.naming import attempt_id
from gateway.ledger import events, leases
from gateway.ledger.codec import dumps, placed_json
from gateway.ledger.tables.work import AttemptRow, JobRow
from gateway.ledger.transition import move_attempt, move_job
from policies.decisions import Move
from policies.vocabulary import AttemptState, JobState, Payer, PriorityClass, Reason

MOVED: Final = "Moved"
"""The token of an attempt that has its place because the one before it was moved."""
CALLED_OFF: Final = "the move was called off"

_CLASS = text("SELECT klass FROM leases WHERE id = (SELECT lease_id FROM attempts WHERE attempts.id = :id)")
_COUNT = text(
    """
    UPDATE jobs SET attempts = :number, version = version + 1
    WHERE id = :id AND version = :version AND state IN ('ADMITTED', 'RUNNING') RETURNING version
    """
)
_RESERVE = text(
    """
    INSERT INTO attempts (id, job_id, number, state, version, placed, lease_id, handles, started_groups, resume_from,
        stop_for, stop_credit, checkpoint_asked, observed, why, progress, reason, codes, message, gpu_ms, money,
        restart_ms, preemption_lost, created_at)
    SELECT :id, jobs.id, :number, 'RESERVED', 1, CAST(:placed AS jsonb), :lease_id, '{}', '[]', '', '', false,
        jobs.want_checkpoint, '{}', CAST(:why AS jsonb), '{}', '', '{}', '', 0, 0, 0, false, now()
    FROM jobs WHERE jobs.id = :job_id
    """
)
_NEXT = text(
    """
    SELECT a.id, a.state = 'RESERVED' AND a.stop_cause IS NULL AND l.state IN ('contingent', 'held') AS viable
    FROM attempts a JOIN leases l ON l.id = a.lease_id
    WHERE a.job_id = :job AND a.number > :number AND a.ended_at IS NULL ORDER BY a.number FOR NO KEY UPDATE OF a
    """
)
_BEFORE = text("SELECT 1 FROM attempts WHERE job_id = :job AND number < :number AND ended_at IS NULL")


@dataclass(frozen=True, slots=True)
class Next:
    """The attempt that has a place already. viable: it may go on from here."""

    attempt_id: str
    viable: bool


def reserve(session: Session, move: Move, job: Any) -> tuple[str, Any] | None:
    """Take the new place for the job (`acts.LockedJob`): the next attempt and the job as it is now; None where the job
    is not to go on. LimitExceeded: the ledger does not grant it.
    """
    if job.withheld or job.array_size is not None:
        return None
    number, lease_id = job.attempts + 1, uuid4()
    version = session.execute(_COUNT, {"id": job.id, "number": number, "version": job.version}).scalar_one_or_none()
    if version is None:
        return None
    made = attempt_id(job.id, number)
    numbers = dict(move.why.numbers)
    why = {"token": MOVED, "numbers": numbers, "remedy": move.why.remedy}
    row = {"id": made, "job_id": job.id, "number": number, "lease_id": lease_id, "why": dumps(why)}
    session.execute(_RESERVE, {**row, "placed": dumps(placed_json(move.placed))})
    leases.take(
        session,
        lease_id=lease_id,
        attempt_id=made,
        job_id=job.id,
        tenant_id=job.tenant_id,
        placed=move.placed,
        klass=PriorityClass(session.execute(_CLASS, {"id": move.attempt}).scalar_one()),
        contingent_on=(move.attempt,),
        loans=move.loans,
        max_duration_ms=job.request.get("max_duration_ms"),
    )
    data: Mapping[str, Any] = {"numbers": numbers, "contingent_on": [move.attempt], "waiter": move.waiter}
    events.insert(session, job.id, job.tenant_id, "RESERVED", attempt_id=made, reason=MOVED, data=data)
    return made, replace(job, attempts=number, version=version)


def next_of(session: Session, job: JobRow, attempt: AttemptRow) -> Next | None:
    """The attempt to which the job goes on when this one is settled; its row is locked."""
    if job.array_size is not None or job.attempts <= attempt.number:
        return None
    row = session.execute(_NEXT, {"job": job.id, "number": attempt.number}).first()
    return None if row is None else Next(row.id, row.viable)


def speaks(session: Session, attempt: AttemptRow) -> bool:
    """Whether the end of this attempt is its job's business: not while the one before it lives."""
    if attempt.why.get("token") != MOVED:
        return True
    return session.execute(_BEFORE, {"job": attempt.job_id, "number": attempt.number}).first() is None


def call_off(session: Session, next_: Next) -> None:
    """End an attempt that was never launched: its job ends, or goes to the queue. Nothing of it is outside."""
    lease = leases.lock_for_end(session, next_.attempt_id)
    if lease is not None:
        leases.release(session, lease, used_from=None, used_until=None, payer=Payer.NOBODY)
    values = {"message": CALLED_OFF}
    if not move_attempt(session, next_.attempt_id, AttemptState.STOPPED, reason=Reason.GANG_ROLLED_BACK, values=values):
        raise AssertionError(f"attempt {next_.attempt_id} was live under its lock and would not become STOPPED")


def go_on(session: Session, job_id: UUID, next_: Next) -> None:
    """The job has just become QUEUED, and nobody has seen it so: its next attempt has its place."""
    values = {"pending": null(), "not_before": null()}
    if not move_job(session, job_id, JobState.ADMITTED, values=values, data={"token": MOVED, "next": next_.attempt_id}):
        raise AssertionError(f"job {job_id} was settled as QUEUED under its lock and would not be ADMITTED")
