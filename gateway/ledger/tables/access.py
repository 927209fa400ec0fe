"""Who may do what: tenants, principals' tokens, allowances, audit, idempotency keys."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import UniqueConstraint
from sqlmodel import Field, SQLModel

from gateway.ledger.tables.columns import Big, Instant, Json, Number


class Tenant(SQLModel, table=True):
    """A node of the tree; `path` is its name everywhere outside."""

    __tablename__ = "tenants"
    id: int | None = Number(big=False)
    path: str = Field(unique=True, max_length=255)
    parent_id: int | None = Field(default=None, foreign_key="tenants.id")
    active: bool = True
    contact: str = ""
    queue_limit: int | None = None  # waiting jobs of it and below it; None: the gate's setting, 0: no limit
    shedding: bool = False  # it has been over its limit, and is not far enough below again
    version: int = 1
    created_at: datetime = Instant(default_now=True)


class Token(SQLModel, table=True):
    """An API token: only its SHA-256 is stored. `attempt_id` set: a job's own token, dead with its attempt."""

    __tablename__ = "tokens"
    id: UUID = Field(primary_key=True)
    digest: bytes = Field(unique=True)
    tenant_id: int = Field(foreign_key="tenants.id")
    principal: str
    role: int  # policies.vocabulary.Role
    attempt_id: str | None = Field(default=None, index=True)
    note: str = ""
    created_at: datetime = Instant(default_now=True)
    expires_at: datetime | None = Instant(nullable=True)
    revoked_at: datetime | None = Instant(nullable=True)


class ClassAllowance(SQLModel, table=True):
    """GPU time of P0 or P1 that a tenant may use in each period; `used_gpu_ms` restarts with the period."""

    __tablename__ = "class_allowances"
    tenant_id: int = Field(foreign_key="tenants.id", primary_key=True)
    klass: str = Field(primary_key=True)
    gpu_ms: int = Big()
    period_s: int = 2_592_000
    used_gpu_ms: int = Big()
    period_started_at: datetime = Instant(default_now=True)
    version: int = 1


class IdempotencyKey(SQLModel, table=True):
    """One key of one principal: what it made. Lives as long as the job's row."""

    __tablename__ = "idempotency_keys"
    tenant_id: int = Field(primary_key=True)
    key: str = Field(primary_key=True, max_length=255)
    body_digest: bytes
    job_id: UUID = Field(index=True)
    created_at: datetime = Instant(default_now=True)


class Audit(SQLModel, table=True):
    """Who changed what, with both sides. Append-only."""

    __tablename__ = "audit"
    id: int | None = Number()
    at: datetime = Instant(default_now=True)
    principal: str
    tenant_id: int | None = None
    action: str
    target: str
    reason: str = ""
    before: dict[str, Any] | None = Json(nullable=True)
    after: dict[str, Any] | None = Json(nullable=True)


class Storage(SQLModel, table=True):
    """A place for checkpoints and data that operators allow: a URL must normalise to under one prefix."""

    __tablename__ = "storages"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)
    id: int | None = Number(big=False)
    tenant_id: int = Field(foreign_key="tenants.id")
    name: str
    scheme: str
    prefix: str
    credential: str = ""  # a reference, never the secret
    version: int = 1
