"""API tokens. The secret is in the answer that made it and nowhere else; nobody gives a role above their own."""

from datetime import UTC, timedelta
from typing import Annotated
from uuid import UUID, uuid4

from fastapi import APIRouter, Query
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gateway.api.auth import TenantAdmin, digest, new_token
from gateway.api.bodies import StrictRoute
from gateway.api.callers import Caller
from gateway.api.common import narrowed, scope_of, visible_tenant
from gateway.api.deps import DepsOf
from gateway.api.pages import Cursor, Limit, page_of
from gateway.api.problems import ProblemError, not_found
from gateway.ledger.tables.access import Token
from gateway.operators import audit
from gateway.queries import access
from policies.vocabulary import Role
from tidegate.wire.operator import TokenPage, TokenRequest, TokenView
from tidegate.wire.spec import TenantPath

router = APIRouter(tags=["tokens"], route_class=StrictRoute)


@router.get("/tokens")
def list_tokens(
    deps: DepsOf,
    caller: TenantAdmin,
    tenant: Annotated[TenantPath | None, Query()] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> TokenPage:
    """Tokens of the subtree, oldest first, without their secrets."""
    scope = narrowed(caller, tenant)
    with deps.transaction() as session:
        found = access.tokens(session, scope)
    items, following = page_of(
        deps.cursor_key,
        {"list": "tokens", "scope": scope.path},
        found,
        # Fixed width: ISO texts of one zone order as the instants do.
        lambda token: (token.created_at.astimezone(UTC).isoformat(timespec="microseconds"), token.id),
        limit=limit,
        cursor=cursor,
    )
    return TokenPage(items=items, next=following)


@router.post("/tokens", status_code=201)
def create_token(deps: DepsOf, caller: TenantAdmin, wanted: TokenRequest) -> TokenView:
    """Make a token. Its secret is shown this once."""
    role = Role[wanted.role.name]
    _not_above(caller, role)
    secret = new_token()
    with deps.transaction() as session:
        tenant_id = visible_tenant(session, caller, wanted.tenant)
        now = session.execute(select(func.now())).scalar_one()
        row = Token(
            id=uuid4(),
            digest=digest(secret),
            tenant_id=tenant_id,
            principal=wanted.principal,
            role=int(role),
            note=wanted.note,
            created_at=now,
            expires_at=now + timedelta(seconds=wanted.expires_in) if wanted.expires_in else None,
        )
        session.add(row)
        _record(session, caller, "token.create", row, wanted.tenant)
    return access.token_view(row, wanted.tenant, secret)


@router.delete("/tokens/{token_id}")
def revoke_token(deps: DepsOf, caller: TenantAdmin, token_id: UUID) -> TokenView:
    """Make it worthless, at once and for ever."""
    with deps.transaction() as session:
        found = access.token(session, scope_of(caller), token_id)
        if found is None:
            raise not_found("token", token_id)
        row, path = found
        _not_above(caller, Role(row.role))
        if row.revoked_at is None:
            row.revoked_at = session.execute(select(func.now())).scalar_one()
            _record(session, caller, "token.revoke", row, path)
    deps.callers.forget()
    return access.token_view(row, path)


def _not_above(caller: Caller, role: Role) -> None:
    if role > caller.role:
        raise ProblemError(
            403,
            "forbidden",
            f"a {caller.role.name.lower()} may not make or revoke a token of role {role.name.lower()}",
            field="role",
            remedy="ask an operator",
        )


def _record(session: Session, caller: Caller, action: str, row: Token, path: str) -> None:
    audit.record(
        session,
        principal=caller.principal,
        tenant_id=row.tenant_id,
        action=action,
        target=str(row.id),
        after={"tenant": path, "principal": row.principal, "role": Role(row.role).name.lower(), "note": row.note},
    )
