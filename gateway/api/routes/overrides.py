"""Overrides (POLICIES §7): an operator forces or forbids one preemption, with a reason and an expiry; both audited."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Query
from sqlalchemy import func, select

from gateway.api.auth import Operator, Viewer
from gateway.api.bodies import StrictRoute
from gateway.api.common import narrowed, scope_of
from gateway.api.deps import DepsOf
from gateway.api.pages import Cursor, Limit, make_cursor, read_cursor
from gateway.api.problems import conflict, invalid, not_found
from gateway.ledger import outbox
from gateway.ledger.tables.control import OverrideRow
from gateway.operators import audit
from gateway.queries import overrides
from tidegate.wire.governance import OverridePage, OverrideRequest, OverrideView
from tidegate.wire.spec import TenantPath

router = APIRouter(tags=["overrides"], route_class=StrictRoute)


@router.get("/overrides")
def list_overrides(
    deps: DepsOf,
    caller: Viewer,
    tenant: Annotated[TenantPath | None, Query()] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> OverridePage:
    """Operators' words about attempts of the subtree, by id, those that are over included."""
    scope = narrowed(caller, tenant)
    filters = {"list": "overrides", "scope": scope.path}
    last = read_cursor(deps.cursor_key, filters, cursor)
    with deps.transaction() as session:
        found = overrides.page(session, scope, after=int(last[0]) if last else 0, limit=limit + 1)
    more = len(found) > limit
    following = make_cursor(deps.cursor_key, filters, [found[limit - 1].id]) if more else None
    return OverridePage(items=tuple(found[:limit]), next=following)


@router.post("/overrides", status_code=201)
def create_override(deps: DepsOf, caller: Operator, wanted: OverrideRequest) -> OverrideView:
    """Force or forbid the preemption of one live attempt, from the next cycle on. To forbid outweighs to force."""
    if (wanted.attempt is None) == (wanted.job is None):
        raise invalid("attempt", "name an attempt or a job, and not both", "give one of `attempt` and `job`")
    with deps.transaction() as session:
        found = overrides.live(session, scope_of(caller), attempt=wanted.attempt, job=wanted.job)
        if not found:
            raise not_found("attempt", wanted.attempt or wanted.job)
        if len(found) > 1:
            raise conflict("several-attempts", "this job has several live attempts", "name one of them", field="job")
        attempt, job, tenant_id, path = found[0]
        now = session.execute(select(func.now())).scalar_one()
        row = OverrideRow(
            attempt_id=attempt,
            force=wanted.preemption == "force",
            reason=wanted.reason,
            principal=caller.principal,
            expires_at=now + timedelta(seconds=wanted.expires_in),
            created_at=now,
        )
        session.add(row)
        session.flush()
        view = overrides.view(row, job, path)
        audit.record(
            session,
            principal=caller.principal,
            tenant_id=tenant_id,
            action=f"override.{wanted.preemption}",
            target=attempt,
            reason=wanted.reason,
            after=view.model_dump(mode="json"),
        )
        outbox.wake_arbiter(session)
    return view


@router.delete("/overrides/{override_id}")
def end_override(deps: DepsOf, caller: Operator, override_id: Annotated[int, Path(ge=1, le=2**31 - 1)]) -> OverrideView:
    """End it now; the row stays."""
    with deps.transaction() as session:
        found = overrides.find(session, scope_of(caller), override_id)
        if found is None:
            raise not_found("override", override_id)
        row, job, path = found
        before = overrides.view(row, job, path)
        now = session.execute(select(func.now())).scalar_one()
        if row.expires_at > now:
            row.expires_at = now
            audit.record(
                session,
                principal=caller.principal,
                tenant_id=overrides.tenant_of(session, job),
                action="override.end",
                target=row.attempt_id,
                reason=row.reason,
                before=before.model_dump(mode="json"),
            )
            outbox.wake_arbiter(session)
        return overrides.view(row, job, path)
