"""Code archives: received whole, counted, digested and kept per tenant. Nothing is unpacked here."""

import hashlib
import re
from typing import Annotated, Any
from uuid import uuid4

import fsspec  # type: ignore[import-untyped]
from anyio import to_thread
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse

from gateway.api.auth import Submitter
from gateway.api.bodies import StrictRoute
from gateway.api.common import visible_tenant
from gateway.api.deps import Deps, DepsOf
from gateway.api.problems import invalid
from gateway.archives import location, store_of
from tidegate.wire.spec import TenantPath

router = APIRouter(tags=["workdirs"], route_class=StrictRoute)
Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the body, lower-case hex.")]
_DIGEST = re.compile(r"[0-9a-f]{64}")


@router.put("/workdirs/{sha256}", status_code=201)
async def put_workdir(
    request: Request,
    deps: DepsOf,
    caller: Submitter,
    sha256: Digest,
    tenant: Annotated[TenantPath | None, Query()] = None,
) -> JSONResponse:
    """Store a packed archive under its digest; 200 when it was there already. The digest must be the body's."""
    tenant_id = await to_thread.run_sync(_tenant, deps, caller, tenant)
    target = location(store_of(deps.settings), tenant_id, sha256)
    answer = {"sha256": sha256}
    if await to_thread.run_sync(_exists, target):
        return JSONResponse(answer, 200)
    part = f"{target}.{uuid4().hex}.part"
    file = await to_thread.run_sync(_open, part)
    digest = hashlib.sha256()
    complete = False
    try:
        async for chunk in request.stream():
            if chunk:
                digest.update(chunk)
                await to_thread.run_sync(file.write, chunk)
        complete = digest.hexdigest() == sha256
    finally:
        await to_thread.run_sync(_close, file, part, target if complete else None)
    if not complete:
        raise invalid("sha256", "the body has another digest", "send the SHA-256 of exactly the bytes of the body")
    return JSONResponse(answer, 201)


def _tenant(deps: Deps, caller: Submitter, tenant: str | None) -> int:
    if tenant is None:
        return caller.tenant_id
    with deps.transaction() as session:
        return visible_tenant(session, caller, tenant)


def _exists(url: str) -> bool:
    fs, path = fsspec.core.url_to_fs(url)
    return bool(fs.exists(path))


def _open(url: str) -> Any:
    fs, path = fsspec.core.url_to_fs(url)
    fs.makedirs(path.rpartition("/")[0], exist_ok=True)
    return fs.open(path, "wb")


def _close(file: Any, part: str, target: str | None) -> None:
    """Keep a complete file under its name, by a rename; leave nothing of an incomplete one."""
    file.close()
    fs, path = fsspec.core.url_to_fs(part)
    if target is None:
        fs.rm(path)
    else:
        fs.mv(path, fsspec.core.url_to_fs(target)[1])
