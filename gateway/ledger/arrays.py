"""Indexes of an array as rows: which of them are open, the end of one that never began, and the end of the whole.

Never touches attempts or leases; the caller holds the job's lock.
"""

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from policies.arrays import array_end
from policies.vocabulary import JobState, Reason

_CANCEL = text(
    """
    INSERT INTO tasks (job_id, index, state, reason, attempts, failures, want_cancel)
    VALUES (:job_id, :index, 'CANCELLED', :reason, 0, 0, true)
    ON CONFLICT (job_id, index) DO UPDATE SET state = 'CANCELLED', reason = :reason, want_cancel = true
        WHERE tasks.state = 'QUEUED'
    RETURNING index
    """
)
_WISH = text(
    """
    UPDATE tasks SET want_cancel = true WHERE job_id = :job_id AND index = :index AND NOT want_cancel
        AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
    RETURNING index
    """
)
_CANCEL_REST = text(
    "UPDATE tasks SET state = 'CANCELLED', reason = :reason WHERE job_id = :job_id AND state = 'QUEUED'"
)
# As of a gang's members: the first by end time, ties by the lowest index.
_FIRST_FAILED = text(
    """
    SELECT t.reason, t.exit_code FROM tasks t LEFT JOIN attempts a ON a.id = t.attempt_id
    WHERE t.job_id = :job_id AND t.state = 'FAILED' ORDER BY a.ended_at, t.index LIMIT 1
    """
)
_CANCELLED = text("SELECT count(*) FROM tasks WHERE job_id = :job_id AND state = 'CANCELLED'")
_MISSING = text(
    """
    SELECT n FROM generate_series(0, CAST(:before AS int) - 1) AS n
    WHERE NOT EXISTS (SELECT FROM tasks WHERE job_id = :job_id AND index = n) ORDER BY n LIMIT :limit
    """
)
_ENDS: Final = frozenset({JobState.SUCCEEDED, JobState.FAILED})


def cancel_waiting(session: Session, job_id: UUID, index: int) -> bool:
    """An index that waits, or has no row yet, is CANCELLED. False: it is live or has ended."""
    values = {"job_id": job_id, "index": index, "reason": Reason.USER_CANCELLED.value}
    return session.execute(_CANCEL, values).one_or_none() is not None


def wish_cancel(session: Session, job_id: UUID, index: int) -> bool:
    """A live index is to end. False: that was wished before, or it has ended."""
    return session.execute(_WISH, {"job_id": job_id, "index": index}).one_or_none() is not None


def cancel_rest(session: Session, job_id: UUID) -> None:
    """The whole array is cancelled: indexes that wait for another try will get none."""
    session.execute(_CANCEL_REST, {"job_id": job_id, "reason": Reason.USER_CANCELLED.value})


def words_of_end(session: Session, job_id: UUID, end: JobState) -> tuple[Reason, int | None]:
    """(reason, exit code) of the whole: of the index that failed first where the array has failed."""
    if end is JobState.CANCELLED:
        return Reason.USER_CANCELLED, None
    if end is JobState.SUCCEEDED:
        return Reason.COMPLETED, 0
    first = session.execute(_FIRST_FAILED, {"job_id": job_id}).one_or_none()
    if first is None:
        return Reason.NON_ZERO_EXIT, None
    return Reason(first.reason), first.exit_code


def without_row(session: Session, job_id: UUID, before: int, limit: int) -> list[int]:
    """Indexes below `before` to which nothing has happened yet: a cancelled one further on leaves such holes."""
    return list(session.execute(_MISSING, {"job_id": job_id, "before": before, "limit": limit}).scalars())


def end_of(
    session: Session, job_id: UUID, request: Mapping[str, Any], *, size: int, ended: int, failed: int, cancelled: bool
) -> JobState | None:
    """The job's end by its rule, None before. An array of which every index was cancelled is CANCELLED itself."""
    max_failed = int((request.get("array") or {}).get("max_failed") or 0)
    result = array_end(size=size, ended=ended, failed=failed, max_failed=max_failed, cancelled=cancelled)
    if result in _ENDS and session.execute(_CANCELLED, {"job_id": job_id}).scalar_one() == size:
        return JobState.CANCELLED
    return result
