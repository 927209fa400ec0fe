"""Budgets: a tenant sees its subtree's, operators change them, guarded by ETag and If-Match."""

from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Response

from gateway.api import changes
from gateway.api.auth import Operator, Viewer
from gateway.api.bodies import StrictRoute
from gateway.api.common import check_if_match, narrowed, scope_of
from gateway.api.deps import DepsOf
from gateway.api.pages import Cursor, Limit, page_of
from gateway.api.problems import not_found
from gateway.operators import apply
from gateway.queries import budgets
from gateway.queries.scope import Scope
from tidegate.wire.enums import BudgetUnit
from tidegate.wire.governance import BudgetDoc, BudgetPage, BudgetView
from tidegate.wire.spec import TenantPath

router = APIRouter(tags=["budgets"], route_class=StrictRoute)
AtPath = Annotated[TenantPath, Path(description="Path of a tenant.")]
OfUnit = Annotated[BudgetUnit, Query()]


@router.get("/budgets")
def list_budgets(
    deps: DepsOf,
    caller: Viewer,
    tenant: Annotated[TenantPath | None, Query()] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> BudgetPage:
    """Budgets of the subtree with what is spent, held and left in the present period."""
    scope = narrowed(caller, tenant)
    with deps.transaction() as session:
        found = budgets.budgets(session, scope)
    filters = {"list": "budgets", "scope": scope.path}
    items, following = page_of(
        deps.cursor_key, filters, found, lambda b: (b.tenant, b.unit.value), limit=limit, cursor=cursor
    )
    return BudgetPage(items=items, next=following)


@router.get("/budgets/{path:path}")
def get_budget(
    deps: DepsOf, caller: Viewer, response: Response, path: AtPath, unit: OfUnit = BudgetUnit.GPU_HOURS
) -> BudgetView:
    """One, with its ETag."""
    if not scope_of(caller).holds(path):
        raise not_found("budget", path)
    with deps.transaction() as session:
        for view in budgets.budgets(session, Scope(path), unit=unit):
            if view.tenant == path:
                response.headers["ETag"] = view.etag
                return view
    raise not_found("budget", f"{path} {unit}")


@router.put("/budgets/{path:path}")
def put_budget(
    deps: DepsOf,
    caller: Operator,
    response: Response,
    path: AtPath,
    doc: BudgetDoc,
    unit: OfUnit = BudgetUnit.GPU_HOURS,
    if_match: Annotated[str | None, Header()] = None,
) -> BudgetView:
    """Create or change one; what this period has cost stays. With If-Match only if nobody changed it, else 412."""
    changes.same_name(path, doc.tenant, "tenant")
    changes.same_name(unit.value, doc.unit.value, "unit")
    with changes.changing(deps) as session:
        apply.lock(session)
        check_if_match(if_match, budgets.etag_of(session, path, unit))
        changes.put(session, caller, doc)
        session.expire_all()
        view = next(v for v in budgets.budgets(session, Scope(path), unit=unit) if v.tenant == path)
    response.headers["ETag"] = view.etag
    return view


@router.delete("/budgets/{path:path}", status_code=204)
def delete_budget(
    deps: DepsOf,
    caller: Operator,
    path: AtPath,
    unit: OfUnit = BudgetUnit.GPU_HOURS,
    if_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Take one away: nothing bounds that tenant's spending any more but its ancestors' budgets."""
    with changes.changing(deps) as session:
        apply.lock(session)
        check_if_match(if_match, budgets.etag_of(session, path, unit))
        changes.remove(session, caller, ("budget", f"{path} {unit}"))
    return Response(status_code=204)
