"""The documents that stand in the ledger, read back exactly as they were written."""

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from sqlmodel import col

from gateway.ledger.tables.access import ClassAllowance, Storage, Tenant
from gateway.ledger.tables.accounts import BudgetRow
from gateway.ledger.tables.capacity import BackendRow, Flavor, NodeRow, OwnerRow, Pool, QuotaRow
from gateway.operators import amounts
from gateway.operators.diff import Key, key_of
from tidegate.wire.enums import CapacityType, PriorityClass, Resource, Tenure
from tidegate.wire.governance import BudgetDoc, OwnerDoc
from tidegate.wire.operator import (
    AllowanceDoc,
    BackendDoc,
    FlavorDoc,
    OperatorDoc,
    PoolDoc,
    QuotaDoc,
    StorageDoc,
    TenantDoc,
)

MS_PER_HOUR = 3_600_000


def documents(session: Session) -> dict[Key, OperatorDoc]:
    """All of them, by key."""
    paths = {row.id: row.path for row in session.execute(select(Tenant)).scalars()}
    docs: list[OperatorDoc] = []
    docs += [
        TenantDoc(path=t.path, active=t.active, contact=t.contact, queue_limit=t.queue_limit)
        for t in session.execute(select(Tenant)).scalars()
    ]
    docs += [_flavor(f) for f in session.execute(select(Flavor)).scalars()]
    docs += [
        BackendDoc(name=b.name, type=b.kind, config=b.config, draining=b.draining)
        for b in session.execute(select(BackendRow)).scalars()
    ]
    docs += [
        PoolDoc(name=p.name, backend=p.backend, flavor=p.flavor, tenure=Tenure(p.tenure), config=p.config)
        for p in session.execute(select(Pool)).scalars()
    ]
    docs += [_quota(q, paths[q.tenant_id]) for q in session.execute(select(QuotaRow)).scalars()]
    docs += [
        AllowanceDoc(
            tenant=paths[a.tenant_id],
            priority=PriorityClass(a.klass),
            gpu_hours=a.gpu_ms // MS_PER_HOUR,
            period=a.period_s,
        )
        for a in session.execute(select(ClassAllowance)).scalars()
    ]
    docs += [
        StorageDoc(tenant=paths[s.tenant_id], name=s.name, prefix=s.prefix, credential=s.credential)
        for s in session.execute(select(Storage)).scalars()
    ]
    docs += [
        OwnerDoc(backend=o.backend, owner=o.owner, tenant=paths[o.tenant_id])
        for o in session.execute(select(OwnerRow)).scalars()
    ]
    docs += [_budget(b, paths[b.tenant_id]) for b in session.execute(select(BudgetRow)).scalars()]
    return {key_of(doc): doc for doc in docs}


def _flavor(row: Flavor) -> FlavorDoc:
    return FlavorDoc(
        name=row.name,
        accelerator=row.accelerator,
        accelerator_memory=row.accelerator_memory,
        capacity_type=CapacityType(row.capacity_type),
        zone=row.zone,
        price=row.price,
        labels=row.labels,
    )


def _budget(row: BudgetRow, tenant: str) -> BudgetDoc:
    unit = amounts.WIRE_UNITS[row.unit]
    return BudgetDoc(tenant=tenant, unit=unit, amount=amounts.show_budget(row.amount, unit), period=row.period_s)


def _quota(row: QuotaRow, tenant: str) -> QuotaDoc:
    resource = Resource(row.resource)
    return QuotaDoc(
        tenant=tenant,
        flavor=row.flavor,
        resource=resource,
        min=amounts.show(row.min, resource),
        max=None if row.max is None else amounts.show(row.max, resource),
        lendable=amounts.show(row.lendable, resource),
    )


def reported(session: Session) -> tuple[dict[tuple[str, Resource], int], set[str]]:
    """Capacity that pools last reported, by (pool, resource), and the pools that have not reported at all."""
    sums: dict[tuple[str, Resource], int] = {}
    silent: set[str] = set()
    rows = session.execute(
        select(
            col(Pool.name),
            col(Pool.as_of),
            func.coalesce(func.sum(col(NodeRow.accelerators) * col(NodeRow.count)), 0),
            func.coalesce(func.sum(col(NodeRow.cpus) * col(NodeRow.count)), 0),
            func.coalesce(func.sum(col(NodeRow.memory) * col(NodeRow.count)), 0),
            func.count(col(NodeRow.name)),
        )
        .outerjoin(NodeRow, col(NodeRow.pool) == col(Pool.name))
        .group_by(col(Pool.name))
    )
    for name, as_of, accelerators, cpus, memory, nodes in rows:
        if as_of is None and not nodes:
            silent.add(name)
        sums[name, Resource.ACCELERATORS] = int(accelerators)
        sums[name, Resource.CPUS] = int(cpus)
        sums[name, Resource.MEMORY] = int(memory)
    return sums, silent
