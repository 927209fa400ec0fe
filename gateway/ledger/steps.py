"""The guarded steps of a live attempt that its workflow reports: launched, running, told to stop, saved.

Each may be repeated. The job moves with its attempt. Never ends an attempt: `settlement.settle` alone does.
"""

from datetime import datetime
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger import events, outbox, placing, survivors, transition
from gateway.ledger.config import LedgerSettings
from policies.states import LIVE_ATTEMPT_STATES
from policies.vocabulary import AttemptState, JobState, StopCause

# A milder wish gives way to these; among them the first stays.
_HARDER: Final = (StopCause.CANCEL.value,)
_JOB_AFTER: Final = {
    AttemptState.RUNNING: JobState.RUNNING,
    AttemptState.STOPPING: JobState.STOPPING,
}

_ATTEMPT = text(
    """
    SELECT a.id, a.job_id, a.state, a.version, a.chunk, a.stop_cause, j.tenant_id, j.state AS job_state, j.array_size
    FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE a.id = :id
    """
)
_STARTED = text(
    """
    UPDATE attempts SET started_groups = started_groups || to_jsonb(CAST(:backend AS text))
    WHERE id = :id AND ended_at IS NULL AND NOT started_groups ? :backend
    """
)
# A stop ends at stopping_at + stop_grace_s, once it was told. A later one may bring that forward and never put it off;
# its grace counts from now, the row's from when the first was told.
_ASK = text(
    """
    UPDATE attempts SET stop_cause = :cause, stop_asked_at = now(), version = version + 1,
        stop_grace_s = least(stop_grace_s, :grace_s + coalesce(ceil(extract(epoch FROM now() - stopping_at))::int, 0))
    WHERE id = :id AND ended_at IS NULL
        AND (stop_cause IS NULL OR (:cause = ANY(:harder) AND NOT stop_cause = ANY(:harder))
            -- Members that come or go under a launch are no stop: any gives way to.
            OR (stop_cause = 'resize' AND CAST(resize_to->>'in_place' AS boolean)))
    RETURNING job_id
    """
)
_SENT = text(
    """
    UPDATE attempts SET stopping_at = coalesce(stopping_at, now()), stop_cause = coalesce(stop_cause, :gone),
        noticed_at = CASE WHEN coalesce(CAST(:grace_s AS int), stop_grace_s, 0) > 0 THEN coalesce(noticed_at,
            greatest(stop_asked_at, now() - make_interval(secs => :since_s))) ELSE noticed_at END,
        stop_asked_at = coalesce(stop_asked_at, now()), stop_grace_s = coalesce(stop_grace_s, 0), version = version + 1
    WHERE id = :id AND ended_at IS NULL AND stopping_at IS NULL
    """
)
_SENT_TOO_LONG = text(
    """
    UPDATE attempts SET stopping_at = NULL, version = version + 1
    WHERE id = :id AND ended_at IS NULL AND stop_grace_s < :grace_s
    """
)
_SENT_SOONER = text(
    """
    UPDATE attempts SET stop_grace_s = :grace_s + ceil(extract(epoch FROM now() - stopping_at))::int,
        version = version + 1
    WHERE id = :id AND ended_at IS NULL
        AND stop_grace_s > :grace_s + ceil(extract(epoch FROM now() - stopping_at))::int
    """
)
_SAVED = text(
    """
    UPDATE attempts SET checkpoint_asked = greatest(checkpoint_asked, :number), version = version + 1
    WHERE id = :id AND ended_at IS NULL AND checkpoint_asked < :number
    """
)
_TASK = text("UPDATE tasks SET state = :state WHERE job_id = :job_id AND index = :chunk AND attempt_id = :attempt_id")


def mark(session: Session, attempt_id: str, to: AttemptState, at: datetime | None = None) -> bool:
    """One step along the table, the job's with it; False when the row was elsewhere already."""
    if to not in LIVE_ATTEMPT_STATES:
        raise ValueError(f"{to} is an end; only settle() ends an attempt")
    if not transition.move_attempt(session, attempt_id, to, at=at):
        return False
    row = session.execute(_ATTEMPT, {"id": attempt_id}).one()
    if row.chunk is not None:
        state = JobState.RUNNING if to is AttemptState.RUNNING else JobState.ADMITTED
        values = {"state": state, "job_id": row.job_id, "chunk": row.chunk, "attempt_id": attempt_id}
        session.execute(_TASK, values)
    after = _JOB_AFTER.get(to)
    # One index of an array that stops does not stop the array.
    if after is not None and not (after is JobState.STOPPING and row.array_size is not None):
        transition.move_job(session, row.job_id, after, at=at, values={"pending": None})
    return True


