"""Flavors, pools and backends: everybody may see what there is; operators change it and see configurations."""

from fastapi import APIRouter
from fastapi.responses import Response

from gateway.api import changes
from gateway.api.auth import Operator, Viewer
from gateway.api.bodies import StrictRoute
from gateway.api.deps import DepsOf
from gateway.api.problems import not_found
from gateway.queries import capacity
from tidegate.wire.operator import (
    BackendDoc,
    BackendPage,
    BackendView,
    FlavorDoc,
    FlavorPage,
    PoolDoc,
    PoolPage,
    PoolView,
)
from tidegate.wire.spec import Slug

router = APIRouter(tags=["capacity"], route_class=StrictRoute)


@router.get("/flavors")
def list_flavors(deps: DepsOf, _: Viewer) -> FlavorPage:
    """Every kind of capacity."""
    with deps.transaction() as session:
        docs = changes.documents_of(session, "flavor")
    return FlavorPage(items=tuple(d for d in docs if isinstance(d, FlavorDoc)))


@router.get("/flavors/{name}")
def get_flavor(deps: DepsOf, _: Viewer, name: Slug) -> FlavorDoc:
    """One."""
    with deps.transaction() as session:
        for doc in changes.documents_of(session, "flavor"):
            if isinstance(doc, FlavorDoc) and doc.name == name:
                return doc
    raise not_found("flavor", name)


@router.put("/flavors/{name}")
def put_flavor(deps: DepsOf, caller: Operator, name: Slug, doc: FlavorDoc) -> FlavorDoc:
    """Create or change it."""
    changes.same_name(name, doc.name, "name")
    with changes.changing(deps) as session:
        changes.put(session, caller, doc)
    return doc


@router.delete("/flavors/{name}", status_code=204)
def delete_flavor(deps: DepsOf, caller: Operator, name: Slug) -> Response:
    """Take it away; 409 while pools or quotas name it."""
    with changes.changing(deps) as session:
        changes.remove(session, caller, ("flavor", name))
    return Response(status_code=204)


@router.get("/pools")
def list_pools(deps: DepsOf, caller: Viewer) -> PoolPage:
    """Every pool with what it last reported."""
    with deps.transaction() as session:
        return PoolPage(items=tuple(capacity.pools(session, with_config=caller.everywhere)))


@router.get("/pools/{name}")
def get_pool(deps: DepsOf, caller: Viewer, name: Slug) -> PoolView:
    """One."""
    with deps.transaction() as session:
        for pool in capacity.pools(session, with_config=caller.everywhere, name=name):
            return pool
    raise not_found("pool", name)


@router.put("/pools/{name}")
def put_pool(deps: DepsOf, caller: Operator, name: Slug, doc: PoolDoc) -> PoolDoc:
    """Create or change it."""
    changes.same_name(name, doc.name, "name")
    with changes.changing(deps) as session:
        changes.put(session, caller, doc)
    return doc


@router.delete("/pools/{name}", status_code=204)
def delete_pool(deps: DepsOf, caller: Operator, name: Slug) -> Response:
    """Take it away."""
    with changes.changing(deps) as session:
        changes.remove(session, caller, ("pool", name))
    return Response(status_code=204)


@router.get("/backends")
def list_backends(deps: DepsOf, caller: Viewer) -> BackendPage:
    """Every backend and how it does."""
    with deps.transaction() as session:
        return BackendPage(items=tuple(capacity.backends(session, with_config=caller.everywhere)))


@router.get("/backends/{name}")
def get_backend(deps: DepsOf, caller: Viewer, name: Slug) -> BackendView:
    """One."""
    with deps.transaction() as session:
        for backend in capacity.backends(session, with_config=caller.everywhere, name=name):
            return backend
    raise not_found("backend", name)


@router.put("/backends/{name}")
def put_backend(deps: DepsOf, caller: Operator, name: Slug, doc: BackendDoc) -> BackendDoc:
    """Create or change it; processes build it anew within a second."""
    changes.same_name(name, doc.name, "name")
    with changes.changing(deps) as session:
        changes.put(session, caller, doc)
    return doc


@router.delete("/backends/{name}", status_code=204)
def delete_backend(deps: DepsOf, caller: Operator, name: Slug) -> Response:
    """Take it away; 409 while pools name it."""
    with changes.changing(deps) as session:
        changes.remove(session, caller, ("backend", name))
    return Response(status_code=204)


@router.post("/backends/{name}:drain")
def drain_backend(deps: DepsOf, caller: Operator, name: Slug) -> BackendView:
    """Admit nothing more to it; what runs, runs on."""
    return _set_draining(deps, caller, name, draining=True)


@router.post("/backends/{name}:undrain")
def undrain_backend(deps: DepsOf, caller: Operator, name: Slug) -> BackendView:
    """Admit to it again."""
    return _set_draining(deps, caller, name, draining=False)


def _set_draining(deps: DepsOf, caller: Operator, name: str, *, draining: bool) -> BackendView:
    with changes.changing(deps) as session:
        docs = {d.name: d for d in changes.documents_of(session, "backend") if isinstance(d, BackendDoc)}
        if name not in docs:
            raise not_found("backend", name)
        changes.put(session, caller, docs[name].model_copy(update={"draining": draining}))
        session.expire_all()
        return next(iter(capacity.backends(session, with_config=True, name=name)))
