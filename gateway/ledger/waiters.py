"""A waiter is gone: the victims that have not been told yet are spared. Those already told go, and are queued again."""

from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger import events, outbox

_SPARE = text(
    """
    UPDATE attempts AS victim SET stop_cause = NULL, stop_grace_s = NULL, stop_asked_at = NULL, stop_for = '',
        stop_credit = false, version = victim.version + 1
    FROM jobs
    WHERE victim.id IN (
            -- A row in other hands is on its way out: it is left alone, and nobody waits in a ring.
            SELECT id FROM attempts WHERE stop_for = ANY(:waiters) AND stopping_at IS NULL AND ended_at IS NULL
                AND state IN ('RESERVED', 'PENDING', 'RUNNING')
                -- A displaced waiter has no lease to come back to.
                AND EXISTS (SELECT FROM leases l WHERE l.attempt_id = attempts.id AND l.state IN ('held', 'contingent'))
            ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
        ) AND jobs.id = victim.job_id
    RETURNING victim.id, victim.job_id, jobs.tenant_id
    """
)
_WAITERS = text(
    """
    SELECT attempts.id FROM attempts JOIN leases ON leases.attempt_id = attempts.id
    WHERE attempts.job_id = :job_id AND attempts.ended_at IS NULL AND leases.state = 'contingent'
    """
)


def spare_victims(session: Session, waiters: list[str]) -> list[str]:
    """Take the stop wishes back that were written for these waiting attempts, where nobody was told; their ids."""
    if not waiters:
        return []
    spared = session.execute(_SPARE, {"waiters": waiters}).all()
    for row in spared:
        events.insert(session, row.job_id, row.tenant_id, "Spared", attempt_id=row.id)
    outbox.add(session, outbox.NUDGE, [row.id for row in spared])
    return [row.id for row in spared]


def spare_victims_of(session: Session, job_id: UUID) -> list[str]:
    """The same for every attempt of a job that waits on a contingent lease."""
    return spare_victims(session, [row.id for row in session.execute(_WAITERS, {"job_id": job_id})])
