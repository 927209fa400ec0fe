"""Direct use: what tenants run at a backend without us, by the operators' map of its owners (POLICIES §3).

It counts against max at every level and in rank, holds no lease, is billed by nobody and is never a victim. An owner
that is in no map is plain foreign load. Kept as last seen: a dark backend frees nothing.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from backends.types import PoolCapacity
from gateway.ledger.codec import dumps, plain
from gateway.ledger.lineage import Level
from policies.vocabulary import Resource

MAX_OWNER: Final = 255
Observed = dict[tuple[int, str, str], int]
"""(tenant id, flavor, resource) -> amount, the use of everything below a tenant included."""

_OLD = text("SELECT owner, accelerators, cpus, memory FROM foreign_use WHERE pool = :pool ORDER BY owner")
_GONE = text("DELETE FROM foreign_use WHERE pool = :pool")
_NEW = text(
    """
    INSERT INTO foreign_use (pool, owner, accelerators, cpus, memory)
    SELECT :pool, u.owner, u.accelerators, u.cpus, u.memory
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS u(owner text, accelerators bigint, cpus bigint, memory bigint)
    """
)
_USE: Final = """
    SELECT above.id AS tenant_id, pools.flavor, sum(u.accelerators)::bigint AS accelerators,
        sum(u.cpus)::bigint AS cpus, sum(u.memory)::bigint AS memory
    FROM owners JOIN pools ON pools.backend = owners.backend
    JOIN foreign_use u ON u.pool = pools.name AND u.owner = owners.owner
    JOIN tenants own ON own.id = owners.tenant_id
    JOIN tenants above ON above.path = own.path OR starts_with(own.path, above.path || '/')
"""
_ALL = text(f"{_USE} GROUP BY 1, 2")
_OF = text(f"{_USE} WHERE above.id = ANY(:tenants) GROUP BY 1, 2")


def store(session: Session, pool: PoolCapacity) -> bool:
    """Replace what owners use of a pool; True if it changed. The caller holds the pool's row."""
    rows = [
        {"owner": owner, "accelerators": use.accelerators, "cpus": use.cpus, "memory": use.memory}
        for owner, use in sorted((plain(name)[:MAX_OWNER], use) for name, use in pool.foreign_by_owner.items())
        if owner and (use.accelerators or use.cpus or use.memory)
    ]
    before = [dict(row) for row in session.execute(_OLD, {"pool": pool.pool}).mappings()]
    if sorted(before, key=_owner) == rows:
        return False
    session.execute(_GONE, {"pool": pool.pool})
    if rows:
        session.execute(_NEW, {"pool": pool.pool, "rows": dumps(rows)})
    return True


def observed(session: Session, levels: Sequence[Level] | None = None) -> Observed:
    """Direct use that counts, at these levels or at every tenant."""
    if levels is None:
        rows = session.execute(_ALL).mappings()
    else:
        rows = session.execute(_OF, {"tenants": [level.id for level in levels]}).mappings()
    return {
        (row["tenant_id"], row["flavor"], resource.value): row[resource.value]
        for row in rows
        for resource in (Resource.ACCELERATORS, Resource.CPUS, Resource.MEMORY)
        if row[resource.value]
    }


def _owner(row: dict[str, Any]) -> str:
    return str(row["owner"])
