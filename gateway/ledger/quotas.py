"""Whether the quotas that a transaction is about to commit may stand: the rules are `policies.quota.check`'s.

The second wall behind the check of operators' documents: asked inside the transaction that writes, over what is stored.
"""

from sqlalchemy import text
from sqlalchemy.orm import Session

from policies.quota.check import Violation, violations
from policies.snapshot import Quota
from policies.vocabulary import Resource, Tenure


class QuotaRefused(Exception):  # noqa: N818  (an answer, not a defect)
    """The quotas contradict each other or the capacity; `violations` names fields, numbers and remedies."""

    def __init__(self, found: tuple[Violation, ...]) -> None:
        super().__init__("; ".join(violation.message for violation in found))
        self.violations = found


def stored_violations(session: Session) -> tuple[Violation, ...]:
    """Every contradiction among the stored quotas, with the exclusive capacity that was last reported."""
    quotas = [
        Quota(row.path, row.flavor, Resource(row.resource), row.min, row.max, row.lendable)
        for row in session.execute(_QUOTAS)
    ]
    return violations(quotas, exclusive_capacity(session))


def require_consistent(session: Session) -> None:
    """Raise QuotaRefused; the caller's transaction then changes nothing. Serialises writers of quotas."""
    session.execute(text("LOCK TABLE quotas IN SHARE ROW EXCLUSIVE MODE"))
    if found := stored_violations(session):
        raise QuotaRefused(found)


def exclusive_capacity(session: Session) -> dict[tuple[str, Resource], int]:
    """Per flavor and resource, over exclusive pools (none: 0). A flavor with one that never reported is left out."""
    found: dict[tuple[str, Resource], int] = {}
    for row in session.execute(_CAPACITY, {"exclusive": Tenure.EXCLUSIVE.value}):
        if not row.silent:
            found[row.flavor, Resource.ACCELERATORS] = int(row.accelerators)
            found[row.flavor, Resource.CPUS] = int(row.cpus)
            found[row.flavor, Resource.MEMORY] = int(row.memory)
    return found


_QUOTAS = text(
    """
    SELECT tenants.path, flavor, resource, min, max, lendable FROM quotas JOIN tenants ON tenants.id = tenant_id
    ORDER BY tenants.path, flavor, resource
    """
)
_CAPACITY = text(
    """
    WITH held AS (
        SELECT pools.flavor, pools.as_of IS NULL AS silent, nodes.accelerators * nodes.count AS accelerators,
            nodes.cpus * nodes.count AS cpus, nodes.memory * nodes.count AS memory,
            pools.tenure = :exclusive AS exclusive
        FROM pools LEFT JOIN nodes ON nodes.pool = pools.name
    )
    SELECT flavor, bool_or(silent AND exclusive) AS silent,
        coalesce(sum(accelerators) FILTER (WHERE exclusive), 0) AS accelerators,
        coalesce(sum(cpus) FILTER (WHERE exclusive), 0) AS cpus,
        coalesce(sum(memory) FILTER (WHERE exclusive), 0) AS memory
    FROM held GROUP BY flavor
    """
)
