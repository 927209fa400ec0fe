"""What a cycle may say. Somebody else applies it, one savepoint a decision, and may drop it as stale."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.snapshot import Placed
from policies.vocabulary import Pending, PriorityClass, Reason, StopCause

Numbers = Mapping[str, int | str]
"""What led to a decision, by name with the unit last (`free_milli_gpu`); integers and words only."""


@dataclass(frozen=True, slots=True)
class Why:
    """A token, the numbers behind it and, for people, what would change it."""

    token: str
    numbers: Numbers = field(default_factory=dict)
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Loan:
    """How much of an admission is borrowed, and from whom; the split is recorded per lender."""

    lender: str
    flavor: str
    amount: int  # milli-GPU


@dataclass(frozen=True, slots=True)
class Admit:
    """Lease `placed` for the job. With `contingent_on`, the lease becomes held as those attempts are settled."""

    job: str
    version: int
    placed: tuple[Placed, ...]
    why: Why
    contingent_on: tuple[str, ...] = ()
    loans: tuple[Loan, ...] = ()
    chunk: tuple[int, int] | None = None  # as the queued job's: which chunk of an array
    klass: PriorityClass | None = None  # the class in force, where an allowance does not reach; None: the job's own


@dataclass(frozen=True, slots=True)
class Preempt:
    """Stop one attempt for `waiter`. `credit` says whether the policy grants one when it is settled.

    again: it is being stopped already, for `cause`; its grace becomes the shorter one, and what it frees passes to this
    waiter. displaced: it is itself a waiter that never ran; its contingent lease is void with this decision.
    """

    attempt: str
    version: int
    waiter: str
    cause: StopCause
    grace_ms: int
    credit: bool
    why: Why
    again: bool = False
    displaced: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """A preemption and an admission elsewhere of the same job in one plan.

    instead: the cause with which it is stopped where the ledger does not grant the new place.
    """

    attempt: str
    version: int
    job: str
    placed: tuple[Placed, ...]
    waiter: str
    grace_ms: int
    credit: bool
    why: Why
    instead: StopCause = StopCause.PREEMPT
    loans: tuple[Loan, ...] = ()


@dataclass(frozen=True, slots=True)
class Resize:
    """Another size for one group of a live attempt, in members. `placed` is the whole attempt's placement from then on.

    in_place: its backend starts or ends members under it; else it saves, leaves and is launched again. loans: what a
    growth borrows beside what is borrowed already. waiter: whose lease counts on what a shrinking frees. grace_ms: for
    the save; None: the job's own.
    """

    attempt: str
    version: int
    job: str
    job_version: int  # so that a size that was asked for meanwhile is not taken for one that was seen
    group: str
    replicas: int
    placed: tuple[Placed, ...]
    why: Why
    in_place: bool = False
    waiter: str = ""
    grace_ms: int | None = None
    loans: tuple[Loan, ...] = ()


@dataclass(frozen=True, slots=True)
class Reject:
    """End a queued job that can no longer be served as it asked."""

    job: str
    version: int
    reason: Reason
    why: Why
    chunk: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Leave a job queued and say why. `starts_ms` is an estimate, None when nothing is known."""

    job: str
    version: int
    pending: Pending
    why: Why
    blocker: str = ""
    starts_ms: int | None = None
    chunk: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Act:
    """Decisions that hold only together: a gang's admission, or a waiter with its victims, is one savepoint."""

    admits: tuple[Admit, ...] = ()
    preempts: tuple[Preempt, ...] = ()
    moves: tuple[Move, ...] = ()
    resizes: tuple[Resize, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole answer of one cycle, in the order in which it is to be applied."""

    acts: tuple[Act, ...] = ()
    rejects: tuple[Reject, ...] = ()
    waits: tuple[Wait, ...] = ()
    policy: str = ""
