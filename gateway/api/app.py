"""The app factory. Wires routers, limits and problems together; decides nothing itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from gateway.api import problems
from gateway.api.bodies import Limits
from gateway.api.deps import Deps
from gateway.api.hub import Hub
from gateway.api.routes import (
    accounts,
    attempt,
    audit,
    budgets,
    capacity,
    grants,
    health,
    job_actions,
    job_reads,
    jobs,
    logs,
    operators,
    overrides,
    owners,
    quotas,
    tenants,
    tokens,
    webhooks,
    workdirs,
)
from tidegate.wire.problem import Problem

ROUTERS = (
    health,
    jobs,
    job_actions,
    job_reads,
    logs,
    workdirs,
    tenants,
    capacity,
    quotas,
    budgets,
    owners,
    overrides,
    grants,
    tokens,
    webhooks,
    accounts,
    audit,
    operators,
    attempt,
)
_PROBLEM = {"model": Problem, "description": "Problem", "content": {problems.MEDIA_TYPE: {}}}


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    hub: Hub = app.state.hub
    # FastAPI builds routes when they are first looked at: here, not under the first requests.
    for _ in iter_route_contexts(app.routes):
        pass
    listening = asyncio.create_task(hub.listen(), name="tidegate-events")
    try:
        yield
    finally:
        hub.close()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


def create_app(deps: Deps) -> FastAPI:
    """The API over `deps`. Opens nothing until its lifespan starts."""
    app = FastAPI(
        title="Tidegate",
        version="1",
        summary="One gate over Slurm, Kubernetes and cloud GPU pools.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
        separate_input_output_schemas=False,
    )
    app.state.deps = deps
    app.state.hub = Hub(deps.engine)
    problems.install(app)
    app.add_middleware(
        Limits,
        body_max_bytes=deps.settings.body_max_bytes,
        archive_max_bytes=deps.settings.workdir_max_bytes,
    )
    for module in ROUTERS:
        app.include_router(module.router, prefix="/v1", responses={"4XX": _PROBLEM})
    return app
