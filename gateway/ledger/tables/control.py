"""The machinery: arbiter's epoch, outbox, decisions and their snapshots, overrides."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Index, text
from sqlmodel import Field, SQLModel

from gateway.ledger.tables.columns import Instant, Json, Number


class Arbiter(SQLModel, table=True):
    """One row. Whoever wants to commit proves its epoch first; zero rows: it is fenced."""

    __tablename__ = "arbiter"
    id: int = Field(default=1, primary_key=True)
    epoch: int = Field(default=0, sa_type=BigInteger)
    holder: str = ""
    beat: datetime = Instant(default_now=True)


class Outbox(SQLModel, table=True):
    """A side effect that a transaction owes: start or nudge the workflow of an attempt, or send a webhook."""

    __tablename__ = "outbox"
    __table_args__ = (
        Index("outbox_due", "due_at", postgresql_where=text("done_at IS NULL")),
        Index("outbox_by_target", "target", "kind"),
    )
    id: int | None = Number()
    kind: str  # "start", "nudge", "webhook"
    target: str  # attempt id (or webhook id)
    data: dict[str, Any] = Json()
    tries: int = 0
    error: str = ""
    created_at: datetime = Instant(default_now=True)
    due_at: datetime = Instant(default_now=True)
    done_at: datetime | None = Instant(nullable=True)


class SnapshotRow(SQLModel, table=True):
    """A snapshot that led to a decision, by the digest of its canonical JSON, whole or as a delta to `base`."""

    __tablename__ = "snapshots"
    digest: str = Field(primary_key=True)
    base: str | None = None
    data: dict[str, Any] = Json()
    at: datetime = Instant(default_now=True)


class DecisionRow(SQLModel, table=True):
    """One decision of one cycle, with policy version and config digest, so that it can be replayed."""

    __tablename__ = "decisions"
    __table_args__ = (Index("decisions_by_job", "job_id", "id"),)
    id: int | None = Number()
    at: datetime = Instant(default_now=True)
    epoch: int = Field(sa_type=BigInteger)
    job_id: UUID | None = None
    attempt_id: str | None = None
    kind: str  # Admit, Wait, Preempt, Move, Resize, Reject
    token: str
    data: dict[str, Any] = Json()
    applied: bool = True
    snapshot: str = ""
    now_ms: int = Field(default=0, sa_type=BigInteger)
    policy: str = ""
    config: str = ""


class OverrideRow(SQLModel, table=True):
    """An operator's word about one attempt, with a reason and an expiry."""

    __tablename__ = "overrides"
    id: int | None = Number(big=False)
    attempt_id: str = Field(index=True)
    force: bool
    reason: str
    principal: str
    expires_at: datetime = Instant()
    created_at: datetime = Instant(default_now=True)
