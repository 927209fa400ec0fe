"""Budgets with what their period has cost so far."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from sqlmodel import col

from gateway.ledger.tables.access import Tenant
from gateway.ledger.tables.accounts import AccountRow, BudgetRow
from gateway.operators.amounts import LEDGER_UNITS, WIRE_UNITS, show_budget
from gateway.queries.scope import Scope
from policies.vocabulary import Account
from tidegate.wire.enums import BudgetUnit
from tidegate.wire.governance import BudgetView


def budgets(session: Session, scope: Scope, *, unit: BudgetUnit | None = None) -> Sequence[BudgetView]:
    """By tenant and unit. A period that is over is shown as the one that has begun since."""
    query = (
        select(BudgetRow, col(Tenant.path))
        .join(Tenant, col(Tenant.id) == col(BudgetRow.tenant_id))
        .where(scope.where())
        .order_by(col(Tenant.path), col(BudgetRow.unit))
    )
    if unit is not None:
        query = query.where(col(BudgetRow.unit) == LEDGER_UNITS[unit])
    now = session.execute(select(func.now())).scalar_one()
    return [_view(session, row, path, now) for row, path in session.execute(query).all()]


def etag_of(session: Session, tenant: str, unit: BudgetUnit) -> str:
    """The validator of one budget, locked until the transaction ends; `"0"` where there is none."""
    version = session.execute(
        select(col(BudgetRow.version))
        .join(Tenant, col(Tenant.id) == col(BudgetRow.tenant_id))
        .where(col(Tenant.path) == tenant, col(BudgetRow.unit) == LEDGER_UNITS[unit])
        .with_for_update(of=BudgetRow)
    ).scalar_one_or_none()
    return f'"{version or 0}"'


def _view(session: Session, row: BudgetRow, path: str, now: datetime) -> BudgetView:
    unit = WIRE_UNITS[row.unit]
    length = timedelta(seconds=row.period_s)
    began = row.period_started_at + length * max(0, (now - row.period_started_at) // length)
    posted, held = session.execute(
        select(func.coalesce(func.sum(AccountRow.posted), 0), func.coalesce(func.sum(AccountRow.pending), 0)).where(
            col(AccountRow.tenant_id) == row.tenant_id,
            col(AccountRow.unit) == row.unit,
            col(AccountRow.kind).in_((Account.GPU_TIME, Account.MONEY)),
        )
    ).one()
    spent = 0 if began > row.period_started_at else int(posted) - row.spent_before
    return BudgetView(
        tenant=path,
        unit=unit,
        amount=show_budget(row.amount, unit),
        period=row.period_s,
        spent=show_budget(spent, unit),
        held=show_budget(int(held), unit),
        left=show_budget(max(0, row.amount - spent - int(held)), unit),
        period_started_at=began,
        period_ends_at=began + length,
        etag=f'"{row.version}"',
    )
