"""Quotas: tenants see their own subtree's, operators change them, guarded by ETag and If-Match."""

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
from gateway.queries import quotas
from gateway.queries.scope import Scope
from tidegate.wire.enums import Resource
from tidegate.wire.operator import QuotaDoc, QuotaPage, QuotaView
from tidegate.wire.spec import Slug, TenantPath

router = APIRouter(tags=["quotas"], route_class=StrictRoute)
AtPath = Annotated[TenantPath, Path(description="Path of a tenant.")]
OfFlavor = Annotated[Slug, Query()]
OfResource = Annotated[Resource, Query()]


@router.get("/quotas")
def list_quotas(
    deps: DepsOf,
    caller: Viewer,
    tenant: Annotated[TenantPath | None, Query()] = None,
    flavor: Annotated[Slug | None, Query()] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> QuotaPage:
    """Quotas of the subtree with what is held of them."""
    scope = narrowed(caller, tenant)
    with deps.transaction() as session:
        found = quotas.quotas(session, scope, flavor=flavor)
    items, following = page_of(
        deps.cursor_key,
        {"list": "quotas", "scope": scope.path, "flavor": flavor},
        found,
        lambda quota: (quota.tenant, quota.flavor, quota.resource.value),
        limit=limit,
        cursor=cursor,
    )
    return QuotaPage(items=items, next=following)


@router.get("/quotas/{path:path}")
def get_quota(
    deps: DepsOf,
    caller: Viewer,
    response: Response,
    path: AtPath,
    flavor: OfFlavor,
    resource: OfResource = Resource.ACCELERATORS,
) -> QuotaView:
    """One, with its ETag."""
    if not scope_of(caller).holds(path):
        raise not_found("quota", path)
    with deps.transaction() as session:
        for view in quotas.quotas(session, Scope(path), flavor=flavor, resource=resource):
            if view.tenant == path:
                response.headers["ETag"] = view.etag
                return view
    raise not_found("quota", f"{path} {flavor} {resource}")


@router.put("/quotas/{path:path}")
def put_quota(
    deps: DepsOf,
    caller: Operator,
    response: Response,
    path: AtPath,
    doc: QuotaDoc,
    flavor: OfFlavor,
    resource: OfResource = Resource.ACCELERATORS,
    if_match: Annotated[str | None, Header()] = None,
) -> QuotaView:
    """Create or change one. With If-Match only if nobody changed it meanwhile, else 412."""
    changes.same_name(path, doc.tenant, "tenant")
    changes.same_name(flavor, doc.flavor, "flavor")
    changes.same_name(resource.value, doc.resource.value, "resource")
    with changes.changing(deps) as session:
        apply.lock(session)
        check_if_match(if_match, quotas.etag_of(session, path, flavor, resource))
        changes.put(session, caller, doc)
        session.expire_all()
        view = next(
            v for v in quotas.quotas(session, Scope(path), flavor=flavor, resource=resource) if v.tenant == path
        )
    response.headers["ETag"] = view.etag
    return view


@router.delete("/quotas/{path:path}", status_code=204)
def delete_quota(
    deps: DepsOf,
    caller: Operator,
    path: AtPath,
    flavor: OfFlavor,
    resource: OfResource = Resource.ACCELERATORS,
    if_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Take one away."""
    with changes.changing(deps) as session:
        apply.lock(session)
        check_if_match(if_match, quotas.etag_of(session, path, flavor, resource))
        changes.remove(session, caller, ("quota", f"{path} {flavor} {resource}"))
    return Response(status_code=204)
