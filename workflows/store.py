"""What activities need of the ledger, as a Protocol that `gateway.bootstrap` binds. All calls block; each is one
transaction, guarded, and safe to repeat. No network but the database's in any of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from backends.types import Capabilities, LaunchRequest, Observation, PoolCapacity
from policies.decisions import Plan
from policies.snapshot import Placed, Snapshot
from policies.vocabulary import AttemptState, StopCause
from workflows.messages import AttemptView, EndRequest, Settled


class FencedError(Exception):
    """A later arbiter holds the epoch: this one must leave and write nothing more."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """A consistent snapshot with the database's time, and the cursor of what it has seen."""

    snapshot: Snapshot
    now_ms: int
    cursor: int = 0


@dataclass(frozen=True, slots=True)
class CommitReport:
    """What a commit did: job ids admitted, attempts told to go, decisions dropped as stale (by what)."""

    admitted: tuple[str, ...] = ()
    preempted: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    waits_written: int = 0
    dropped: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OutboxItem:
    """One claimed row. kind: start, nudge, webhook. tries: this one included."""

    id: int
    kind: str
    target: str
    data: Mapping[str, Any] = field(default_factory=dict)
    tries: int = 0


@dataclass(frozen=True, slots=True)
class Due:
    """An attempt that is to be launched at its only backend, and what is to be launched."""

    attempt_id: str
    backend: str
    request: LaunchRequest


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch whose start was answered."""

    attempt_id: str
    backend: str
    native: str


@dataclass(frozen=True, slots=True)
class Live:
    """A live attempt as the reconciler and followers need it."""

    attempt_id: str
    job_id: str
    state: AttemptState
    handles: Mapping[str, str]  # backend -> native handle ("" when prepared without one yet)
    backends: tuple[str, ...]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Part:
    """What one backend has of a launch. begun: it was started (and may have ended)."""

    native: str
    placed: tuple[Placed, ...]
    begun: bool
    token_sha256: bytes = b""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A launch that the ledger does not know. parts: backend -> what it has of it."""

    key: str
    parts: Mapping[str, Part]


