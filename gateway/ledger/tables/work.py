"""Jobs, attempts, leases, checkpoints, events and observations."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Index, text
from sqlmodel import Field, SQLModel

from gateway.ledger.tables.columns import Big, Instant, Json, Number


class JobRow(SQLModel, table=True):
    """The wish. Wishes of users about it (`want_*`) are columns set by a guarded UPDATE; the row is the truth.

    spec: the accepted job spec as stored JSON (tidegate.wire.spec.JobSpec). request: the same for the arbiter, flat:
    see `gateway.ledger.snapshot`. pending: the last Wait {token, numbers, remedy, blocker, starts_at}.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        Index("jobs_by_time", "submitted_at", "id"),
        Index("jobs_queued", "submitted_at", postgresql_where=text("state = 'QUEUED'")),
        Index("jobs_arrays", "id", postgresql_where=text("array_size IS NOT NULL AND ended_at IS NULL")),
        Index("jobs_by_tenant", "tenant_id", "submitted_at", "id"),
    )
    id: UUID = Field(primary_key=True)
    tenant_id: int = Field(foreign_key="tenants.id")
    principal: str
    name: str
    kind: str
    klass: str
    spec: dict[str, Any] = Json()
    request: dict[str, Any] = Json()
    labels: dict[str, str] = Json()
    state: str = "QUEUED"
    reason: str = ""
    message: str = ""
    pending: dict[str, Any] | None = Json(nullable=True)
    exit_code: int | None = None
    version: int = 1
    attempts: int = 0
    failures: int = 0
    preemptions: int = 0
    revocations: int = 0
    no_progress: int = 0
    want_cancel: bool = False
    want_hold: bool = False
    want_checkpoint: int = 0  # a counter: each request is one more
    want_size: dict[str, int] | None = Json(nullable=True)  # group -> replicas
    want_size_at: datetime | None = Instant(nullable=True)
    not_before: datetime | None = Instant(nullable=True)
    array_size: int | None = None
    array_ended: int = 0
    array_failed: int = 0
    submitted_at: datetime = Instant(default_now=True)
    started_at: datetime | None = Instant(nullable=True)
    ended_at: datetime | None = Instant(nullable=True)


class TaskRow(SQLModel, table=True):
    """One (job, index) of an array, made lazily: when something has happened to it. Each has its own retries."""

    __tablename__ = "tasks"
    job_id: UUID = Field(foreign_key="jobs.id", primary_key=True)
    index: int = Field(primary_key=True)
    state: str = "QUEUED"
    reason: str = ""
    exit_code: int | None = None
    attempts: int = 0
    failures: int = 0
    no_progress: int = 0
    want_cancel: bool = False
    not_before: datetime | None = Instant(nullable=True)  # back-off of this index alone
    avoid_nodes: list[str] | None = Json(nullable=True)  # what its next attempt stays away from
    attempt_id: str | None = None


class AttemptRow(SQLModel, table=True):
    """One try on one placement. handles: backend name -> native handle. placed: list of policies.snapshot.Placed."""

    __tablename__ = "attempts"
    __table_args__ = (
        Index("attempts_live", "state", postgresql_where=text("ended_at IS NULL")),
        Index("attempts_by_job", "job_id", "number"),
        Index("attempts_lost", "ended_at", postgresql_where=text("preemption_lost")),
        Index("attempts_by_waiter", "stop_for", postgresql_where=text("stop_for <> ''")),
    )
    id: str = Field(primary_key=True, max_length=63)
    job_id: UUID = Field(foreign_key="jobs.id")
    number: int
    chunk: int | None = None
    first_index: int | None = None
    last_index: int | None = None
    state: str = "RESERVED"
    version: int = 1
    placed: list[dict[str, Any]] = Json()
    lease_id: UUID
    handles: dict[str, str] = Json()
    started_groups: list[str] = Json()  # backends that have been started, for gangs over several
    resume_from: str = ""
    stop_cause: str | None = None  # policies.vocabulary.StopCause; set by a guarded UPDATE
    stop_grace_s: int | None = None
    stop_asked_at: datetime | None = Instant(nullable=True)
    stop_for: str = ""  # waiter's job id, preemption id = attempt id
    stop_credit: bool = False
    stop_due: dict[str, Any] | None = Json(
        nullable=True
    )  # {cause, grace_s, credit}: not told before stop_for is placed
    resize_to: dict[str, Any] | None = Json(nullable=True)  # see `gateway.ledger.resizing`; counts with cause `resize`
    resized_at: datetime | None = Instant(nullable=True)  # when its present size was decided, if not by an admission
    checkpoint_asked: int = 0  # the newest want_checkpoint that was carried out
    observed: dict[str, Any] = Json()  # backend -> last observation (workflows.messages.Seen)
    why: dict[str, Any] = Json()  # the Admit's reason and numbers
    progress: dict[str, Any] = Json()  # newest report: step, samples, at_ms, reports, step_ms (median of the last)
    reason: str = ""
    exit_code: int | None = None
    failed_rank: int | None = None
    codes: dict[str, int] = Json()
    message: str = ""
    gpu_ms: int = Big()
    money: int = Big()
    restart_ms: int = Big()
    preemption_lost: bool = False  # its victims had gone, and foreign load took the room
    created_at: datetime = Instant(default_now=True)
    pending_at: datetime | None = Instant(nullable=True)
    started_at: datetime | None = Instant(nullable=True)
    noticed_at: datetime | None = Instant(nullable=True)  # first told to leave with a grace, by whichever way
    stopping_at: datetime | None = Instant(nullable=True)
    ended_at: datetime | None = Instant(nullable=True)


