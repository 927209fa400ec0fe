"""What a cycle looks at: frozen values in integers, the only input of every decision beside the settings and `now_ms`.

Units: accelerators in milli-GPU, cpus in milli-CPU, memory and disk in bytes, instants in milliseconds since the
epoch (UTC), durations in milliseconds, prices in micro-dollars per GPU-hour. Tenants are paths (`acme/research/nlp`);
a tenant's use counts in every ancestor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.elastic.sizes import Sizes
from policies.vocabulary import (
    AttemptState,
    CapacityType,
    CapacityWish,
    JobKind,
    PriorityClass,
    Resource,
    StopCause,
    Tenure,
)


@dataclass(frozen=True, slots=True, order=True)
class Resources:
    """An amount per member, node or sum."""

    accelerators: int = 0  # milli-GPU
    cpus: int = 0  # milli-CPU
    memory: int = 0  # bytes
    disk: int = 0  # bytes

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(
            self.accelerators + other.accelerators,
            self.cpus + other.cpus,
            self.memory + other.memory,
            self.disk + other.disk,
        )

    def __sub__(self, other: "Resources") -> "Resources":
        return Resources(
            self.accelerators - other.accelerators,
            self.cpus - other.cpus,
            self.memory - other.memory,
            self.disk - other.disk,
        )

    def times(self, count: int) -> "Resources":
        """The amount `count` times over."""
        return Resources(self.accelerators * count, self.cpus * count, self.memory * count, self.disk * count)

    def fits_in(self, free: "Resources") -> bool:
        """Whether every resource is within `free`."""
        return (
            self.accelerators <= free.accelerators
            and self.cpus <= free.cpus
            and self.memory <= free.memory
            and self.disk <= free.disk
        )


@dataclass(frozen=True, slots=True)
class Tenant:
    """A node of the tree. An inactive tenant's jobs wait as Deactivated."""

    path: str
    active: bool = True

    @property
    def lineage(self) -> tuple[str, ...]:
        """This path and all its ancestors, the root first."""
        parts = self.path.split("/")
        return tuple("/".join(parts[: n + 1]) for n in range(len(parts)))


@dataclass(frozen=True, slots=True)
class Quota:
    """Effective quota (base + grants) at the snapshot's time. `max=None`: no ceiling at this level."""

    tenant: str
    flavor: str
    resource: Resource
    min: int
    max: int | None
    lendable: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tenant and everything below it holds now: held and contingent leases and observed direct use."""

    tenant: str
    flavor: str
    resource: Resource
    held: int
    observed: int = 0


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is left of a class allowance (P0, P1) in the current period."""

    tenant: str
    klass: PriorityClass
    left_gpu_ms: int


@dataclass(frozen=True, slots=True)
class Flavor:
    """A kind of capacity. `accelerator` is the GPU model (`H100`) or "" for CPU-only capacity."""

    name: str
    accelerator: str
    accelerator_memory: int
    capacity_type: CapacityType
    zone: str
    price: int  # micro-dollars per GPU-hour, members without cards cost nothing; per CPU-hour without accelerator
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Node:
    """One node, or `count` equal anonymous ones of a pool that places by itself. `foreign` carries no tag of ours."""

    name: str
    capacity: Resources
    foreign: Resources = Resources()
    count: int = 1
    schedulable: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pool:
    """Capacity of one flavor at one backend, as last reported. A dark pool gives no new capacity and frees none."""

    name: str
    backend: str
    flavor: str
    tenure: Tenure
    places_nodes: bool
    place_first: bool  # whether a preemption may happen here at all (DESIGN §5)
    nodes: tuple[Node, ...]
    dark: bool = False
    draining: bool = False
    rested_until_ms: int = 0  # after NoSpotCapacity, a withdrawal or a theft by foreign load
    no_preemption_until_ms: int = 0
    spot_mttf_ms: int | None = None


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """Equal members of a job. `min_replicas < replicas` for elastic groups only."""

    name: str
    replicas: int
    min_replicas: int
    per_member: Resources
    accelerator: str = ""  # GPU model wanted; "" takes any (or none where accelerators are 0)
    step: int = 1  # sizes between min_replicas and replicas, both of them multiples of it
    resumes_at: int | None = None  # the only size at which its newest checkpoint may be resumed