def prepared(session: Session, attempt_id: str, backend: str, native: str) -> None:
    """The handle of a prepared launch; the same again changes nothing. The last one of a waiter tells its victims."""
    placing.prepared(session, attempt_id, backend, native)


def started(session: Session, attempt_id: str, backend: str) -> None:
    """start() was answered."""
    session.execute(_STARTED, {"id": attempt_id, "backend": backend})


def ask_stop(session: Session, attempt_id: str, cause: StopCause, grace_s: int) -> bool:
    """Write a stop wish if there is none yet; a cancel overrides a milder one.

    RESIZE: a provider takes some members and the others go on; where they cannot after all, it is a revocation.
    """
    row = _lock_job(session, attempt_id)
    if row is None:
        return False
    if cause is StopCause.RESIZE and not survivors.write(session, attempt_id):
        cause = StopCause.REVOCATION
    values = {"id": attempt_id, "cause": cause.value, "grace_s": grace_s, "harder": list(_HARDER)}
    if session.execute(_ASK, values).one_or_none() is None:
        return False
    data = {"grace_ms": grace_s * 1000}
    events.append(session, row.job_id, "StopAsked", attempt_id=attempt_id, reason=cause.value, data=data)
    outbox.add(session, outbox.NUDGE, [attempt_id])
    return True


def out_of_budget(session: Session, attempt_id: str, settings: LedgerSettings) -> bool:
    """The lease could not be renewed: notice, the job's own grace, then QUEUED(BudgetExhausted)."""
    row = _lock_job(session, attempt_id)
    if row is None:
        return False
    return ask_stop(session, attempt_id, StopCause.BUDGET, row.request.get("grace_s", settings.default_grace_s))


def stop_sent(session: Session, attempt_id: str, grace_s: int | None = None, since_s: float = 0) -> None:
    """The backend has the stop. A wish that was taken back in this very moment came too late: it counts as given.

    `grace_s`: what it was told now. If the row wants a shorter one by now, it has still to be told that; if it was
    told more before, its end is nearer from now on. `since_s`: how long ago the first member may have heard it.
    """
    if _lock_job(session, attempt_id) is None:
        return
    values = {"id": attempt_id, "gone": StopCause.WAITER_GONE.value, "grace_s": grace_s, "since_s": since_s}
    session.execute(_SENT, values)
    mark(session, attempt_id, AttemptState.STOPPING)
    if grace_s is not None:
        session.execute(_SENT_TOO_LONG, {"id": attempt_id, "grace_s": grace_s})
        session.execute(_SENT_SOONER, {"id": attempt_id, "grace_s": grace_s})


def checkpoint_sent(session: Session, attempt_id: str, number: int) -> None:
    """The wish with this number, and every earlier one, was carried out."""
    row = _lock_job(session, attempt_id)
    if row is not None and _rowcount(session.execute(_SAVED, {"id": attempt_id, "number": number})):
        events.append(session, row.job_id, "CheckpointAsked", attempt_id=attempt_id, data={"number": number})


def adopt(session: Session, attempt_id: str, backend: str, native: str) -> bool:
    """Take an object found by its tag into a live attempt's handles; False: no live attempt is placed there."""
    wanted = session.execute(
        text(
            """
            SELECT a.handles->>:backend AS known FROM attempts a
            WHERE a.id = :id AND a.ended_at IS NULL AND EXISTS (
                SELECT FROM jsonb_array_elements(a.placed) part JOIN pools ON pools.name = part->>'pool'
                WHERE pools.backend = :backend)
            """
        ),
        {"id": attempt_id, "backend": backend},
    ).one_or_none()
    if wanted is None:
        return False
    if wanted.known not in {None, "", native}:
        return False  # two objects with one key: the one that is known stays, the caller ends the other
    if wanted.known != native:
        prepared(session, attempt_id, backend, native)
        outbox.add(session, outbox.NUDGE, [attempt_id])
    return True


def _lock_job(session: Session, attempt_id: str) -> Any:
    """The job's row first, then the attempt's: everybody's order."""
    return session.execute(
        text(
            """
            SELECT id AS job_id, tenant_id, request FROM jobs
            WHERE id = (SELECT job_id FROM attempts WHERE attempts.id = :id) FOR NO KEY UPDATE
            """
        ),
        {"id": attempt_id},
    ).one_or_none()


def _rowcount(result: Any) -> int:
    return int(result.rowcount)
