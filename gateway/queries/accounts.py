"""Use, credits and the ledger's lines as a tenant sees them."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session
from sqlmodel import col

from gateway.ledger.tables.access import Tenant
from gateway.ledger.tables.accounts import AccountRow, CreditRow, Entry, TransactionRow
from gateway.operators.amounts import show
from gateway.queries.scope import Scope
from policies.vocabulary import Account
from tidegate.wire.enums import Resource
from tidegate.wire.operator import CreditView, StatementLine, UsageView


def usage(session: Session, scope: Scope) -> Sequence[UsageView]:
    """Per tenant and flavor: what is held now, and GPU time and money posted so far. Sums of the subtree."""
    rows = session.execute(
        select(AccountRow, col(Tenant.path))
        .join(Tenant, col(Tenant.id) == col(AccountRow.tenant_id))
        .where(scope.where())
    )
    held: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    posted: dict[tuple[str, str, str], int] = defaultdict(int)
    for row, path in rows:
        key = (path, row.flavor)
        if row.kind == Account.CONCURRENCY:
            resource = Resource(row.unit)
            held[key][row.unit] = show(max(0, row.posted + row.pending), resource)
        else:
            posted[path, row.flavor, row.kind] += row.posted
    keys = sorted({*held, *((path, flavor) for path, flavor, _ in posted)})
    return [
        UsageView(
            tenant=path,
            flavor=flavor,
            held=held.get((path, flavor), {}),
            gpu_ms=posted.get((path, flavor, Account.GPU_TIME), 0),
            money=posted.get((path, flavor, Account.MONEY), 0),
        )
        for path, flavor in keys
    ]


def granted_credits(
    session: Session, scope: Scope, *, before: tuple[datetime, str, str] | None, limit: int
) -> Sequence[CreditView]:
    """Newest first; `before` is (at, victim attempt, tie) of the page before's last."""
    order = tuple_(col(CreditRow.at), col(CreditRow.victim_attempt), func.md5(col(CreditRow.preemption)))
    query = (
        select(CreditRow, col(Tenant.path))
        .join(Tenant, col(Tenant.id) == col(CreditRow.tenant_id))
        .where(scope.where())
    )
    if before is not None:
        query = query.where(order < tuple_(*before))
    query = query.order_by(
        col(CreditRow.at).desc(), col(CreditRow.victim_attempt).desc(), func.md5(col(CreditRow.preemption)).desc()
    )
    return [
        CreditView(
            tenant=path,
            flavor=row.flavor,
            victim_attempt=row.victim_attempt,
            preemption=row.preemption,
            gpu_ms=row.gpu_ms,
            burned_gpu_ms=row.burned_gpu_ms,
            terms=row.terms,
            at=row.at,
            expires_at=row.expires_at,
        )
        for row, path in session.execute(query.limit(limit))
    ]


def tie(credit: CreditView) -> str:
    """What tells the credits of one victim apart in an order, without the other's id: cursors can be read."""
    return hashlib.md5(credit.preemption.encode(), usedforsecurity=False).hexdigest()


def statement(
    session: Session, tenant_id: int, *, before: int | None, limit: int
) -> Sequence[tuple[int, StatementLine]]:
    """(entry id, line) of one tenant's own accounts, newest first."""
    query = (
        select(Entry, AccountRow, TransactionRow)
        .join(AccountRow, col(AccountRow.id) == col(Entry.account_id))
        .join(TransactionRow, col(TransactionRow.id) == col(Entry.transaction_id))
        .where(col(AccountRow.tenant_id) == tenant_id)
    )
    if before is not None:
        query = query.where(col(Entry.id) < before)
    return [
        (
            entry.id or 0,
            StatementLine(
                at=entry.at,
                kind=fact.kind,
                cause=fact.cause,
                unit=account.unit,
                flavor=account.flavor,
                amount=entry.amount,
                pending=entry.pending,
            ),
        )
        for entry, account, fact in session.execute(query.order_by(col(Entry.id).desc()).limit(limit))
    ]