class LeaseRow(SQLModel, table=True):
    """Capacity and quota taken for an attempt. A resolved lease cannot be resolved again.

    One lease has one size: an attempt that changes its own has one after the other, the present in `attempts.lease_id`.
    """

    __tablename__ = "leases"
    __table_args__ = (
        Index("leases_of_attempt", "attempt_id"),
        Index("leases_live", "attempt_id", unique=True, postgresql_where=text("state IN ('held', 'contingent')")),
    )
    id: UUID = Field(primary_key=True)
    tenant_id: int = Field(foreign_key="tenants.id", index=True)
    job_id: UUID = Field(index=True)
    attempt_id: str
    state: str = "held"
    contingent_on: list[str] = Json()  # attempt ids that are not settled yet
    items: list[dict[str, Any]] = Json()  # {pool, flavor, resource, amount}
    loans: list[dict[str, Any]] = Json()  # {lender, flavor, amount}
    klass: str = "P2"
    gpu_milli: int = Big()
    price: int = Big()  # micro-dollars per hour of the whole lease
    used_ms: int = Big()  # time posted so far; GPU time and money follow from it by integer division
    held_ms: int = Big()  # time still held ahead
    payer: str = ""  # policies.vocabulary.Payer once resolved
    held_gpu_ms: int = Big()  # what is still held of GPU time
    held_money: int = Big()
    accrued_until: datetime | None = Instant(nullable=True)
    covers_until: datetime | None = Instant(nullable=True)
    version: int = 1
    created_at: datetime = Instant(default_now=True)
    resolved_at: datetime | None = Instant(nullable=True)


class CheckpointRow(SQLModel, table=True):
    """A manifest that a job reported. verified: 1 = complete with right sizes, 2 = digests checked.

    array_index: whose it is in an array, each index with attempts and folders of its own; -1: the job is none.
    """

    __tablename__ = "checkpoints"
    job_id: UUID = Field(foreign_key="jobs.id", primary_key=True)
    array_index: int = Field(default=-1, primary_key=True)
    attempt_number: int = Field(primary_key=True)
    step: int = Field(primary_key=True, sa_type=BigInteger)
    url: str
    verified: int = 0
    reshardable: bool = False
    size: int = Big()
    save_ms: int = Big()
    parts: dict[str, Any] = Json()
    at: datetime = Instant(default_now=True)


class Event(SQLModel, table=True):
    """What happened to a job, in order. Partitioned by month of `at`; append-only."""

    __tablename__ = "events"
    __table_args__ = (
        Index("events_by_job", "job_id", "id"),
        {"postgresql_partition_by": "RANGE (at)"},
    )
    id: int | None = Number()
    at: datetime = Field(
        default=None,
        primary_key=True,
        sa_type=Instant().sa_type,
        sa_column_kwargs={"server_default": text("now()")},
    )
    job_id: UUID
    attempt_id: str | None = None
    tenant_id: int
    kind: str  # JobState, AttemptState or a word of gateway.ledger.events
    reason: str = ""
    data: dict[str, Any] = Json()


class ObservationRow(SQLModel, table=True):
    """What followers saw, as seen. Partitioned by month of `at`; append-only."""

    __tablename__ = "observations"
    __table_args__ = (
        Index("observations_by_attempt", "attempt_id", "id"),
        {"postgresql_partition_by": "RANGE (at)"},
    )
    id: int | None = Number()
    at: datetime = Field(
        default=None,
        primary_key=True,
        sa_type=Instant().sa_type,
        sa_column_kwargs={"server_default": text("now()")},
    )
    attempt_id: str
    backend: str
    phase: str
    data: dict[str, Any] = Json()
