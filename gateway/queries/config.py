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

from gateway.ledger.tables.access import ClassAllowance, Storage, Tenant
from gateway.ledger.tables.capacity import Flavor, NodeRow, Pool
from policies.snapshot import Resources

KEPT_S = 1.0


@dataclass(frozen=True, slots=True)
class Shape:
    """`count` equal nodes."""

    per_node: Resources
    count: int


@dataclass(frozen=True, slots=True)
class PoolShape:
    """A pool with its flavor. `silent`: it has not reported yet, so nothing can be proved about it."""

    name: str
    backend: str
    flavor: str
    accelerator: str
    capacity_type: str
    zone: str
    price: int
    silent: bool
    labels: Mapping[str, str]
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Config:
    """One consistent view."""

    tenants: Mapping[str, int] = field(default_factory=dict)
    pools: tuple[PoolShape, ...] = ()
    flavors: tuple[str, ...] = ()
    storages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # tenant path -> prefixes
    allowances: frozenset[tuple[str, str]] = frozenset()  # (tenant path, class)


def read(session: Session) -> Config:
    """The view as of now."""
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
        flavors=tuple(session.execute(select(col(Flavor.name)).order_by(col(Flavor.name))).scalars()),
        storages=storages,
        allowances=frozenset((paths[tenant], klass) for tenant, klass in allowances),
    )


def _pools(session: Session) -> tuple[PoolShape, ...]:
    amounts = (col(NodeRow.accelerators), col(NodeRow.cpus), col(NodeRow.memory), col(NodeRow.disk))
    shapes: dict[str, list[Shape]] = {}
    for pool, count, *per_node in session.execute(
        select(col(NodeRow.pool), func.sum(col(NodeRow.count)), *amounts).group_by(col(NodeRow.pool), *amounts)
    ):
        shapes.setdefault(pool, []).append(Shape(Resources(*per_node), int(count)))
    rows = session.execute(select(Pool, Flavor).join(Flavor, col(Flavor.name) == col(Pool.flavor)))
    return tuple(
        PoolShape(
            name=pool.name,
            backend=pool.backend,
            flavor=flavor.name,
            accelerator=flavor.accelerator,
            capacity_type=flavor.capacity_type,
            zone=flavor.zone,
            price=flavor.price,
            silent=pool.as_of is None and pool.name not in shapes,
            labels=flavor.labels,
            shapes=tuple(shapes.get(pool.name, ())),
        )
        for pool, flavor in rows
    )


class Configs:
    """The view of this process. Safe from many threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
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
        config = read(session)
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