class Store(Protocol):
    """The ledger as the workflows see it."""

    # -- arbiter ------------------------------------------------------------------------------------------------
    def take_epoch(self, holder: str) -> int:
        """Become the arbiter: a new epoch, which fences whoever held the last one."""
        ...

    def beat(self, epoch: int) -> None:
        """Prove the epoch. Raises FencedError."""
        ...

    def wait_for_work(self, timeout_s: float) -> bool:
        """Block until a NOTIFY on channel `tidegate_work` or the timeout; True if notified. Own connection."""
        ...

    def fingerprint(self) -> str:
        """One word for all that `cycle` reads: while it stays the same, so does the snapshot, but for its time."""
        ...

    def cycle(self) -> Cycle:
        """A snapshot in one REPEATABLE READ transaction."""
        ...

    def commit(self, epoch: int, cycle: Cycle, plan: Plan) -> CommitReport:
        """Apply a plan: first the epoch, then a savepoint per Act, Reject and Wait (DESIGN §4.2). FencedError."""
        ...

    # -- relay ----------------------------------------------------------------------------------------------------
    def wait_for_outbox(self, timeout_s: float) -> bool:
        """As wait_for_work, on channel `tidegate_outbox`."""
        ...

    def claim_outbox(self, limit: int) -> Sequence[OutboxItem]:
        """Due rows but webhooks, oldest first, SKIP LOCKED; pushed 30 s ahead so that a dead relay's come again.

        Rows about attempts that have ended are done without a word; a nudge waits until the start of its attempt is
        done, for that start makes the workflow read the row.
        """
        ...

    def outbox_done(self, ids: Sequence[int]) -> None:
        """These need not be done again."""
        ...

    def outbox_failed(self, item_id: int, error: str) -> None:
        """Try again later, with growing delay up to 60 s; one bad row never stops the others."""
        ...

    def claim_webhooks(self, limit: int) -> Sequence[OutboxItem]:
        """As claim_outbox, the webhooks alone: a slow receiver never holds a workflow's start."""
        ...

    def webhook_failed(self, item_id: int, error: str, delay_s: int | None) -> None:
        """Try again in so many seconds; None: never, and `error` stays with the row."""
        ...

    def begin_launches(self, attempts: Sequence[str]) -> Sequence[Due]:
        """Those that are due for their first launch, at one backend and wanted by all; PENDING from now on."""
        ...

    def still_wanted(self, attempts: Sequence[str]) -> frozenset[str]:
        """Those of them that may be started: live, PENDING, lease held, and nobody has asked to stop them."""
        ...

    def launched(self, done: Sequence[Launched]) -> None:
        """Record handles, and that start() was answered. The same again changes nothing."""
        ...

    # -- attempt --------------------------------------------------------------------------------------------------
    def load_attempt(self, attempt_id: str) -> AttemptView | None:
        """The row and the wishes, as of the database's now(); None if there is no such attempt."""
        ...

    def launch_request(self, attempt_id: str, backend: str) -> LaunchRequest:
        """What `backend` is to launch. A token is minted here, its digest stored. Earlier ones of this attempt live on:
        after a lost answer the launch that exists holds one of them. All die with the attempt. LookupError: not live.
        """
        ...

    def mark(self, attempt_id: str, to: AttemptState, *, at: datetime | None = None) -> bool:
        """Guarded step along the attempt table (and the job's with it); False when the row was elsewhere already."""
        ...

    def prepared(self, attempt_id: str, backend: str, native: str) -> None:
        """Record the handle of a prepared launch; with the last one of a waiter its victims are told, in the same
        transaction.
        """
        ...

    def give_up_placing(self, attempt_id: str) -> bool:
        """The waiter of a preemption is not placed: its contingent lease is void and those not told yet are spared.
        False: it waits for nobody (any more).
        """
        ...

    def started(self, attempt_id: str, backend: str) -> None:
        """Record that start() was answered."""
        ...

    def ask_stop(self, attempt_id: str, cause: StopCause, grace_s: int) -> bool:
        """Write a stop wish if there is none yet (a cancel overrides a milder one); a nudge goes out with it."""
        ...

    def stop_sent(self, attempt_id: str, grace_s: int | None = None, since_s: float = 0) -> None:
        """The backend has got the stop: the attempt is STOPPING (or CHECKPOINTING, for a notice with a save).

        grace_s: what it was told; where the row wants a shorter one by now, the stop counts as not sent. since_s: how
        long ago the telling began: a member may have heard it and begun to save before the last one was told.
        """
        ...

    def checkpoint_sent(self, attempt_id: str, number: int) -> None:
        """A wish to checkpoint was carried out."""
        ...

    def resize_sent(self, attempt_id: str) -> None:
        """The backend was asked for another size inside the launch."""
        ...

    def resized(self, attempt_id: str, *, reached: bool, message: str = "") -> bool:
        """That resize is over: at the asked size, or at the old one. False: none is under way (any more)."""
        ...

    def settle(self, end: EndRequest) -> Settled:
        """One transaction, once per attempt: states, lease, posted use, credit, event, outbox (DESIGN §4.8)."""
        ...

    def accrue(self) -> int:
        """Post use of every running lease up to now and renew rolling ones; how many were touched."""
        ...

    def rest_pool(self, pool: str, seconds: int, reason: str) -> None:
        """Place nothing in the pool for a while."""
        ...

    # -- followers and reconciler ---------------------------------------------------------------------------------
    def live_attempts(self, backend: str) -> Sequence[Live]:
        """Every live attempt with a part at this backend ("" = all)."""
        ...

    def observe(self, backend: str, observations: Sequence[Observation]) -> int:
        """Store newer observations and nudge the attempts that changed; how many did."""
        ...

    def capacity(self, backend: str, pools: Sequence[PoolCapacity], capabilities: Capabilities | None = None) -> None:
        """Replace what is known of these pools, and what their backend promises; wake the arbiter if it changed."""
        ...

    def answered(self, backend: str) -> None:
        """The backend answers: not dark any more."""
        ...

    def dark(self, backend: str, problem: str) -> None:
        """The backend does not answer. Frees nothing, expires nothing."""
        ...

    def without_workflow(self, older_than_s: int) -> Sequence[str]:
        """Live attempts whose start was relayed at least so long ago, for a check that their workflow exists."""
        ...

    def start_again(self, attempt_id: str) -> None:
        """Put a start row into the outbox."""
        ...

    def adopt(self, attempt_id: str, backend: str, native: str) -> bool:
        """Take an object found by its tag into a live attempt's handles; False: no live attempt wants it."""
        ...

    def end_without_evidence(self, attempt_id: str) -> Settled:
        """settle() as LOST, or by what was last observed."""
        ...

    # -- recover ------------------------------------------------------------------------------------------------
    def take_in(self, found: Forgotten) -> str:
        """Make the attempt again that a restored database has forgotten, with a lease and a workflow owed. "" when it
        lives now; else why its objects must be ended: a rule, in words.
        """
        ...

    def after_restore(self) -> Sequence[str]:
        """Make times and stops that are older than the backup harmless; the attempts whose stop was forgotten."""
        ...
