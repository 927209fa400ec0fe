"""How far a tenant is below its guarantee: min(held, demand) ÷ min(guaranteed, demand), in exact fractions."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final

from policies.quota.tree import Quotas, Tree

INFINITE: Final = Fraction(1 << 62)
"""Guarantee 0 and something held: the last to be served, the first victim."""


def qad(held: int, demand: int, guaranteed: int) -> Fraction:
    """POLICIES §2. demand 0: 1; guarantee 0: 1 with nothing held, else infinite."""
    if guaranteed <= 0:
        return INFINITE if held > 0 else Fraction(1)
    if demand <= 0:
        return Fraction(1)
    return Fraction(min(held, demand), min(guaranteed, demand))


def qad_at(tree: Tree | None, tenant: str, demand: int) -> Fraction:
    """QAD at the nearest level of the tenant's path that has a quota of its own."""
    if tree is None:
        return Fraction(1)
    level = tree.level(tenant)
    while not level.known and level.parent is not None:
        level = level.parent
    return qad(level.use, max(demand, level.use), level.min)


def ranks(quotas: Quotas, queued: Mapping[str, Mapping[str, int]], tenants: Iterable[str]) -> dict[str, int]:
    """Dense ranks of tenants, 0 for the lowest QAD: the worst over the flavors that the tenant wants or holds.

    queued: milli-GPU that each tenant's waiting jobs ask for, by flavor.
    """
    values: dict[str, Fraction] = {}
    for tenant in tenants:
        wanted = queued.get(tenant, {})
        found = []
        for flavor in quotas.by_flavor:
            tree = quotas.accelerators(flavor)
            if tree is None:
                continue
            more = wanted.get(flavor, 0)
            held = tree.level(tenant).use
            if more or held:
                found.append(qad_at(tree, tenant, held + more))
        values[tenant] = min(found, default=Fraction(1))
    places = {value: rank for rank, value in enumerate(sorted(set(values.values())))}
    return {tenant: places[value] for tenant, value in values.items()}
