"""The tree of tenants, storages and class allowances. Tenants read their own part; operators write."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from gateway.api import changes
from gateway.api.auth import Operator, Viewer
from gateway.api.bodies import StrictRoute
from gateway.api.common import narrowed, scope_of
from gateway.api.deps import DepsOf
from gateway.api.pages import Cursor, Limit, page_of
from gateway.api.problems import not_found
from gateway.queries.scope import lineage
from tidegate.wire.enums import PriorityClass, Role
from tidegate.wire.operator import (
    AllowanceDoc,
    AllowancePage,
    Me,
    StorageDoc,
    StoragePage,
    TenantDoc,
    TenantPage,
)
from tidegate.wire.spec import Slug, TenantPath

router = APIRouter(tags=["tenants"], route_class=StrictRoute)
AtPath = Annotated[TenantPath, Path(description="Path of a tenant, for example acme/research.")]


@router.get("/me")
def me(caller: Viewer) -> Me:
    """Who the token says one is."""
    return Me(principal=caller.principal, tenant=caller.tenant, role=Role(caller.role.name.lower()))


@router.get("/tenants")
def list_tenants(deps: DepsOf, caller: Viewer, limit: Limit = 100, cursor: Cursor = None) -> TenantPage:
    """Every tenant that the caller may see, parents first."""
    scope = scope_of(caller)
    with deps.transaction() as session:
        docs = changes.documents_of(session, "tenant")
    seen = [d for d in docs if isinstance(d, TenantDoc) and scope.holds(d.path)]
    filters = {"list": "tenants", "scope": scope.path}
    items, following = page_of(deps.cursor_key, filters, seen, lambda d: (d.path,), limit=limit, cursor=cursor)
    return TenantPage(items=items, next=following)


@router.get("/tenants/{path:path}")
def get_tenant(deps: DepsOf, caller: Viewer, path: AtPath) -> TenantDoc:
    """One tenant."""
    with deps.transaction() as session:
        docs = changes.documents_of(session, "tenant")
    for doc in docs:
        if isinstance(doc, TenantDoc) and doc.path == path and caller.sees(path):
            return doc
    raise not_found("tenant", path)


@router.put("/tenants/{path:path}")
def put_tenant(deps: DepsOf, caller: Operator, path: AtPath, doc: TenantDoc) -> TenantDoc:
    """Create or change a tenant; its parent must be there."""
    changes.same_name(path, doc.path, "path")
    with changes.changing(deps) as session:
        changes.put(session, caller, doc)
    return doc


@router.delete("/tenants/{path:path}", status_code=204)
def delete_tenant(deps: DepsOf, caller: Operator, path: AtPath) -> Response:
    """Take a tenant away that nothing refers to."""
    with changes.changing(deps) as session:
        changes.remove(session, caller, ("tenant", path))
    return Response(status_code=204)


@router.get("/storages")
def list_storages(
    deps: DepsOf,
    caller: Viewer,
    tenant: Annotated[TenantPath | None, Query()] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> StoragePage:
    """Storages that jobs of this tenant may name, its ancestors' included; credentials by reference for operators."""
    scope = narrowed(caller, tenant)
    above = set(lineage(scope.path)) if scope.path else set()
    with deps.transaction() as session:
        docs = changes.documents_of(session, "storage")
    seen = [d for d in docs if isinstance(d, StorageDoc) and (scope.holds(d.tenant) or d.tenant in above)]
    if not caller.everywhere:
        seen = [d.model_copy(update={"credential": ""}) for d in seen]
    filters = {"list": "storages", "scope": scope.path}
    items, following = page_of(deps.cursor_key, filters, seen, lambda d: (d.tenant, d.name), limit=limit, cursor=cursor)
    return StoragePage(items=items, next=following)


@router.put("/storages/{name}")
def put_storage(deps: DepsOf, caller: Operator, name: Slug, doc: StorageDoc) -> StorageDoc:
    """Allow a tenant's jobs to name URLs under a prefix."""
    changes.same_name(name, doc.name, "name")
    with changes.changing(deps) as session:
        changes.put(session, caller, doc)
    return doc


@router.delete("/storages/{name}", status_code=204)
def delete_storage(deps: DepsOf, caller: Operator, name: Slug, tenant: Annotated[TenantPath, Query()]) -> Response:
    """Allow it no longer; jobs that run keep what they have."""
    with changes.changing(deps) as session:
        changes.remove(session, caller, ("storage", f"{tenant} {name}"))
    return Response(status_code=204)


@router.get("/allowances")
def list_allowances(
    deps: DepsOf,
    caller: Viewer,
    tenant: Annotated[TenantPath | None, Query()] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> AllowancePage:
    """GPU-hours of P0 and P1 per period in the caller's subtree."""
    scope = narrowed(caller, tenant)
    with deps.transaction() as session:
        docs = changes.documents_of(session, "allowance")
    seen = [d for d in docs if isinstance(d, AllowanceDoc) and scope.holds(d.tenant)]
    filters = {"list": "allowances", "scope": scope.path}
    items, following = page_of(
        deps.cursor_key, filters, seen, lambda d: (d.tenant, d.priority.value), limit=limit, cursor=cursor
    )
    return AllowancePage(items=items, next=following)


@router.put("/allowances/{path:path}")
def put_allowance(deps: DepsOf, caller: Operator, path: AtPath, doc: AllowanceDoc) -> AllowanceDoc:
    """Give a tenant GPU-hours of a class; what it used in this period stays used."""
    changes.same_name(path, doc.tenant, "tenant")
    with changes.changing(deps) as session:
        changes.put(session, caller, doc)
    return doc


@router.delete("/allowances/{path:path}", status_code=204)
def delete_allowance(
    deps: DepsOf, caller: Operator, path: AtPath, priority: Annotated[PriorityClass, Query()]
) -> Response:
    """Take an allowance away."""
    with changes.changing(deps) as session:
        changes.remove(session, caller, ("allowance", f"{path} {priority}"))
    return Response(status_code=204)
