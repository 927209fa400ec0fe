"""What happened to a job, appended and never changed. No event follows the job's terminal one.

Words beside the states of jobs and attempts: see the constants here.
"""

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger.codec import dumps

CLASS_LOWERED: Final = "ClassLowered"
CREDIT_GRANTED: Final = "CreditGranted"
LEASE_RENEWED: Final = "LeaseRenewed"
PREEMPTION_LOST: Final = "PreemptionLost"
RENEWAL_REFUSED: Final = "RenewalRefused"
VICTIM_GONE: Final = "VictimGone"

_INSERT = text(
    """
    WITH told AS (
        INSERT INTO events (job_id, attempt_id, tenant_id, kind, reason, data)
        VALUES (:job_id, :attempt_id, :tenant_id, :kind, :reason, CAST(:data AS jsonb))
        RETURNING job_id
    )
    SELECT pg_notify('tidegate_events', CAST(job_id AS text)) FROM told
    """
)
_LOCK = text("SELECT tenant_id, ended_at FROM jobs WHERE id = :job_id FOR NO KEY UPDATE")


def append(
    session: Session,
    job_id: UUID,
    kind: str,
    *,
    attempt_id: str | None = None,
    reason: str = "",
    data: Mapping[str, Any] | None = None,
) -> bool:
    """Append unless the job has ended (or never was): then False. Locks the job's row."""
    job = session.execute(_LOCK, {"job_id": job_id}).one_or_none()
    if job is None or job.ended_at is not None:
        return False
    insert(session, job_id, job.tenant_id, kind, attempt_id=attempt_id, reason=reason, data=data)
    return True


def insert(
    session: Session,
    job_id: UUID,
    tenant_id: int,
    kind: str,
    *,
    attempt_id: str | None = None,
    reason: str = "",
    data: Mapping[str, Any] | None = None,
) -> None:
    """For a caller that holds the job's lock and has seen that it lives."""
    session.execute(
        _INSERT,
        {
            "job_id": job_id,
            "attempt_id": attempt_id,
            "tenant_id": tenant_id,
            "kind": kind,
            "reason": reason,
            "data": dumps(dict(data or {})),
        },
    )
