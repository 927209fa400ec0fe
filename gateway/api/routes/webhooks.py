"""What receivers of webhooks need: the secret that a tenant's deliveries are signed with."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from gateway.api.auth import Submitter
from gateway.api.bodies import StrictRoute
from gateway.api.common import visible_tenant
from gateway.api.deps import DepsOf
from gateway.webhooks.signing import key_of, secret_of
from tidegate.wire.governance import WebhookSecret
from tidegate.wire.spec import TenantPath

router = APIRouter(tags=["webhooks"], route_class=StrictRoute)


@router.get("/webhooks/secret")
def get_secret(
    deps: DepsOf, caller: Submitter, response: Response, tenant: Annotated[TenantPath | None, Query()] = None
) -> WebhookSecret:
    """The secret of the caller's tenant, or of one below it. Who may submit there may read it."""
    path = tenant or caller.tenant
    with deps.transaction() as session:
        visible_tenant(session, caller, path)
    response.headers["Cache-Control"] = "no-store"
    return WebhookSecret(tenant=path, secret=secret_of(key_of(deps.settings), path))
