"""Tokens, audit and grants as they are shown. No secret and no digest ever leaves."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session
from sqlmodel import col

from gateway.ledger.tables.access import Audit, Tenant, Token
from gateway.ledger.tables.capacity import GrantRow
from gateway.operators.amounts import show_signed
from gateway.queries.scope import Scope
from policies.vocabulary import Role as StoredRole
from tidegate.wire.enums import Resource, Role
from tidegate.wire.operator import AuditView, GrantView, TokenView


def audit(session: Session, scope: Scope, *, before: int | None, limit: int) -> Sequence[AuditView]:
    """Newest first. Acts without a tenant are the platform's."""
    query = select(Audit, col(Tenant.path)).outerjoin(Tenant, col(Tenant.id) == col(Audit.tenant_id))
    if scope.path is not None:
        query = query.where(scope.where(), col(Audit.tenant_id).is_not(None))
    if before is not None:
        query = query.where(col(Audit.id) < before)
    rows = session.execute(query.order_by(col(Audit.id).desc()).limit(limit))
    return [
        AuditView(
            id=row.id or 0,
            at=row.at,
            principal=row.principal,
            tenant=path,
            action=row.action,
            target=row.target,
            reason=row.reason,
            before=row.before,
            after=row.after,
        )
        for row, path in rows
    ]


def token_view(row: Token, tenant: str, secret: str | None = None) -> TokenView:
    """`secret` only in the answer that made it."""
    return TokenView(
        id=str(row.id),
        tenant=tenant,
        principal=row.principal,
        role=Role(StoredRole(row.role).name.lower()),
        note=row.note,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        secret=secret,
    )


def tokens(session: Session, scope: Scope) -> Sequence[TokenView]:
    """API tokens of a subtree, oldest first; a job's own tokens are nobody's business."""
    rows = session.execute(
        select(Token, col(Tenant.path))
        .join(Tenant, col(Tenant.id) == col(Token.tenant_id))
        .where(scope.where(), col(Token.attempt_id).is_(None))
        .order_by(col(Token.created_at), col(Token.id))
    )
    return [token_view(row, path) for row, path in rows]


def token(session: Session, scope: Scope, token_id: UUID) -> tuple[Token, str] | None:
    """One of them, locked for a change."""
    found = session.execute(
        select(Token, col(Tenant.path))
        .join(Tenant, col(Tenant.id) == col(Token.tenant_id))
        .where(scope.where(), col(Token.id) == token_id, col(Token.attempt_id).is_(None))
        .with_for_update(of=Token)
    ).first()
    return (found[0], found[1]) if found else None


def grant_view(row: GrantRow, tenant: str) -> GrantView:
    """A grant with amounts as texts."""
    resource = Resource(row.resource)
    return GrantView(
        id=row.id or 0,
        tenant=tenant,
        flavor=row.flavor,
        resource=resource,
        delta_min=show_signed(row.delta_min, resource),
        delta_max=show_signed(row.delta_max, resource),
        reclaimable=row.reclaimable,
        starts_at=row.starts_at,
        ends_at=row.ends_at,
        recurrence=row.recurrence,
        cause=row.cause,
        approver=row.approver,
        revoked_at=row.revoked_at,
    )


def grants(session: Session, scope: Scope, *, after: int, limit: int) -> Sequence[GrantView]:
    """By id."""
    rows = session.execute(
        select(GrantRow, col(Tenant.path))
        .join(Tenant, col(Tenant.id) == col(GrantRow.tenant_id))
        .where(scope.where(), col(GrantRow.id) > after)
        .order_by(col(GrantRow.id))
        .limit(limit)
    )
    return [grant_view(row, path) for row, path in rows]


def grant(session: Session, scope: Scope, grant_id: int) -> tuple[GrantRow, str] | None:
    """One, locked for a change."""
    found = session.execute(
        select(GrantRow, col(Tenant.path))
        .join(Tenant, col(Tenant.id) == col(GrantRow.tenant_id))
        .where(scope.where(), col(GrantRow.id) == grant_id)
        .with_for_update(of=GrantRow)
    ).first()
    return (found[0], found[1]) if found else None
