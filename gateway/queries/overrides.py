"""Operators' words about attempts, and the attempt that a new one is about."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Row, Select, select
from sqlalchemy.orm import Session
from sqlmodel import col

from gateway.ledger.tables.access import Tenant
from gateway.ledger.tables.control import OverrideRow
from gateway.ledger.tables.work import AttemptRow, JobRow
from gateway.queries.scope import Scope
from tidegate.wire.governance import OverrideView


def _visible(scope: Scope) -> Select[OverrideRow, UUID, str]:
    return (
        select(OverrideRow, col(JobRow.id), col(Tenant.path))
        .join(AttemptRow, col(AttemptRow.id) == col(OverrideRow.attempt_id))
        .join(JobRow, col(JobRow.id) == col(AttemptRow.job_id))
        .join(Tenant, col(Tenant.id) == col(JobRow.tenant_id))
        .where(scope.where())
    )


def page(session: Session, scope: Scope, *, after: int, limit: int) -> list[OverrideView]:
    """By id, those that are over included."""
    rows = session.execute(
        _visible(scope).where(col(OverrideRow.id) > after).order_by(col(OverrideRow.id)).limit(limit)
    )
    return [view(row, job, path) for row, job, path in rows]


def find(session: Session, scope: Scope, override_id: int) -> tuple[OverrideRow, UUID, str] | None:
    """One, locked until the transaction ends."""
    query = _visible(scope).where(col(OverrideRow.id) == override_id).with_for_update(of=OverrideRow)
    found = session.execute(query).first()
    return (found[0], found[1], found[2]) if found else None


def live(
    session: Session, scope: Scope, *, attempt: str | None, job: UUID | None
) -> Sequence[Row[str, UUID, int, str]]:
    """(attempt, job, tenant id, tenant path) of the live attempt of this id, or of all live ones of the job."""
    query = (
        select(col(AttemptRow.id), col(JobRow.id), col(JobRow.tenant_id), col(Tenant.path))
        .join(JobRow, col(JobRow.id) == col(AttemptRow.job_id))
        .join(Tenant, col(Tenant.id) == col(JobRow.tenant_id))
        .where(scope.where(), col(AttemptRow.ended_at).is_(None))
    )
    wanted = col(AttemptRow.id) == attempt if attempt is not None else col(JobRow.id) == job
    return session.execute(query.where(wanted).limit(2)).all()


def tenant_of(session: Session, job: UUID) -> int:
    """The id of a job's tenant."""
    return session.execute(select(col(JobRow.tenant_id)).where(col(JobRow.id) == job)).scalar_one()


def view(row: OverrideRow, job: UUID, tenant: str) -> OverrideView:
    """As the API shows it."""
    return OverrideView(
        id=row.id or 0,
        tenant=tenant,
        job=str(job),
        attempt=row.attempt_id,
        preemption="force" if row.force else "forbid",
        reason=row.reason,
        by=row.principal,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )
