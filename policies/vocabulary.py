"""The closed words of Tidegate: what a job, an attempt or a decision may be called, and nothing about when.

`tidegate.wire.enums` repeats the words that users see, because the client must not import this package;
`tests/architecture` compares the two.
"""

from enum import IntEnum, StrEnum
from typing import Final


class JobKind(StrEnum):
    """What a job is for; decides its default order, placement and grace."""

    TRAINING = "training"
    INFERENCE = "inference"
    BATCH = "batch"
    EXPERIMENT = "experiment"
    INTERACTIVE = "interactive"
    EVALUATION = "evaluation"
    DATA = "data"


class PriorityClass(StrEnum):
    """P0 may preempt any other class at once, P1 may preempt P2 with grace, P2 preempts nobody (POLICIES §7)."""

    P0 = "P0"
    P1 = "P1"
    P2 = "P2"

    @property
    def base(self) -> int:
        """The base of the order key; ageing adds at most 900, so that a class never overtakes the next."""
        return {"P0": 2000, "P1": 1000, "P2": 0}[self.value]


class CapacityType(StrEnum):
    """How capacity may be taken away."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    RESERVED = "reserved"


class CapacityWish(StrEnum):
    """What a job asks for; `mixed` takes on-demand for its minimum and spot for the rest."""

    SPOT = "spot"
    ON_DEMAND = "on_demand"
    MIXED = "mixed"
    RESERVED = "reserved"


class Tenure(StrEnum):
    """Who places work in a pool: only Tidegate, or people directly as well."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


class Resource(StrEnum):
    """What a quota counts. Accelerators in milli-GPU, cpus in milli-CPU, memory in bytes, jobs in jobs."""

    ACCELERATORS = "accelerators"
    CPUS = "cpus"
    MEMORY = "memory"
    JOBS = "jobs"


class JobState(StrEnum):
    """States of the wish. Four live ones, four ends."""

    QUEUED = "QUEUED"
    ADMITTED = "ADMITTED"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    REJECTED = "REJECTED"


class AttemptState(StrEnum):
    """States of one try on one placement. Five live ones, eight ends."""

    RESERVED = "RESERVED"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    CHECKPOINTING = "CHECKPOINTING"
    STOPPING = "STOPPING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    PREEMPTED = "PREEMPTED"
    REVOKED = "REVOKED"
    STOPPED = "STOPPED"
    RESIZED = "RESIZED"
    LOST = "LOST"
    REFUSED = "REFUSED"


class LeaseState(StrEnum):
    """A lease is taken once and resolved once."""

    CONTINGENT = "contingent"
    HELD = "held"
    POSTED = "posted"
    VOIDED = "voided"


class Reason(StrEnum):
    """Why an attempt or a job ended. `policies.reasons` gives each its end state, retry class, payer and words."""

    COMPLETED = "Completed"
    NON_ZERO_EXIT = "NonZeroExit"
    OUT_OF_MEMORY = "OutOfMemory"
    TIME_LIMIT = "TimeLimit"
    NO_PROGRESS = "NoProgress"
    INVALID_PARAMETER = "InvalidParameter"
    LAUNCH_FAILED = "LaunchFailed"
    SAVED_AND_EXITED = "SavedAndExited"
    REQUEUED = "Requeued"
    STALLED = "Stalled"
    PREEMPTED = "Preempted"
    RECLAIMED = "Reclaimed"
    BACKFILL_OVERRUN = "BackfillOverrun"
    MOVED = "Moved"
    RESIZED = "Resized"
    SPOT_REVOKED = "SpotRevoked"
    BACKEND_PREEMPTED = "BackendPreempted"
    BACKEND_CANCELLED = "BackendCancelled"
    BACKEND_REQUEUED = "BackendRequeued"
    EVICTED = "Evicted"
    DRAINED = "Drained"
    NODE_LOST = "NodeLost"
    GPU_XID = "GpuXid"
    GPU_ECC = "GpuEcc"
    GPU_LOST = "GpuLost"
    NETWORK_PARTITION = "NetworkPartition"
    STORAGE_ERROR = "StorageError"
    NCCL_ERROR = "NcclError"
    GANG_TIMEOUT = "GangTimeout"
    GANG_ROLLED_BACK = "GangRolledBack"
    BACKEND_REFUSED = "BackendRefused"
    BACKEND_WAIT_TIMEOUT = "BackendWaitTimeout"
    BUDGET_EXHAUSTED = "BudgetExhausted"
    USER_CANCELLED = "UserCancelled"
    LOST = "Lost"
    DEPENDENCY_IMPOSSIBLE = "DependencyImpossible"
    QUEUE_SLO = "QueueSlo"
    DEADLINE_INFEASIBLE = "DeadlineInfeasible"


