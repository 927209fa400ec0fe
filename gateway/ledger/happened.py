"""Appends events of jobs that change no state: wishes, waits, notices, progress. States' own events: `transition`."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger.codec import dumps

_APPEND = text(
    """
    INSERT INTO events (at, job_id, attempt_id, tenant_id, kind, reason, data)
    VALUES (now(), :job_id, :attempt_id, :tenant_id, :kind, :reason, CAST(:data AS jsonb))
    """
)


def append(
    session: Session,
    kind: str,
    *,
    job_id: UUID,
    tenant_id: int,
    attempt_id: str | None = None,
    reason: str = "",
    data: Mapping[str, Any] | None = None,
) -> None:
    """One event, at the database's now()."""
    session.execute(
        _APPEND,
        {
            "job_id": job_id,
            "attempt_id": attempt_id,
            "tenant_id": tenant_id,
            "kind": kind,
            "reason": reason,
            "data": dumps(dict(data or {})),
        },
    )
