"""What the API answers about jobs. Instants are RFC 3339 in UTC, GPU time in GPU-ms, money in micro-dollars."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from tidegate.wire.base import Loose, Wire
from tidegate.wire.enums import AttemptState, JobKind, JobState, PriorityClass
from tidegate.wire.spec import JobSpec, Labels
from tidegate.wire.units import MAX_SECONDS


class Why(Loose):
    """Why a job waits: a token, its numbers, what would change it, what is in front, and an estimated start."""

    token: str
    numbers: dict[str, int | str] = Field(default_factory=dict)
    remedy: str = ""
    blocker: str = ""
    starts_at: datetime | None = None


class Job(Loose):
    """A job as lists show it."""

    id: str
    name: str
    tenant: str
    principal: str
    kind: JobKind
    priority: PriorityClass
    state: JobState
    reason: str = ""
    message: str = ""
    pending: Why | None = None
    exit_code: int | None = None
    attempts: int = 0
    failures: int = 0
    preemptions: int = 0
    revocations: int = 0
    on_hold: bool = False
    array_size: int | None = None
    array_ended: int = 0
    array_failed: int = 0
    labels: dict[str, str] = Field(default_factory=dict)
    submitted_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    version: int


class JobDetail(Job):
    """One job with its spec."""

    spec: JobSpec


class Submitted(Loose):
    """The answer to a submit. `replayed`: this key had made the job before."""

    id: str
    state: JobState
    replayed: bool = False


class BatchSubmit(Wire):
    """Many jobs in one transaction: all or none. The key of job n is `<key>/<n>`."""

    jobs: tuple[JobSpec, ...] = Field(min_length=1, max_length=1000)


class BatchSubmitted(Loose):
    """One answer per job, in order."""

    jobs: tuple[Submitted, ...]


class PlacedGroup(Loose):
    """Where members of a group went."""

    group: str
    pool: str
    flavor: str
    replicas: int
    nodes: tuple[tuple[str, int], ...] = ()


class Attempt(Loose):
    """One try of a job."""

    id: str
    number: int
    chunk: int | None = None
    state: AttemptState
    reason: str = ""
    message: str = ""
    placed: tuple[PlacedGroup, ...] = ()
    exit_code: int | None = None
    failed_rank: int | None = None
    codes: dict[str, int] = Field(default_factory=dict)
    stop_cause: str | None = None
    resume_from: str = ""
    gpu_ms: int = 0
    money: int = 0
    credit_gpu_ms: int = 0
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None


class Task(Loose):
    """One index of an array."""

    index: int
    state: JobState
    reason: str = ""
    exit_code: int | None = None
    attempts: int = 0


class Event(Loose):
    """Something that happened to a job; `id` orders them and is the SSE id."""

    id: int
    at: datetime
    job: str
    attempt: str | None = None
    kind: str
    reason: str = ""
    data: dict[str, Any] = Field(default_factory=dict)


class Decision(Loose):
    """One decision about a job, with its reason and numbers."""

    id: int
    at: datetime
    kind: str
    token: str
    data: dict[str, Any] = Field(default_factory=dict)
    policy: str = ""
    applied: bool = True


class Explanation(Loose):
    """Why a job is where it is, what would change it and when it may start."""

    job: str
    state: JobState
    why: Why | None = None
    words: str = ""
    decisions: tuple[Decision, ...] = ()


class DryRun(Loose):
    """What the arbiter would do with the job now; nothing is stored."""

    decision: str
    why: Why
    placed: tuple[PlacedGroup, ...] = ()
    preempts: tuple[str, ...] = ()


class ResizeRequest(Wire):
    """Another size for one group, in replicas."""

    group: str = "main"
    replicas: int = Field(ge=1, le=100_000, strict=True)


class CancelRequest(Wire):
    """What to end: the job, or one index of an array."""

    index: int | None = Field(default=None, ge=0, le=2**31 - 1, strict=True)
    message: str = Field(default="", max_length=500)


class JobUpdate(Wire):
    """What may change while a job is queued (labels: always)."""

    priority: PriorityClass | None = None
    labels: Labels | None = None
    max_duration: int | None = Field(default=None, ge=1, le=MAX_SECONDS, strict=True)


class LogEvent(Loose):
    """A piece of one member's output; `offset` is where to go on from."""

    rank: int
    group: str = ""
    text: str
    offset: int


class Page(Loose):
    """The envelope of every list: `next` is the cursor of the following page, None at the end."""

    items: tuple[Any, ...]
    next: str | None = None


class JobPage(Page):
    """A page of jobs."""

    items: tuple[Job, ...]


class AttemptPage(Page):
    """A page of attempts."""

    items: tuple[Attempt, ...]


class TaskPage(Page):
    """A page of an array's tasks."""

    items: tuple[Task, ...]


class EventPage(Page):
    """A page of events."""

    items: tuple[Event, ...]


class ProgressReport(Wire):
    """What a running attempt says of itself: its newest step and how many samples it has seen."""

    step: int = Field(ge=0, le=2**62, strict=True)
    samples: int = Field(default=0, ge=0, le=2**62, strict=True)


class CheckpointReport(Wire):
    """A manifest that is complete with right sizes (L1). `size` in bytes, `save_ms` as measured by the job."""

    step: int = Field(ge=0, le=2**62, strict=True)
    url: str = Field(min_length=1, max_length=2048)
    size: int = Field(default=0, ge=0, le=2**62, strict=True)
    save_ms: int = Field(default=0, ge=0, le=2**40, strict=True)
    reshardable: bool = False
    parts: tuple[str, ...] = Field(default=(), max_length=100)
    world_size: int | None = Field(default=None, ge=1, le=2**31, strict=True)
    parallelism: dict[str, Annotated[int, Field(ge=0, le=2**31, strict=True)]] = Field(
        default_factory=dict, max_length=16
    )
    verified: int = Field(default=1, ge=1, le=2, strict=True)


class NoticeView(Loose):
    """What a running attempt is told: `kind` is "" while there is nothing, else checkpoint, preempt, stop and so on."""

    kind: str = ""
    number: int = 0
    deadline: datetime | None = None


class BrokenCheckpoint(Wire):
    """A checkpoint whose digests did not hold when it was read back (L2)."""

    url: str = Field(min_length=1, max_length=2048)


class NoticeReport(Wire):
    """What an instance was told by its provider, as its agent heard it. `deadline` in seconds since the epoch."""

    kind: Literal["revoke", "rebalance"]
    deadline: float | None = Field(default=None, ge=0, le=2**40)
    instance: str = Field(default="", max_length=255)
