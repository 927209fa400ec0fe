"""Flavors, pools and backends: everybody may see what there is; operators change it and see configurations."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from gateway.api import changes
from gateway.api.auth import Operator, Viewer
from gateway.api.bodies import StrictRoute
from gateway.api.common import scope_of
from gateway.api.deps import DepsOf
from gateway.api.pages import Cursor, Limit, page_of
from gateway.api.problems import conflict, not_found
from gateway.ledger import forget
from gateway.operators import audit
from gateway.queries import capacity
from gateway.queries.veil import veiled, veiled_one
from policies.settings import PolicySettings
from tidegate.wire.operator import (
    BackendDoc,
    BackendPage,
    BackendView,
    FlavorDoc,
    FlavorPage,
    ForgetRequest,
    ForgetResult,
    PoolDoc,
    PoolPage,
    PoolView,
)
from tidegate.wire.spec import Slug

router = APIRouter(tags=["capacity"], route_class=StrictRoute)


@router.get("/flavors")
def list_flavors(deps: DepsOf, _: Viewer, limit: Limit = 100, cursor: Cursor = None) -> FlavorPage:
    """Every kind of capacity."""
    with deps.transaction() as session:
        docs = changes.documents_of(session, "flavor")
    found = [d for d in docs if isinstance(d, FlavorDoc)]
    items, following = page_of(
        deps.cursor_key, {"list": "flavors"}, found, lambda d: (d.name,), limit=limit, cursor=cursor
    )
    return FlavorPage(items=items, next=following)


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
def list_pools(deps: DepsOf, caller: Viewer, limit: Limit = 100, cursor: Cursor = None) -> PoolPage:
    """Every pool with what it last reported."""
    with deps.transaction() as session:
        found = veiled(session, scope_of(caller), capacity.pools(session, with_config=caller.everywhere))
    items, following = page_of(
        deps.cursor_key, {"list": "pools"}, found, lambda pool: (pool.name,), limit=limit, cursor=cursor
    )
    return PoolPage(items=items, next=following)


@router.get("/pools/{name}")
def get_pool(deps: DepsOf, caller: Viewer, name: Slug) -> PoolView:
    """One."""
    with deps.transaction() as session:
        for pool in capacity.pools(session, with_config=caller.everywhere, name=name):
            return veiled_one(session, scope_of(caller), pool)
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
def list_backends(deps: DepsOf, caller: Viewer, limit: Limit = 100, cursor: Cursor = None) -> BackendPage:
    """Every backend and how it does."""
    with deps.transaction() as session:
        found = list(capacity.backends(session, with_config=caller.everywhere))
    items, following = page_of(
        deps.cursor_key, {"list": "backends"}, found, lambda one: (one.name,), limit=limit, cursor=cursor
    )
    return BackendPage(items=items, next=following)


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


@router.post("/backends/{name}:forget")
def forget_backend(
    deps: DepsOf,
    caller: Operator,
    name: Slug,
    why: ForgetRequest,
    *,
    force: Annotated[bool, Query(description="Although it answers; it is drained then.")] = False,
) -> ForgetResult:
    """A dark backend will not come back: what lived there is LOST, its capacity is gone, the parts of gangs elsewhere
    are told to stop. 409 while it answers. What comes back later is ended by the reconciler.
    """
    try:
        with deps.transaction() as session:
            found = forget.begin(session, name, force=force)
            after = {"attempts": found.attempts, "pools": found.pools, "forced": force}
            audit.record(
                session,
                principal=caller.principal,
                action="backend.forget",
                target=name,
                reason=why.reason,
                after=after,
            )
    except forget.NoSuchBackendError as error:
        raise not_found("backend", name) from error
    except forget.StillAnswersError as error:
        remedy = "drain it and cancel what runs there; ?force=true if you know that it is gone for good"
        raise conflict("still-answers", str(error), remedy) from error
    deps.configs.forget()
    settings = PolicySettings(**deps.settings.policy)  # type: ignore[arg-type]
    done = forget.finish(deps.engine, name, found, settings)
    return ForgetResult(
        backend=name,
        settled=tuple(done.settled),
        stopped=tuple(done.stopped),
        left=tuple(done.left),
        pools=tuple(done.pools),
    )


def _set_draining(deps: DepsOf, caller: Operator, name: str, *, draining: bool) -> BackendView:
    with changes.changing(deps) as session:
        docs = {d.name: d for d in changes.documents_of(session, "backend") if isinstance(d, BackendDoc)}
        if name not in docs:
            raise not_found("backend", name)
        changes.put(session, caller, docs[name].model_copy(update={"draining": draining}))
        session.expire_all()
        return next(iter(capacity.backends(session, with_config=True, name=name)))
