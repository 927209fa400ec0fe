"""A waiter is gone: the victims that have not been told yet are spared. Those already told go, and are queued again.

What was only due (`gateway.ledger.placing`) counts no longer from the moment the waiter's lease is resolved; it is
taken off here to be tidy, and so that an event says it. Another stop than the arbiter's own is left alone.
"""

from typing import Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger import events, outbox
from policies.vocabulary import ARBITERS_STOPS

OURS: Final = sorted(cause.value for cause in ARBITERS_STOPS)
_SPARE = text(
    """
    UPDATE attempts AS victim SET stop_due = NULL, version = victim.version + 1,
        stop_cause = CASE WHEN spared.told THEN victim.stop_cause END,
        stop_grace_s = CASE WHEN spared.told THEN victim.stop_grace_s END,
        stop_asked_at = CASE WHEN spared.told THEN victim.stop_asked_at END,
        noticed_at = CASE WHEN spared.told THEN victim.noticed_at END,
        stop_for = CASE WHEN spared.told THEN victim.stop_for ELSE '' END,
        stop_credit = spared.told AND victim.stop_credit
    FROM jobs, (
        -- A row in other hands is on its way out: it is left alone, and nobody waits in a ring.
        SELECT id, stopping_at IS NOT NULL OR (stop_cause IS NOT NULL AND NOT stop_cause = ANY(:ours)) AS told
        FROM attempts WHERE stop_for = ANY(:waiters) AND ended_at IS NULL
            AND (stop_due IS NOT NULL OR (stopping_at IS NULL AND stop_cause = ANY(:ours)))
            AND state IN ('RESERVED', 'PENDING', 'RUNNING', 'CHECKPOINTING', 'STOPPING')
            -- A displaced waiter has no lease to come back to.
            AND EXISTS (SELECT FROM leases l WHERE l.attempt_id = attempts.id AND l.state IN ('held', 'contingent'))
        ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    ) spared
    WHERE victim.id = spared.id AND jobs.id = victim.job_id
    RETURNING victim.id, victim.job_id, jobs.tenant_id, spared.told
    """
)
_WAIT_FOR = text(
    "SELECT attempt_id FROM leases WHERE state = 'contingent' AND contingent_on ?| CAST(:spared AS text[]) ORDER BY id"
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
    found = session.execute(_SPARE, {"waiters": waiters, "ours": OURS}).all()
    spared = [row for row in found if not row.told]
    for row in spared:
        events.insert(session, row.job_id, row.tenant_id, "Spared", attempt_id=row.id)
    outbox.add(session, outbox.NUDGE, [row.id for row in spared])
    if spared:  # where one was to be moved, its next attempt has to go
        waiting = session.execute(_WAIT_FOR, {"spared": [row.id for row in spared]})
        outbox.add(session, outbox.NUDGE, [row.attempt_id for row in waiting])
    return [row.id for row in spared]


def spare_victims_of(session: Session, job_id: UUID) -> list[str]:
    """The same for every attempt of a job that waits on a contingent lease."""
    return spare_victims(session, [row.id for row in session.execute(_WAITERS, {"job_id": job_id})])
