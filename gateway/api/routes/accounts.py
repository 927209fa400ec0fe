"""What tenants used, owe and are owed, as the ledger has it."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query

from gateway.api.auth import Viewer
from gateway.api.bodies import StrictRoute
from gateway.api.common import narrowed, scope_of, visible_tenant
from gateway.api.deps import DepsOf
from gateway.api.pages import Cursor, Limit, make_cursor, page_of, read_cursor
from gateway.queries import accounts
from gateway.queries.veil import veiled
from tidegate.wire.operator import CreditPage, Statement, UsagePage
from tidegate.wire.spec import TenantPath

router = APIRouter(tags=["accounts"], route_class=StrictRoute)
OfTenant = Annotated[TenantPath | None, Query(description="A tenant of the caller's subtree.")]


@router.get("/usage")
def list_usage(
    deps: DepsOf, caller: Viewer, tenant: OfTenant = None, limit: Limit = 100, cursor: Cursor = None
) -> UsagePage:
    """Held now and posted so far, per tenant and flavor."""
    scope = narrowed(caller, tenant)
    with deps.transaction() as session:
        found = accounts.usage(session, scope)
    filters = {"list": "usage", "scope": scope.path}
    items, following = page_of(
        deps.cursor_key, filters, found, lambda u: (u.tenant, u.flavor), limit=limit, cursor=cursor
    )
    return UsagePage(items=items, next=following)


@router.get("/credits")
def list_credits(
    deps: DepsOf, caller: Viewer, tenant: OfTenant = None, limit: Limit = 100, cursor: Cursor = None
) -> CreditPage:
    """What preemptions earned, newest first."""
    scope = narrowed(caller, tenant)
    filters = {"list": "credits", "scope": scope.path}
    last = read_cursor(deps.cursor_key, filters, cursor)
    before = (datetime.fromisoformat(last[0]), last[1], last[2]) if last else None
    with deps.transaction() as session:
        rows = accounts.granted_credits(session, scope, before=before, limit=limit + 1)
        items = tuple(veiled(session, scope_of(caller), rows[:limit]))
    following = None
    if len(rows) > limit:
        end = rows[limit - 1]
        following = make_cursor(deps.cursor_key, filters, [end.at.isoformat(), end.victim_attempt, accounts.tie(end)])
    return CreditPage(items=items, next=following)


@router.get("/statement")
def get_statement(
    deps: DepsOf, caller: Viewer, tenant: OfTenant = None, limit: Limit = 100, cursor: Cursor = None
) -> Statement:
    """The ledger's lines on one tenant's accounts, newest first."""
    path = tenant or caller.tenant
    filters = {"list": "statement", "tenant": path}
    last = read_cursor(deps.cursor_key, filters, cursor)
    with deps.transaction() as session:
        tenant_id = visible_tenant(session, caller, path)
        rows = accounts.statement(session, tenant_id, before=int(last[0]) if last else None, limit=limit + 1)
        lines = tuple(veiled(session, scope_of(caller), (line for _, line in rows[:limit])))
    more = len(rows) > limit
    following = make_cursor(deps.cursor_key, filters, [rows[limit - 1][0]]) if more else None
    return Statement(items=lines, next=following)
