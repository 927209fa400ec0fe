"""The values that cross the port. Frozen, in integers; nothing here knows a kind of backend.

Units as in policies.snapshot. Instants are timezone-aware UTC datetimes, as the backend's own clock gave them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from policies.snapshot import Node, Placed, Resources
from policies.vocabulary import CapacityType, JobKind, Launcher, PriorityClass, Reason


class Secret:
    """A string that shows itself to nobody but `reveal()`: not in repr, str, format, errors or logs."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value, for the one place that hands it over."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(("Secret", self._value))


class Phase(StrEnum):
    """What a backend saw. "I could not ask" is an error, never a phase."""

    PREPARED = "Prepared"
    PENDING = "Pending"
    RUNNING = "Running"
    ENDED = "Ended"
    ABSENT = "Absent"


class StopMode(StrEnum):
    """How to stop. NOTICE: notice file and signal, grace, SIGTERM `term_s` before its end, SIGKILL. KILL: at once."""

    NOTICE = "notice"
    KILL = "kill"


class NoticeKind(StrEnum):
    """Why members are told something."""

    CHECKPOINT = "checkpoint"  # save and go on
    PREEMPT = "preempt"  # save and leave, we decided
    REVOKE = "revoke"  # save and leave, the provider takes the instance
    REBALANCE = "rebalance"  # advice only: save early
    RESIZE = "resize"
    STOP = "stop"  # cancelled


class Preemption(StrEnum):
    """What a backend can do so that a stranger does not get the room that victims leave (DESIGN §5).

    place_first: a launch can be prepared while the room is still taken, and has it before any stranger when the victims
    have gone. none: it cannot, so nobody is preempted there.
    """

    PLACE_FIRST = "place_first"
    NONE = "none"


class SiteFiles(StrEnum):
    """How logs, manifests and the working directory reach the gateway and the members."""

    MOUNT = "mount"
    SSH = "ssh"
    PUSH = "push"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this backend may promise (DESIGN §5). Tests skip a clause by a capability, never by a backend's name."""

    places_nodes: bool = False
    preemption: Preemption = Preemption.NONE
    checkpoint_signal: bool = False
    site_files: SiteFiles = SiteFiles.NONE
    gang: bool = False
    resize: bool = False
    service: bool = False
    array: bool = False
    spot_notices: bool = False
    node_sharing: bool = False
    logs: bool = False
    exec: bool = False
    tenant_isolation: bool = False
    settle_s: int = 5  # how long after a launch an empty answer of find() still means nothing


@dataclass(frozen=True, slots=True)
class Workdir:
    """A code archive: a local path or store URL that the backend may read, and its digest (lower-case hex SHA-256)."""

    url: str
    sha256: str


@dataclass(frozen=True, slots=True)
class GroupLaunch:
    """Equal members of one group in one pool. `nodes[i]` is the node of member i where the arbiter chose nodes."""

    name: str
    pool: str
    flavor: str
    replicas: int
    first_rank: int
    per_member: Resources
    command: tuple[str, ...]
    capacity_type: CapacityType = CapacityType.ON_DEMAND
    nodes: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """All groups of one attempt that one backend gets.

    key: the attempt id, safe as a name everywhere (`backends.naming`). The same key again is the same launch.
    name: the user's own text, any characters; data for the object's description, never its name.
    env: the user's environment, byte for byte; `backends.environment` adds the `TIDEGATE_*` variables.
    """

    key: str
    gateway: str
    job: str
    attempt: int
    tenant: str
    user: str
    name: str
    kind: JobKind
    klass: PriorityClass
    groups: tuple[GroupLaunch, ...]
    launcher: Launcher = Launcher.PLAIN
    setup: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    token: Secret | None = None
    gateway_url: str = ""
    workdir: Workdir | None = None
    checkpoint_url: str = ""  # <url>/attempt-N, where this attempt may write
    resume_from: str = ""
    checkpoint_signal: str = "USR1"
    grace_s: int = 300
    term_s: int = 10
    max_duration_s: int | None = None
    num_nodes: int = 1  # of the whole attempt, over all backends
    master_addr: str = ""  # set when rank 0 lives at another backend
    target_replicas: int = 0  # of the elastic group now; 0: the job has one size
    grad_accum: int = 0  # micro-batches per step at this size; 0: not said
    lr_scale: str = ""  # of the learning rate at this size, a whole number or a fraction `3/4`
    array_index: int | None = None  # which index of an array this is


@dataclass(frozen=True, slots=True)
class Handle:
    """Where a launch can be found again: the key always, and what the backend itself calls it."""

    backend: str
    key: str
    native: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """How a launch ended. `exit_code` is the first failing member's by end time (ties: lowest rank); None: no code.

    A signal n is 128+n. `final` says that a FINAL mark lies beside the newest checkpoint.
    """

    cause: Reason
    exit_code: int | None = None
    failed_rank: int | None = None
    codes: Mapping[int, int] = field(default_factory=dict)
    detail: str = ""
    bad_nodes: tuple[str, ...] = ()
    final: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """Somebody told the launch, or some member of it, to go: what, until when, and whom."""

    kind: NoticeKind
    deadline: datetime | None
    members: tuple[int, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a backend saw of one handle at `as_of`. Monotone per (restarts, sequence): older ones are dropped."""

    handle: Handle
    phase: Phase
    as_of: datetime
    restarts: int = 0
    sequence: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    end: End | None = None
    notice: Notice | None = None
    waiting: str = ""  # the backend's own word for why it is pending
    ready: int = 0  # ready members
    nodes: Mapping[int, str] = field(default_factory=dict)  # rank -> node
    stop_confirmed: bool = False  # the backend has got our stop


@dataclass(frozen=True, slots=True)
class PoolCapacity:
    """Capacity of one pool: nodes (or anonymous buckets) with what carries no tag of ours.

    foreign_by_owner: the same use by whose it is in the backend's own words (Slurm account, namespace), as far as the
    backend can tell; together never more than the nodes' foreign use.
    """

    pool: str
    nodes: tuple[Node, ...]
    as_of: datetime
    foreign_by_owner: Mapping[str, Resources] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Owned:
    """An object that carries our gateway's tag."""

    handle: Handle
    gateway: str
    job: str
    attempt: int
    tenant: str
    phase: Phase
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Recalled:
    """What an object tells of its launch, to a gateway that has forgotten it.

    placed: its groups, by the names in the launch request, where they are. token_sha256: digest of the token that its
    members hold, empty where the backend does not know it.
    """

    placed: tuple[Placed, ...]
    token_sha256: bytes = b""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Bytes of one member's output; `offset` is the byte behind it, to go on from."""

    rank: int
    data: bytes
    offset: int
    group: str = ""
