"""A resize inside a living allocation: attempt and launch stay, the lease changes when the members are there or gone.

A growth was leased before the backend was asked; what a shrinking frees is its waiters' in the transaction that says
that the members are gone. It ends at the asked size or at the old one. Never talks to a backend.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger import events, leases, outbox, resizing
from gateway.ledger.codec import dumps, placed_json, placed_of
from gateway.ledger.limits import amounts_of

_LOCK_JOB = text(
    "SELECT id, tenant_id FROM jobs WHERE id = (SELECT job_id FROM attempts WHERE attempts.id = :id) FOR NO KEY UPDATE"
)
_LOCK = text(
    """
    SELECT resize_to, placed, stop_for FROM attempts
    WHERE id = :id AND ended_at IS NULL AND stopping_at IS NULL AND stop_cause = 'resize'
        AND CAST(resize_to->>'in_place' AS boolean)
    FOR NO KEY UPDATE
    """
)
_SENT = text(
    """
    UPDATE attempts SET resize_to = resize_to || '{"sent": true}', version = version + 1
    WHERE id = :id AND ended_at IS NULL AND stop_cause = 'resize' AND NOT resize_to ? 'sent'
    """
)
_DONE = text(
    """
    UPDATE attempts SET placed = CAST(:placed AS jsonb), resize_to = NULL, stop_cause = NULL,
        resized_at = CAST(resize_to->>'at' AS timestamptz),
        stop_grace_s = NULL, stop_asked_at = NULL, stop_for = '', stop_credit = false, version = version + 1
    WHERE id = :id
    """
)
# A waiter is owed the room: what would not become smaller is stopped for it after all, with the grace it was given.
_STOP_INSTEAD = text(
    """
    UPDATE attempts SET resize_to = NULL, stop_cause = 'preempt', stop_asked_at = now(), version = version + 1
    WHERE id = :id AND EXISTS (
        SELECT FROM leases WHERE attempt_id = attempts.stop_for AND state = 'contingent')
    """
)
_JOB = text("UPDATE jobs SET pending = NULL, version = version + 1 WHERE id = :id")


def sent(session: Session, attempt_id: str) -> None:
    """The backend has been asked."""
    session.execute(_SENT, {"id": attempt_id})


def done(session: Session, attempt_id: str, *, reached: bool, message: str = "") -> bool:
    """It ended: at the asked size, or (not reached) at the old one. False: nothing of it is under way any more."""
    job = session.execute(_LOCK_JOB, {"id": attempt_id}).one_or_none()
    row = session.execute(_LOCK, {"id": attempt_id}).mappings().one_or_none()
    if job is None or row is None:
        return False
    wish: Mapping[str, Any] = row["resize_to"]
    leases.lock_for_end(session, attempt_id)
    told = _reached(session, attempt_id, wish) if reached else _kept(session, attempt_id, wish, row)
    session.execute(_JOB, {"id": job.id})
    data = {"from": wish["from"], "to": wish["replicas"], "message": message[:500]}
    kind = "Resized" if reached else "ResizeFailed"
    events.insert(session, job.id, job.tenant_id, kind, attempt_id=attempt_id, reason=wish["token"], data=data)
    outbox.add(session, outbox.NUDGE, [attempt_id, *told])
    outbox.wake_arbiter(session)
    return True


def _reached(session: Session, attempt_id: str, wish: Mapping[str, Any]) -> list[str]:
    placed = placed_of(wish["placed"])
    told: list[str] = []
    if wish["replicas"] < wish["from"]:
        told = leases.victim_settled(session, attempt_id, amounts_of(wish["items"]))
        resizing.change_lease(session, attempt_id, placed, smaller=True)
    session.execute(_DONE, {"id": attempt_id, "placed": dumps(placed_json(placed))})
    return told


def _kept(session: Session, attempt_id: str, wish: Mapping[str, Any], row: Mapping[Any, Any]) -> list[str]:
    if wish["replicas"] > wish["from"]:
        resizing.change_lease(session, attempt_id, placed_of(row["placed"]), smaller=True)
    stopped: Any = session.execute(_STOP_INSTEAD, {"id": attempt_id})
    if not stopped.rowcount:
        session.execute(_DONE, {"id": attempt_id, "placed": dumps(row["placed"])})
    return []
