"""What submits are judged by: flavors, pools' shapes, storages, allowances. Read whole, kept for a second.

An old view may accept (the arbiter will say Wait(NoMatchingFlavor)); it never refuses: see `Configs.fresh`.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from sqlmodel import col

from gateway.ledger import estate
from gateway.ledger.tables.access import ClassAllowance, Storage, Tenant
from gateway.ledger.tables.capacity import NodeRow
from gateway.ledger.tables.capacity import Pool as PoolRow
from gateway.ledger.tables.work import JobRow
from gateway.queries.scope import lineage
from policies.placement.ever import EmptyFederation, Ever, could_ever_fit
from policies.snapshot import Flavor, Node, Pool, QueuedJob, Resources
from policies.vocabulary import JobState, Tenure

KEPT_S = 1.0


@dataclass(slots=True)
class TenantQueue:
    """Waiting jobs of a tenant and below it. `queued` grows with what this process accepts until it is read anew."""

    limit: int
    queued: int
    shedding: bool


@dataclass(frozen=True, slots=True)
class Config:
    """One consistent view. `pools` hold equal nodes as one row: what there is of them, not what is free."""

    tenants: Mapping[str, int] = field(default_factory=dict)
    pools: tuple[Pool, ...] = ()
    flavors: Mapping[str, Flavor] = field(default_factory=dict)
    storages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # tenant path -> prefixes
    allowances: frozenset[tuple[str, str]] = frozenset()  # (tenant path, class)
    queues: Mapping[str, "TenantQueue"] = field(default_factory=dict)  # by path, where there is a limit
    fitting: set[str] = field(default_factory=set, init=False, repr=False, compare=False)  # shapes known to fit
    _turn: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)
    _empty: EmptyFederation = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_empty", EmptyFederation(self.pools, self.flavors))

    def ever(self, job: QueuedJob) -> Ever:
        """Whether the arbiter could ever place the job, by the arbiter's own word. Safe from many threads."""
        with self._turn:  # a fit borrows the rooms
            return could_ever_fit(job, self._empty)


def read(session: Session, queue_limit: int = 0) -> Config:
    """The view as of now. `queue_limit`: of tenants that have none of their own; 0: none."""
    tenants = {path: tenant or 0 for tenant, path in session.execute(select(col(Tenant.id), col(Tenant.path)))}
    paths = {tenant: path for path, tenant in tenants.items()}
    storages: dict[str, tuple[str, ...]] = {}
    for tenant, prefix in session.execute(select(col(Storage.tenant_id), col(Storage.prefix))):
        storages[paths[tenant]] = (*storages.get(paths[tenant], ()), prefix)
    allowances = session.execute(
        select(col(ClassAllowance.tenant_id), col(ClassAllowance.klass)).where(col(ClassAllowance.gpu_ms) > 0)
    )
    return Config(
        tenants=tenants,
        pools=_pools(session),
        flavors={flavor.name: flavor for flavor in estate.flavors(session)},
        storages=storages,
        allowances=frozenset((paths[tenant], klass) for tenant, klass in allowances),
        queues=_queues(session, queue_limit),
    )


def _queues(session: Session, queue_limit: int) -> dict[str, TenantQueue]:
    rows = session.execute(select(col(Tenant.path), col(Tenant.queue_limit), col(Tenant.shedding))).all()
    found = {
        path: TenantQueue(limit, 0, shedding)
        for path, own, shedding in rows
        if (limit := queue_limit if own is None else own)
    }
    if found:
        queued = select(col(Tenant.path), func.count()).join(JobRow, col(JobRow.tenant_id) == col(Tenant.id))
        queued = queued.where(col(JobRow.state) == JobState.QUEUED.value).group_by(col(Tenant.path))
        for path, count in session.execute(queued):
            for above in lineage(path):
                if above in found:
                    found[above].queued += count
    return found


def _pools(session: Session) -> tuple[Pool, ...]:
    amounts = (col(NodeRow.accelerators), col(NodeRow.cpus), col(NodeRow.memory), col(NodeRow.disk))
    same = (col(NodeRow.pool), col(NodeRow.labels), *amounts)
    nodes: dict[str, list[Node]] = {}
    for pool, labels, *per_node, count in session.execute(
        select(*same, func.sum(col(NodeRow.count))).group_by(*same).order_by(*same)
    ):
        of_pool = nodes.setdefault(pool, [])
        of_pool.append(Node(f"shape-{len(of_pool):06d}", Resources(*per_node), count=int(count), labels=labels))
    return tuple(
        Pool(
            name=pool.name,
            backend=pool.backend,
            flavor=pool.flavor,
            tenure=Tenure(pool.tenure),
            places_nodes=pool.places_nodes,
            place_first=False,  # about preemption: no matter of what there is
            nodes=tuple(nodes.get(pool.name, ())),
        )
        for pool in session.execute(select(PoolRow).order_by(col(PoolRow.name))).scalars()
    )


class Configs:
    """The view of this process. Safe from many threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, queue_limit: int = 0) -> None:
        self._clock = clock
        self._queue_limit = queue_limit
        self._lock = threading.Lock()
        self._kept: tuple[float, Config] | None = None
        self._not_before = float("-inf")

    def recent(self, session: Session) -> Config:
        """At most a second old."""
        kept = self._kept
        if kept is not None and self._clock() - kept[0] < KEPT_S:
            return kept[1]
        return self.fresh(session)

    def fresh(self, session: Session) -> Config:
        """Read now."""
        read_at = self._clock()
        config = read(session, self._queue_limit)
        with self._lock:
            newer = self._kept is None or self._kept[0] <= read_at
            if newer and read_at >= self._not_before:
                self._kept = (read_at, config)
        return config

    def forget(self) -> None:
        """Call after a commit that changed the configuration: what was read before it is kept no longer."""
        with self._lock:
            self._not_before = self._clock()
            self._kept = None
