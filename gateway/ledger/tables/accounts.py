"""Double entry: accounts with stored balances, transactions whose entries sum to zero per unit."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Index, UniqueConstraint, text
from sqlmodel import Field, SQLModel

from gateway.ledger.tables.columns import Big, Instant, Json, Number


class AccountRow(SQLModel, table=True):
    """One account with its balance. Locked in ascending id, everywhere.

    kind: policies.vocabulary.Account. unit: what its integers count (`accelerators` in milli-GPU, `cpus`, `memory`,
    `jobs`, `gpu_ms`, `micro_usd`). tenant_id NULL: a system account, which may be negative; a tenant's may not.
    """

    __tablename__ = "accounts"
    __table_args__ = (UniqueConstraint("kind", "tenant_id", "flavor", "unit", postgresql_nulls_not_distinct=True),)
    id: int | None = Number(big=False)
    kind: str
    tenant_id: int | None = Field(default=None, foreign_key="tenants.id")
    flavor: str = ""
    unit: str
    posted: int = Big()
    pending: int = Big()
    version: int = 1


class TransactionRow(SQLModel, table=True):
    """One fact. `cause` makes it idempotent: the same cause is booked once."""

    __tablename__ = "transactions"
    __table_args__ = (Index("transactions_burned", "id", postgresql_where=text("kind = 'credit_burned'")),)
    id: int | None = Number()
    cause: str = Field(unique=True, max_length=255)
    kind: str
    at: datetime = Instant(default_now=True)
    data: dict[str, Any] = Json()


class Entry(SQLModel, table=True):
    """One side of a transaction. pending: it moves the pending balance, not the posted one. Append-only."""

    __tablename__ = "entries"
    __table_args__ = (
        Index("entries_by_account", "account_id", "id"),
        Index("entries_by_transaction", "transaction_id"),
        {"postgresql_partition_by": "RANGE (at)"},
    )
    id: int | None = Number()
    at: datetime = Field(
        default=None,
        primary_key=True,
        sa_type=Instant().sa_type,
        sa_column_kwargs={"server_default": text("now()")},
    )
    transaction_id: int = Field(sa_type=BigInteger)
    account_id: int
    amount: int = Big()
    pending: bool = False


class BorrowingRow(SQLModel, table=True):
    """Who borrowed how much of whose guarantee, from when to when; debt is computed from these intervals."""

    __tablename__ = "borrowings"
    id: int | None = Number()
    lease_id: str = Field(index=True)
    lender_id: int = Field(foreign_key="tenants.id")
    borrower_id: int = Field(foreign_key="tenants.id")
    flavor: str
    amount: int = Big()
    since: datetime = Instant(default_now=True)
    until: datetime | None = Instant(nullable=True)


class BudgetRow(SQLModel, table=True):
    """What a tenant and all below it may spend in each period. `spent_before`: its posted balance when it began."""

    __tablename__ = "budgets"
    tenant_id: int = Field(foreign_key="tenants.id", primary_key=True)
    unit: str = Field(primary_key=True)  # "gpu_ms" (all flavors) or "micro_usd"
    amount: int = Big()
    period_s: int = 2_592_000
    spent_before: int = Big()
    period_started_at: datetime = Instant(default_now=True)
    version: int = 1


class CreditRow(SQLModel, table=True):
    """One credit granted: unique per victim attempt and preemption."""

    __tablename__ = "credits"
    victim_attempt: str = Field(primary_key=True)
    preemption: str = Field(primary_key=True)
    tenant_id: int = Field(foreign_key="tenants.id", index=True)
    flavor: str
    gpu_ms: int = Big()
    terms: dict[str, Any] = Json()  # gap_ms, save_ms, restart_ms, bonus_ms, gpus
    at: datetime = Instant(default_now=True)
    expires_at: datetime | None = Instant(nullable=True)
    burned_gpu_ms: int = Big()
