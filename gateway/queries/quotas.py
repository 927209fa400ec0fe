"""Quotas with what is held of them and what grants make of them now."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session
from sqlmodel import col

from gateway.ledger import estate
from gateway.ledger.tables.access import Tenant
from gateway.ledger.tables.capacity import QuotaRow
from gateway.operators.amounts import show
from gateway.queries.scope import Scope
from tidegate.wire.enums import Resource
from tidegate.wire.operator import QuotaView


def quotas(
    session: Session, scope: Scope, *, flavor: str | None = None, resource: Resource | None = None
) -> Sequence[QuotaView]:
    """By tenant, flavor and resource. `held` counts the subtree."""
    used = {(u.tenant, u.flavor, u.resource.value): u for u in estate.usages(session)}
    effective = {(q.tenant, q.flavor, q.resource.value): q for q in estate.quotas(session)}
    query = (
        select(QuotaRow, col(Tenant.path))
        .join(Tenant, col(Tenant.id) == col(QuotaRow.tenant_id))
        .where(scope.where())
        .order_by(col(Tenant.path), col(QuotaRow.flavor), col(QuotaRow.resource))
    )
    if flavor is not None:
        query = query.where(col(QuotaRow.flavor) == flavor)
    if resource is not None:
        query = query.where(col(QuotaRow.resource) == resource.value)
    found = []
    for row, path in session.execute(query):
        kind = Resource(row.resource)
        key = (path, row.flavor, row.resource)
        now = effective[key]
        found.append(
            QuotaView(
                tenant=path,
                flavor=row.flavor,
                resource=kind,
                min=show(row.min, kind),
                max=None if row.max is None else show(row.max, kind),
                lendable=show(row.lendable, kind),
                held=show(max(0, used[key].held) if key in used else 0, kind),
                observed=show(used[key].observed if key in used else 0, kind),
                effective_min=show(now.min, kind),
                effective_max=None if now.max is None else show(now.max, kind),
                etag=f'"{row.version}"',
            )
        )
    return found


def etag_of(session: Session, tenant: str, flavor: str, resource: Resource) -> str:
    """The validator of one quota, locked until the transaction ends; `"0"` where there is none."""
    version = session.execute(
        select(col(QuotaRow.version))
        .join(Tenant, col(Tenant.id) == col(QuotaRow.tenant_id))
        .where(col(Tenant.path) == tenant, col(QuotaRow.flavor) == flavor, col(QuotaRow.resource) == resource.value)
        .with_for_update(of=QuotaRow)
    ).scalar_one_or_none()
    return f'"{version or 0}"'
