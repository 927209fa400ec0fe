"""Who changed what. Tenants' admins see their own subtree's acts, operators all."""

from typing import Annotated

from fastapi import APIRouter, Query

from gateway.api.auth import TenantAdmin
from gateway.api.bodies import StrictRoute
from gateway.api.common import narrowed
from gateway.api.deps import DepsOf
from gateway.api.pages import Cursor, Limit, make_cursor, read_cursor
from gateway.queries import access
from tidegate.wire.operator import AuditPage
from tidegate.wire.spec import TenantPath

router = APIRouter(tags=["audit"], route_class=StrictRoute)


@router.get("/audit")
def list_audit(
    deps: DepsOf,
    caller: TenantAdmin,
    tenant: Annotated[TenantPath | None, Query()] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> AuditPage:
    """Newest first."""
    scope = narrowed(caller, tenant)
    filters = {"list": "audit", "scope": scope.path}
    last = read_cursor(deps.cursor_key, filters, cursor)
    with deps.transaction() as session:
        rows = access.audit(session, scope, before=int(last[0]) if last else None, limit=limit + 1)
    more = len(rows) > limit
    return AuditPage(
        items=tuple(rows[:limit]),
        next=make_cursor(deps.cursor_key, filters, [rows[limit - 1].id]) if more else None,
    )
