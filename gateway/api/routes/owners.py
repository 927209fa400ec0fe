"""Whose the direct use of backends is: tenants see what counts for them, operators write."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from gateway.api import changes
from gateway.api.auth import Operator, Viewer
from gateway.api.bodies import StrictRoute
from gateway.api.common import narrowed
from gateway.api.deps import DepsOf
from gateway.api.pages import Cursor, Limit, page_of
from tidegate.wire.governance import OwnerDoc, OwnerPage
from tidegate.wire.spec import Slug, TenantPath

router = APIRouter(tags=["owners"], route_class=StrictRoute)
Named = Annotated[str, Path(min_length=1, max_length=255, description="The backend's own word for an owner.")]


@router.get("/owners")
def list_owners(
    deps: DepsOf,
    caller: Viewer,
    tenant: Annotated[TenantPath | None, Query()] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> OwnerPage:
    """Accounts and namespaces of backends whose direct use counts for a tenant of the subtree."""
    scope = narrowed(caller, tenant)
    with deps.transaction() as session:
        docs = changes.documents_of(session, "owner")
    seen = [d for d in docs if isinstance(d, OwnerDoc) and scope.holds(d.tenant)]
    filters = {"list": "owners", "scope": scope.path}
    items, following = page_of(
        deps.cursor_key, filters, seen, lambda d: (d.backend, d.owner), limit=limit, cursor=cursor
    )
    return OwnerPage(items=items, next=following)


@router.put("/owners/{owner}")
def put_owner(deps: DepsOf, caller: Operator, owner: Named, doc: OwnerDoc) -> OwnerDoc:
    """Count the direct use of an owner for a tenant, from the next cycle on."""
    changes.same_name(owner, doc.owner, "owner")
    with changes.changing(deps) as session:
        changes.put(session, caller, doc)
    return doc


@router.delete("/owners/{owner}", status_code=204)
def delete_owner(deps: DepsOf, caller: Operator, owner: Named, backend: Annotated[Slug, Query()]) -> Response:
    """Count it for nobody: it is plain load again."""
    with changes.changing(deps) as session:
        changes.remove(session, caller, ("owner", f"{backend} {owner}"))
    return Response(status_code=204)
