"""What there is, as the arbiter sees it: tenants, quotas at now, use, allowances, flavors, pools and their nodes."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger import direct
from gateway.ledger.codec import to_ms
from gateway.ledger.grants import effective_quota
from policies.snapshot import Allowance, Flavor, Node, Pool, Quota, Resources, Tenant, Usage
from policies.vocabulary import CapacityType, PriorityClass, Resource, Tenure

_PATHS = text("SELECT id, path FROM tenants")
_TENANTS = text("SELECT path, active FROM tenants")
_USAGES = text(
    """
    SELECT tenant_id, flavor, unit, posted + pending AS held FROM accounts
    WHERE kind = 'concurrency' AND tenant_id IS NOT NULL AND posted + pending <> 0
    """
)
_ALLOWANCES = text(
    """
    SELECT tenants.path, klass, CASE
        WHEN period_started_at + make_interval(secs => period_s) <= now() THEN gpu_ms
        ELSE gpu_ms - used_gpu_ms END AS left_ms
    FROM class_allowances JOIN tenants ON tenants.id = tenant_id
    """
)
_FLAVORS = text("SELECT name, accelerator, accelerator_memory, capacity_type, zone, price, labels FROM flavors")
_POOLS = text(
    """
    SELECT pools.name, backend, flavor, tenure, places_nodes, place_first, pools.config, rested_until,
        no_preemption_until, backends.draining,
        backends.dark_since IS NOT NULL OR backends.misconfigured <> '' OR pools.misconfigured <> '' AS closed
    FROM pools JOIN backends ON backends.name = pools.backend
    """
)
_NODES = text(
    """
    SELECT pool, name, count AS members, accelerators, cpus, memory, disk, foreign_accelerators, foreign_cpus,
        foreign_memory, foreign_disk, schedulable, labels
    FROM nodes
    """
)


def tenants(session: Session) -> tuple[Tenant, ...]:
    """The whole tree."""
    return tuple(Tenant(row.path, row.active) for row in session.execute(_TENANTS))


def quotas(session: Session) -> tuple[Quota, ...]:
    """Effective quota at the database's now(): base + grants whose time it is."""
    paths = {row.id: row.path for row in session.execute(_PATHS)}
    return tuple(
        Quota(paths[tenant_id], flavor, Resource(resource), quota.min, quota.max, quota.lendable)
        for (tenant_id, flavor, resource), quota in effective_quota(session, paths).items()
    )


def usages(session: Session) -> tuple[Usage, ...]:
    """Use from stored balances, and direct use; a tenant's holds what everything below it uses as well."""
    held = {(row.tenant_id, row.flavor, row.unit): int(row.held) for row in session.execute(_USAGES)}
    beside = direct.observed(session)
    if not held and not beside:
        return ()
    paths = {row.id: row.path for row in session.execute(_PATHS)}
    return tuple(
        Usage(paths[tenant], flavor, Resource(unit), held.get((tenant, flavor, unit), 0), observed)
        for (tenant, flavor, unit), observed in {**dict.fromkeys(held, 0), **beside}.items()
    )


def allowances(session: Session) -> tuple[Allowance, ...]:
    """What is left of P0 and P1 in the current period; a period that is over starts anew."""
    return tuple(
        Allowance(row.path, PriorityClass(row.klass), max(0, int(row.left_ms))) for row in session.execute(_ALLOWANCES)
    )


def flavors(session: Session) -> tuple[Flavor, ...]:
    """Every kind of capacity."""
    return tuple(
        Flavor(
            name=row.name,
            accelerator=row.accelerator,
            accelerator_memory=row.accelerator_memory,
            capacity_type=CapacityType(row.capacity_type),
            zone=row.zone,
            price=row.price,
            labels=row.labels,
        )
        for row in session.execute(_FLAVORS)
    )


def pools(session: Session) -> tuple[Pool, ...]:
    """Every pool with its nodes, as last reported."""
    nodes: dict[str, list[Node]] = defaultdict(list)
    for row in session.execute(_NODES):
        nodes[row.pool].append(
            Node(
                name=row.name,
                capacity=Resources(row.accelerators, row.cpus, row.memory, row.disk),
                foreign=Resources(row.foreign_accelerators, row.foreign_cpus, row.foreign_memory, row.foreign_disk),
                count=row.members,
                schedulable=row.schedulable,
                labels=row.labels,
            )
        )
    return tuple(_pool(row, tuple(nodes[row.name])) for row in session.execute(_POOLS))


def _pool(row: Any, nodes: tuple[Node, ...]) -> Pool:
    config: Mapping[str, Any] = row.config or {}
    return Pool(
        name=row.name,
        backend=row.backend,
        flavor=row.flavor,
        tenure=Tenure(row.tenure),
        places_nodes=row.places_nodes,
        place_first=row.place_first,
        nodes=nodes,
        dark=row.closed,
        draining=bool(row.draining or config.get("draining", False)),
        rested_until_ms=to_ms(row.rested_until) or 0,
        no_preemption_until_ms=to_ms(row.no_preemption_until) or 0,
        spot_mttf_ms=config.get("spot_mttf_ms"),
    )
