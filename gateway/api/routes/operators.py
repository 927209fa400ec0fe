"""`apply`: files and gate made equal. The difference comes first; a second apply of the same files changes nothing."""

from typing import Annotated

from fastapi import APIRouter, Query

from gateway.api.auth import Operator
from gateway.api.bodies import StrictRoute
from gateway.api.changes import changing
from gateway.api.deps import DepsOf
from gateway.api.problems import invalid
from gateway.operators import apply
from gateway.operators.diff import index
from tidegate.wire.operator import ApplyRequest, ApplyResult

router = APIRouter(tags=["operators"], route_class=StrictRoute)


@router.post("/apply")
def apply_documents(
    deps: DepsOf,
    caller: Operator,
    request: ApplyRequest,
    *,
    dry_run: Annotated[bool, Query(description="Answer with the difference and change nothing.")] = False,
    prune: Annotated[bool, Query(description="Delete what the documents do not name.")] = False,
) -> ApplyResult:
    """Put the documents into the ledger, all or none."""
    try:
        wanted = index(request.documents)
    except ValueError as error:
        raise invalid("documents", str(error), "correct that document") from error
    with changing(deps) as session:
        changes = apply.plan(session, wanted, prune=prune, home=caller.tenant)
        if not dry_run:
            apply.execute(session, changes, principal=caller.principal)
    return ApplyResult(changes=changes, applied=not dry_run)
