"""Closed words that users see. `tests/architecture` compares them with `policies.vocabulary`."""

from enum import StrEnum


class JobKind(StrEnum):
    """What a job is for."""

    TRAINING = "training"
    INFERENCE = "inference"
    BATCH = "batch"
    EXPERIMENT = "experiment"
    INTERACTIVE = "interactive"
    EVALUATION = "evaluation"
    DATA = "data"


class PriorityClass(StrEnum):
    """P0 and P1 need a class allowance; P2 is the default."""

    P0 = "P0"
    P1 = "P1"
    P2 = "P2"


class CapacityWish(StrEnum):
    """What kind of capacity a job takes."""

    SPOT = "spot"
    ON_DEMAND = "on_demand"
    MIXED = "mixed"
    RESERVED = "reserved"


class CapacityType(StrEnum):
    """How the capacity of a flavor may be taken away."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    RESERVED = "reserved"


class Tenure(StrEnum):
    """Who places work in a pool."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


class BudgetUnit(StrEnum):
    """What a budget counts, over all flavors."""

    GPU_HOURS = "gpu_hours"
    DOLLARS = "dollars"


class Resource(StrEnum):
    """What a quota counts."""

    ACCELERATORS = "accelerators"
    CPUS = "cpus"
    MEMORY = "memory"
    JOBS = "jobs"


class Launcher(StrEnum):
    """How the ranks of a gang are started."""

    PLAIN = "plain"
    TORCHRUN = "torchrun"
    MPI = "mpi"
    RAY = "ray"
    DEEPSPEED = "deepspeed"


class JobState(StrEnum):
    """States of a job."""

    QUEUED = "QUEUED"
    ADMITTED = "ADMITTED"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    REJECTED = "REJECTED"

    @property
    def ended(self) -> bool:
        """Whether no event follows any more."""
        return self in ENDED


ENDED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.REJECTED})


class AttemptState(StrEnum):
    """States of one attempt."""

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


class Role(StrEnum):
    """What a token may do; each includes the ones before."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    TENANT_ADMIN = "tenant_admin"
    OPERATOR = "operator"


class SignalName(StrEnum):
    """Signals a job may choose for a checkpoint notice."""

    USR1 = "USR1"
    USR2 = "USR2"
    HUP = "HUP"
    INT = "INT"
    TERM = "TERM"