class RetryClass(StrEnum):
    """What an end costs of the user's retries, and whether another attempt follows."""

    FINAL = "final"  # no further attempt
    USER = "user"  # counts against retry.max
    INFRASTRUCTURE = "infrastructure"  # another attempt, retries untouched
    REQUEUE = "requeue"  # our own doing: another attempt, nothing counted


class Payer(StrEnum):
    """Who pays for the time of an attempt that ended so."""

    TENANT = "tenant"
    PLATFORM = "platform"
    NOBODY = "nobody"


class StopCause(StrEnum):
    """Why WE asked an attempt to stop. The cause decides the attempt's end, whatever its exit code."""

    CANCEL = "cancel"
    PREEMPT = "preempt"
    RECLAIM = "reclaim"
    BACKFILL = "backfill"
    MOVE = "move"
    REVOCATION = "revocation"
    DRAIN = "drain"
    REQUEUE = "requeue"
    RESIZE = "resize"
    BUDGET = "budget"
    WITHDRAWN = "withdrawn"
    GANG_ROLLBACK = "gang_rollback"
    GANG_TIMEOUT = "gang_timeout"
    MEMBER_LOST = "member_lost"
    STALL = "stall"
    TIME_LIMIT = "time_limit"
    WAITER_GONE = "waiter_gone"


ARBITERS_STOPS: Final = frozenset({StopCause.PREEMPT, StopCause.RECLAIM, StopCause.MOVE, StopCause.BACKFILL})
"""Stops of the arbiter's own: it may shorten their grace or call them off; a cancel's or a revocation's it may not."""


class Pending(StrEnum):
    """Why a job waits, worst first; the definition order IS the severity."""

    DEACTIVATED = "Deactivated"
    ON_HOLD = "OnHold"
    MISCONFIGURED = "Misconfigured"
    NO_MATCHING_FLAVOR = "NoMatchingFlavor"
    BUDGET_EXHAUSTED = "BudgetExhausted"
    TENANT_LIMIT = "TenantLimit"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    TOPOLOGY_UNAVAILABLE = "TopologyUnavailable"
    NO_SPOT_CAPACITY = "NoSpotCapacity"
    PROVIDER_LIMIT = "ProviderLimit"
    WAITING_FOR_CAPACITY = "WaitingForCapacity"
    WAITING_FOR_SIZE = "WaitingForSize"
    WAITING_FOR_WINDOW = "WaitingForWindow"
    WAITING_FOR_DEPENDENCY = "WaitingForDependency"
    COOLING_DOWN = "CoolingDown"
    BEHIND_RESERVATION = "BehindReservation"
    WAITING_FOR_PREEMPTION = "WaitingForPreemption"
    WAITING_IN_BACKEND = "WaitingInBackend"
    BACKEND_UNREACHABLE = "BackendUnreachable"
    WAITING_FOR_RESERVATION = "WaitingForReservation"
    PENDING_EVALUATION = "PendingEvaluation"


class Launcher(StrEnum):
    """How a gang's ranks are started; each is a rendered preamble, none is a dependency."""

    PLAIN = "plain"
    TORCHRUN = "torchrun"
    MPI = "mpi"
    RAY = "ray"
    DEEPSPEED = "deepspeed"


class Role(IntEnum):
    """What a principal may do in its tenant; a higher role includes the lower ones."""

    VIEWER = 1
    SUBMITTER = 2
    TENANT_ADMIN = 3
    OPERATOR = 4


class Account(StrEnum):
    """Kinds of ledger accounts. The first four belong to a tenant, the last three to the system."""

    CONCURRENCY = "concurrency"
    GPU_TIME = "gpu_time"
    MONEY = "money"
    CREDIT = "credit"
    ISSUANCE = "issuance"
    CLEARING = "clearing"
    CAPACITY = "capacity"
