"""What workflows and activities say to each other: plain dataclasses, small, JSON-able, additive for ever.

Decisions and snapshots never travel here: they stay in the database (DESIGN §4.2).
"""

from dataclasses import dataclass, field
from typing import Final

TASK_QUEUE: Final = "tidegate"
NUDGE: Final = "nudge"
# Half of what the server suggests at most: one turn of the loop writes up to ten events (TP-02: below 10,240). Runs
# whose input names no threshold replay with this one: never change it, give new runs another.
MAX_EVENTS: Final = 4_000


@dataclass(frozen=True)
class AttemptRef:
    """Which attempt; the workflow's whole input. `turn` counts its continue-as-news.

    max_events: the run continues as new once its history is so long. It is part of the input, and not of the code, so
    that a deploy with another threshold breaks no run that sleeps (TP-01).
    """

    attempt_id: str
    turn: int = 0
    start_asked_ms: int | None = None  # when the last start was asked for: backend_wait_timeout runs from there
    failures: int = 0  # tries in a row that changed nothing: the delay before the next one outlives a turn
    max_events: int = MAX_EVENTS
    launching_ms: int | None = None  # since when it is being launched in vain, while its backends answer


@dataclass(frozen=True)
class GroupSeen:
    """The newest observation of the attempt at one backend. Times are epoch milliseconds (the backend's clock)."""

    backend: str
    phase: str = "Absent"  # backends.types.Phase
    as_of_ms: int = 0
    restarts: int = 0
    sequence: int = 0
    started_ms: int | None = None
    ended_ms: int | None = None
    cause: str = ""  # policies.vocabulary.Reason, when Ended
    exit_code: int | None = None
    failed_rank: int | None = None
    final: bool = False
    stop_confirmed: bool = False
    notice_kind: str = ""
    notice_deadline_ms: int | None = None
    waiting: str = ""
    ready: int = 0
    codes: dict[str, int] = field(default_factory=dict)
    bad_nodes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ResizeView:
    """A resize inside the living launch: so many members, on these nodes where they are chosen. sent: it was asked."""

    group: str
    replicas: int
    before: int
    nodes: list[str] = field(default_factory=list)
    sent: bool = False


@dataclass(frozen=True)
class AttemptView:
    """What a workflow knows of its attempt: the row, read at `now_ms` of the database."""

    attempt_id: str
    job_id: str
    number: int
    state: str
    version: int
    now_ms: int
    backends: list[str] = field(default_factory=list)  # in the order in which they are to be started
    prepared: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    dark: list[str] = field(default_factory=list)
    seen: list[GroupSeen] = field(default_factory=list)
    lease_state: str = "held"
    place_first: bool = False  # start nothing until the lease is held
    stop_cause: str = ""
    stop_grace_s: int = 0
    stop_asked_ms: int | None = None
    stop_sent: bool = False
    want_cancel: bool = False
    want_checkpoint: int = 0
    checkpoint_done: int = 0
    want_size: dict[str, int] | None = None
    kind: str = "training"
    created_ms: int = 0
    pending_ms: int | None = None
    started_ms: int | None = None
    stopping_ms: int | None = None
    first_running_ms: int | None = None
    gang_timeout_s: int = 600
    backend_wait_timeout_s: int = 600
    max_duration_s: int | None = None
    term_s: int = 10
    save_timeout_s: int = 120
    recovery_s: int = 120  # after grace, while the backend answers: then a stopped object counts as gone
    covers_until_ms: int | None = None
    stall_after_ms: int | None = None  # now_ms beyond this: stalled
    checkpoints: bool = False  # the job can save
    replicas_total: int = 1
    grace_s: int = 300  # of the job, capped by its class: for stops that name no grace of their own
    start_asked_ms: int | None = None  # filled in by the workflow where the row does not say
    launching_ms: int | None = None  # the same: since when it is being launched in vain
    pools: dict[str, list[str]] = field(default_factory=dict)  # backend -> pools in which the attempt is placed
    handles: dict[str, str] = field(default_factory=dict)  # backend -> what it calls the launch
    no_progress: int = 0  # attempts in a row before this one that saved and left without a newer checkpoint
    follows: str = ""  # waits for the attempt before it, which is moved: "going", or "stays" after all
    preemptor: bool = False  # others had to make way for it
    place_timeout_s: int = 0  # a waiter that is not prepared so long after it began gives up; 0: never
    resize: ResizeView | None = None  # inside the living launch; one by relaunch is a stop with that cause
    survives: bool = False  # a notice takes members of an elastic job, and those that are left make a valid size
    newer_checkpoint: bool = False  # this attempt left a valid checkpoint newer than the one it began from


@dataclass(frozen=True)
class Settled:
    """What settle() did: whether this call was the one, and what became of the job."""

    first: bool
    attempt_state: str
    job_state: str


@dataclass(frozen=True)
class Duty:
    """One of the standing loops: arbiter, relay, follower, reconciler. `subject` is a backend's name or ""."""

    name: str
    subject: str = ""
    turn: int = 0


@dataclass(frozen=True)
class EndRequest:
    """Ask the ledger to settle an attempt. `reason` is a policies.vocabulary.Reason; times in epoch milliseconds."""

    attempt_id: str
    reason: str
    ended_ms: int | None = None
    exit_code: int | None = None
    failed_rank: int | None = None
    message: str = ""
    codes: dict[str, int] = field(default_factory=dict)
    bad_nodes: list[str] = field(default_factory=list)
    final: bool = False  # a FINAL mark was seen beside the newest checkpoint
    no_room: bool = False  # the backend had none for it
    refused_by: str = ""  # a backend that does not serve the job's tenant: the job stays away from it


@dataclass(frozen=True)
class Refusal:
    """A backend will not have the launch. `permanent`: nor will any other. `misconfigured`: an operator must act.

    `tenant`: of this tenant it will have none; other tenants are served on. `no_room`: there is no capacity now.
    """

    backend: str
    reason: str
    message: str
    permanent: bool = False
    misconfigured: bool = False
    tenant: bool = False
    no_room: bool = False


@dataclass(frozen=True)
class Done:
    """What became of a step: the row after it, and what the row cannot say.

    retry_after_s: nothing changed, ask again so much later. refusal: see there. absent: a backend that surely has no
    object of the attempt. settled: the attempt has ended, by this step or before it.
    """

    view: AttemptView | None = None
    retry_after_s: float = 0.0
    problem: str = ""
    refusal: Refusal | None = None
    absent: str = ""
    settled: bool = False
