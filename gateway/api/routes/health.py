"""Whether this process lives and whether it can serve. The only routes without a token, and they say nothing else."""

from fastapi import APIRouter
from sqlalchemy import text

from gateway.api.bodies import StrictRoute
from gateway.api.deps import DepsOf

router = APIRouter(tags=["health"], route_class=StrictRoute)


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz")
def readyz(deps: DepsOf) -> dict[str, str]:
    """The ledger answers too; 503 otherwise."""
    with deps.transaction() as session:
        session.execute(text("SELECT 1"))
    return {"status": "ready"}
