"""Whether quotas may be written as they stand: Σ children's min ≤ the parent's, Σ root min ≤ exclusive capacity.

Pure: the API calls it before it stores, and words nothing itself.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from policies.snapshot import Quota
from policies.vocabulary import Resource


@dataclass(frozen=True, slots=True)
class Violation:
    """What is wrong: the field to change, the tenant it stands at, the numbers, and words with the remedy."""

    field: str  # min, max or lendable
    tenant: str
    flavor: str
    resource: Resource
    value: int
    bound: int
    message: str


def violations(
    quotas: Iterable[Quota], exclusive_capacity: Mapping[tuple[str, Resource], int] | None = None
) -> tuple[Violation, ...]:
    """Every violation, in a stable order. Where no capacity is known the roots are not judged."""
    groups: dict[tuple[str, Resource], dict[str, Quota]] = {}
    for quota in quotas:
        groups.setdefault((quota.flavor, quota.resource), {})[quota.tenant] = quota
    found: list[Violation] = []
    for key in sorted(groups):
        rows = groups[key]
        for tenant in sorted(rows):
            found += _row(rows[tenant])
        found += _sums(rows, (exclusive_capacity or {}).get(key))
    return tuple(found)


def _row(quota: Quota) -> Iterable[Violation]:
    def wrong(name: str, value: int, bound: int, message: str) -> Violation:
        return Violation(name, quota.tenant, quota.flavor, quota.resource, value, bound, message)

    if quota.min < 0:
        yield wrong("min", quota.min, 0, f"min of {quota.tenant} is {quota.min}; use 0 or more")
    if quota.max is not None and quota.max < quota.min:
        yield wrong(
            "max",
            quota.max,
            quota.min,
            f"max {quota.max} of {quota.tenant} is below its min {quota.min}; raise max or lower min",
        )
    if not 0 <= quota.lendable <= max(quota.min, 0):
        yield wrong(
            "lendable",
            quota.lendable,
            quota.min,
            f"lendable {quota.lendable} of {quota.tenant} must lie between 0 and its min {quota.min}",
        )


def _sums(rows: Mapping[str, Quota], capacity: int | None) -> Iterable[Violation]:
    sums: dict[str, int] = {}
    for tenant, quota in rows.items():
        above = _nearest(tenant, rows)
        sums[above] = sums.get(above, 0) + max(0, quota.min)
    for above in sorted(sums):
        some = next(iter(rows.values()))
        bound = capacity if not above else rows[above].min
        if bound is None or sums[above] <= bound:
            continue
        whose = f"of the children of {above}" if above else "of the root tenants"
        what = f"its own min {bound}" if above else f"the exclusive capacity {bound}"
        yield Violation(
            "min",
            above,
            some.flavor,
            some.resource,
            sums[above],
            bound,
            f"min: Σ {whose} is {sums[above]} {some.resource.value} of {some.flavor}, above {what}; "
            f"lower a child's min by {sums[above] - bound} or raise the bound",
        )


def _nearest(tenant: str, rows: Mapping[str, Quota]) -> str:
    """The nearest ancestor with a row of its own, "" for none."""
    above = tenant.rpartition("/")[0]
    while above and above not in rows:
        above = above.rpartition("/")[0]
    return above