@dataclass(frozen=True, slots=True)
class PlacementWish:
    """Where a job may go: alternatives in order of preference; empty tuples allow everything."""

    flavors: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    ordered: bool = False
    require: Mapping[str, str] = field(default_factory=dict)
    prefer: Mapping[str, str] = field(default_factory=dict)
    avoid_nodes: tuple[str, ...] = ()  # by preference: used after all where the job could never fit without them
    refused_by: tuple[tuple[str, str], ...] = ()  # (backend, remedy): as configured now it does not serve this tenant


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A wish that waits (or one chunk of an array). `version` guards the commit of whatever is decided about it."""

    id: str
    tenant: str
    user: str
    kind: JobKind
    klass: PriorityClass
    submitted_ms: int
    version: int
    groups: tuple[GroupRequest, ...]
    capacity: CapacityWish = CapacityWish.MIXED
    placement: PlacementWish = PlacementWish()
    max_duration_ms: int | None = None
    deadline_ms: int | None = None
    estimated_ms: int | None = None
    not_before_ms: int = 0  # back-off or window
    on_hold: bool = False
    waits_for: tuple[str, ...] = ()  # unfinished dependencies
    dependency_impossible: bool = False
    max_queue_ms: int | None = None
    max_price: int | None = None
    order_value: int = 0
    chunk: tuple[int, int] | None = None  # [first, last] index of an array chunk
    preempted_in_cycle: bool = False
    first_in_line: bool = False  # it gave way to a waiter whose room foreign load then took (DESIGN §5)
    queued_ms: int | None = None  # when the present wait began, if not at the submission
    over_budget: Mapping[str, int | str] | None = None  # the ledger's numbers: it does not fit a budget, and still not


@dataclass(frozen=True, slots=True)
class Placed:
    """Members of one group in one pool; `nodes` pairs a node with the members on it (empty: the backend places)."""

    group: str
    pool: str
    flavor: str
    replicas: int
    per_member: Resources
    nodes: tuple[tuple[str, int], ...] = ()

    @property
    def total(self) -> Resources:
        """What all members together take."""
        return self.per_member.times(self.replicas)


@dataclass(frozen=True, slots=True)
class Elastic:
    """The elastic group of a live attempt, sizes in members. Instants are None where there was none.

    able: it may run at another size (replicas, or a newest checkpoint that may be resharded). in_place: its backend
    changes the number of members under it. wished: a user asked for `sizes.target` after the last resize. under_way:
    a resize is being carried out. before: (size, rate) of the attempt before it, measured after warm-up, 0 unknown.
    """

    group: str
    sizes: Sizes
    size: int
    able: bool = False
    in_place: bool = False
    wished: bool = False
    under_way: bool = False
    resized_ms: int | None = None
    unkept_ms: int | None = None  # when a growth was last taken back
    rate: int = 0  # now, samples per second in thousandths; 0: not known yet
    before: tuple[int, int] | None = None
    placement: PlacementWish = PlacementWish()
    job_version: int = 0


@dataclass(frozen=True, slots=True)
class LiveAttempt:
    """A lease that is taken, with what a preemption of it would cost."""

    id: str
    job: str
    tenant: str
    user: str
    kind: JobKind
    klass: PriorityClass
    state: AttemptState
    version: int
    placed: tuple[Placed, ...]
    leased_ms: int
    started_ms: int | None = None
    ends_by_ms: int | None = None  # leased end, for shadow slots
    checkpoint_ms: int | None = None  # end of the newest L1-verified checkpoint
    checkpoint_interval_ms: int | None = None  # as declared
    save_ms: int | None = None  # measured; None: the job cannot save
    restart_ms: int = 0  # pull + load + rendezvous, estimated
    min_runtime_ms: int = 0
    deadline_ms: int | None = None
    preemptions_week: int = 0
    preemptions_today: int = 0
    last_preempted_ms: int | None = None
    stopping: StopCause | None = None
    contingent_on: tuple[str, ...] = ()  # attempts whose end this one waits for
    finish_spared: bool = False  # has been spared once by finish_soon
    elastic: Elastic | None = None
    wish: QueuedJob | None = None  # the job as it would be queued again; None: it is not moved (an index of an array)
    moved_from: str = ""  # the attempt of the same job whose end it waits for, to go on here
    keeps: tuple[Placed, ...] = ()  # with what it goes on while it is being made smaller; empty: it is not

    @property
    def leaves(self) -> tuple[Placed, ...]:
        """What of its placement is free once its end, or its shrinking, is settled."""
        return given_up(self.placed, self.keeps) if self.keeps else self.placed


def given_up(placed: tuple[Placed, ...], keeps: tuple[Placed, ...]) -> tuple[Placed, ...]:
    """The members of `placed` that `keeps`, a placement with fewer members at the same places, is without."""
    kept = {(part.group, part.pool): part for part in keeps}
    found = []
    for part in placed:
        other = kept.get((part.group, part.pool))
        left = dict(part.nodes)
        for node, members in other.nodes if other else ():
            left[node] = left.get(node, 0) - members
        replicas = part.replicas - (other.replicas if other else 0)
        if replicas > 0:
            nodes = tuple((node, members) for node, members in left.items() if members > 0)
            found.append(Placed(part.group, part.pool, part.flavor, replicas, part.per_member, nodes))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Borrowing:
    """An interval in which `borrower` used what `lender` guarantees; `until_ms=None`: still does."""

    lender: str
    borrower: str
    flavor: str
    amount: int  # milli-GPU
    since_ms: int
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Override:
    """An operator's audited word about one attempt: force or forbid its preemption until it expires."""

    attempt: str
    force: bool
    until_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One consistent view of the federation. Tuples in any order: `plan` sorts by its own keys."""

    tenants: tuple[Tenant, ...] = ()
    quotas: tuple[Quota, ...] = ()
    usages: tuple[Usage, ...] = ()
    allowances: tuple[Allowance, ...] = ()
    flavors: tuple[Flavor, ...] = ()
    pools: tuple[Pool, ...] = ()
    queued: tuple[QueuedJob, ...] = ()
    live: tuple[LiveAttempt, ...] = ()
    borrowings: tuple[Borrowing, ...] = ()
    overrides: tuple[Override, ...] = ()
