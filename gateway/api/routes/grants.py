"""Grants: dated changes of quota. Operators make and revoke them; a tenant sees its own."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from sqlalchemy import func, select

from gateway.api.auth import Operator, Viewer
from gateway.api.bodies import StrictRoute
from gateway.api.callers import Caller
from gateway.api.common import narrowed, scope_of, visible_tenant
from gateway.api.deps import DepsOf
from gateway.api.pages import Cursor, Limit, make_cursor, read_cursor
from gateway.api.problems import invalid, not_found
from gateway.ledger import outbox
from gateway.ledger.tables.capacity import Flavor, GrantRow
from gateway.operators import amounts, audit
from gateway.queries import access
from tidegate.wire.enums import Resource
from tidegate.wire.operator import Amount, Grant, GrantPage, GrantView
from tidegate.wire.spec import TenantPath

router = APIRouter(tags=["grants"], route_class=StrictRoute)
_TIME: Final = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]|24:00")


@router.get("/grants")
def list_grants(
    deps: DepsOf,
    caller: Viewer,
    tenant: Annotated[TenantPath | None, Query()] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> GrantPage:
    """By id."""
    scope = narrowed(caller, tenant)
    filters = {"list": "grants", "scope": scope.path}
    last = read_cursor(deps.cursor_key, filters, cursor)
    with deps.transaction() as session:
        rows = access.grants(session, scope, after=int(last[0]) if last else 0, limit=limit + 1)
    more = len(rows) > limit
    following = make_cursor(deps.cursor_key, filters, [rows[limit - 1].id]) if more else None
    return GrantPage(items=tuple(rows[:limit]), next=following)


@router.post("/grants", status_code=201)
def create_grant(deps: DepsOf, caller: Operator, wanted: Grant) -> GrantView:
    """Change a tenant's quota for a time."""
    starts_at, ends_at = _instant(wanted.starts_at), _instant(wanted.ends_at) if wanted.ends_at else None
    if ends_at is not None and ends_at <= starts_at:
        raise invalid("ends_at", "it ends before it starts", "give a later end, or none")
    with deps.transaction() as session:
        tenant_id = visible_tenant(session, caller, wanted.tenant)
        if session.get(Flavor, wanted.flavor) is None:
            raise invalid("flavor", f"there is no flavor {wanted.flavor!r}", "name one of /v1/flavors")
        row = GrantRow(
            tenant_id=tenant_id,
            flavor=wanted.flavor,
            resource=wanted.resource.value,
            delta_min=_signed(wanted.delta_min, wanted.resource, "delta_min"),
            delta_max=_signed(wanted.delta_max, wanted.resource, "delta_max"),
            reclaimable=wanted.reclaimable,
            starts_at=starts_at,
            ends_at=ends_at,
            recurrence=_recurrence(wanted.recurrence),
            cause=wanted.cause,
            approver=caller.principal,
        )
        session.add(row)
        session.flush()
        session.refresh(row)
        view = access.grant_view(row, wanted.tenant)
        _record(session, caller, "grant.create", row, after=view)
        outbox.wake_arbiter(session)
    return view


@router.delete("/grants/{grant_id}")
def revoke_grant(deps: DepsOf, caller: Operator, grant_id: Annotated[int, Path(ge=1, le=2**31 - 1)]) -> GrantView:
    """End a grant now; the row stays."""
    with deps.transaction() as session:
        found = access.grant(session, scope_of(caller), grant_id)
        if found is None:
            raise not_found("grant", grant_id)
        row, path = found
        before = access.grant_view(row, path)
        if row.revoked_at is None:
            row.revoked_at = session.execute(select(func.now())).scalar_one()
            _record(session, caller, "grant.revoke", row, before=before)
            outbox.wake_arbiter(session)
        return access.grant_view(row, path)


def _record(
    session: Any,
    caller: Caller,
    action: str,
    row: GrantRow,
    *,
    before: GrantView | None = None,
    after: GrantView | None = None,
) -> None:
    audit.record(
        session,
        principal=caller.principal,
        tenant_id=row.tenant_id,
        action=action,
        target=str(row.id),
        reason=row.cause,
        before=before.model_dump(mode="json") if before else None,
        after=after.model_dump(mode="json") if after else None,
    )


def _instant(at: datetime) -> datetime:
    """Without an offset it is UTC, as everywhere."""
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _signed(amount: Amount, resource: Resource, field: str) -> int:
    try:
        if isinstance(amount, str):
            negative = amount.startswith("-")
            size = amounts.parse(amount.removeprefix("-"), resource)
        else:
            negative = amount < 0
            size = amounts.parse(abs(amount), resource)
    except ValueError as error:
        raise invalid(field, str(error), "correct the amount") from error
    return -size if negative else size


def _recurrence(wanted: dict[str, Any] | None) -> dict[str, Any] | None:
    if wanted is None:
        return None
    remedy = 'write {"days": [0, 1], "from": "08:00", "until": "20:00"}, days from Monday 0, times in UTC'
    days = wanted.get("days")
    times = (wanted.get("from"), wanted.get("until"))
    good_days = isinstance(days, list) and days and all(type(day) is int and 0 <= day <= 6 for day in days)  # noqa: PLR2004
    good_times = all(isinstance(time, str) and _TIME.fullmatch(time) for time in times)
    if set(wanted) != {"days", "from", "until"} or not good_days or not good_times:
        raise invalid("recurrence", "not a set of days with a time of day", remedy)
    if str(times[0]) >= str(times[1]):
        raise invalid("recurrence.until", "a window ends after it begins, on the same day", remedy)
    return {"days": sorted(set(days or ())), "from": times[0], "until": times[1]}
