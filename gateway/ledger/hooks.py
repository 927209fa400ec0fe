"""Webhooks that a change of a job's state owes: outbox rows in the transaction of the change itself. Sends nothing."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from gateway.ledger import outbox

_FACTS: Final = text("SELECT path, now() AS now FROM tenants WHERE id = :tenant")
MAX_MESSAGE: Final = 2000


def owe(session: Session, job: Row[Any], data: Mapping[str, Any] | None) -> None:
    """One row per receiver that wants to hear of the state that the job's row has come to."""
    wanted = [hook for hook in job.spec.get("notify", ()) if job.state in hook["on"]]
    if not wanted:
        return
    facts = session.execute(_FACTS, {"tenant": job.tenant_id}).one()
    for hook in wanted:
        at = job.spec["notify"].index(hook)
        body = _body(job, facts.path, facts.now, data or {}, delivery=f"{job.id}.{job.version}.{at}")
        outbox.add(session, outbox.WEBHOOK, [str(job.id)], {"url": hook["url"], "tenant": facts.path, "body": body})


def _body(job: Row[Any], tenant: str, now: datetime, data: Mapping[str, Any], *, delivery: str) -> dict[str, Any]:
    """What docs/WEBHOOKS.md promises. The job's own words alone: nothing of others, no environment, no command."""
    return {
        "id": delivery,
        "type": f"job.{job.state}",
        "at": now.astimezone(UTC).isoformat(timespec="milliseconds"),
        "job": {
            "id": str(UUID(str(job.id))),
            "name": job.name,
            "tenant": tenant,
            "state": job.state,
            "reason": job.reason,
            "message": job.message[:MAX_MESSAGE],
            "exit_code": job.exit_code,
            "attempts": job.attempts,
            "version": job.version,
            "labels": job.labels,
        },
        "credit_gpu_ms": data.get("credit_gpu_ms", 0),
    }
