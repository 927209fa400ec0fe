"""What must hold between operators' documents (POLICIES §3). Pure: documents as they would be, in; problems out."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from gateway.operators import amounts
from gateway.operators.diff import Documents
from tidegate.wire.enums import PriorityClass, Resource, Tenure
from tidegate.wire.governance import BudgetDoc, OwnerDoc
from tidegate.wire.operator import AllowanceDoc, PoolDoc, QuotaDoc, StorageDoc, TenantDoc
from tidegate.wire.problem import FieldProblem

Capacities = Mapping[tuple[str, Resource], int | None]
"""Exclusive capacity by (flavor, resource); None where a pool has not reported yet, so nothing can be proved."""


def problems(docs: Documents, capacities: Capacities) -> list[FieldProblem]:
    """Everything that is wrong; empty when the documents may stand."""
    return [*_references(docs), *_quotas(docs, capacities)]


def _references(docs: Documents) -> Iterator[FieldProblem]:
    for (kind, name), doc in docs.items():
        where = f"{kind}.{name}"
        wanted: list[tuple[str, str, str]] = []
        match doc:
            case TenantDoc() if "/" in doc.path:
                wanted.append(("path", "tenant", doc.path.rpartition("/")[0]))
            case PoolDoc():
                wanted += [("backend", "backend", doc.backend), ("flavor", "flavor", doc.flavor)]
            case QuotaDoc():
                wanted += [("tenant", "tenant", doc.tenant), ("flavor", "flavor", doc.flavor)]
            case AllowanceDoc():
                wanted.append(("tenant", "tenant", doc.tenant))
                if doc.priority is PriorityClass.P2:
                    yield FieldProblem(
                        field=f"{where}.priority",
                        detail="P2 needs no allowance",
                        remedy="name P0 or P1, or leave it out",
                    )
            case StorageDoc() | BudgetDoc():
                wanted.append(("tenant", "tenant", doc.tenant))
            case OwnerDoc():
                wanted += [("backend", "backend", doc.backend), ("tenant", "tenant", doc.tenant)]
            case _:
                pass
        for field, of_kind, target in wanted:
            if (of_kind, target) not in docs:
                yield FieldProblem(
                    field=f"{where}.{field}",
                    detail=f"there is no {of_kind} {target!r}",
                    remedy=f"create the {of_kind} first, or in the same file",
                )


def _quotas(docs: Documents, capacities: Capacities) -> Iterator[FieldProblem]:
    quotas = {(d.tenant, d.flavor, d.resource): d for d in docs.values() if isinstance(d, QuotaDoc)}
    mins_below: dict[tuple[str, str, Resource], int] = defaultdict(int)
    for (tenant, flavor, resource), doc in quotas.items():
        where = f"quota.{tenant} {flavor} {resource}"
        least = amounts.parse(doc.min, resource)
        most = None if doc.max is None else amounts.parse(doc.max, resource)
        if most is not None and most < least:
            yield _wrong(f"{where}.max", f"max {doc.max} is below min {doc.min}", "raise max or lower min")
        if amounts.parse(doc.lendable, resource) > least:
            yield _wrong(
                f"{where}.lendable",
                f"lendable {doc.lendable} is above min {doc.min}",
                "lend at most what is guaranteed",
            )
        parent = tenant.rpartition("/")[0]
        mins_below[parent, flavor, resource] += least
        yield from _ceiling(where, doc, most, quotas)
    for (parent, flavor, resource), total in mins_below.items():
        if total:
            yield from _guarantee((parent, flavor, resource), total, quotas, capacities)


def _ceiling(
    where: str, doc: QuotaDoc, most: int | None, quotas: Mapping[tuple[str, str, Resource], QuotaDoc]
) -> Iterator[FieldProblem]:
    """No max, given or left open, above the one of the nearest tenant above that has a quota of the same thing."""
    above: QuotaDoc | None = None
    path = doc.tenant
    while above is None and "/" in path:
        path = path.rpartition("/")[0]
        above = quotas.get((path, doc.flavor, doc.resource))
    if above is None or above.max is None:
        return
    if most is None:
        yield _wrong(
            f"{where}.max",
            f"it sets no max, but {path} above it has max {above.max}",
            f"give a max of at most {above.max}, or take the max of {path} away first",
        )
    elif most > amounts.parse(above.max, doc.resource):
        yield _wrong(
            f"{where}.max",
            f"max {doc.max} is above the max {above.max} of {path}",
            f"give at most {above.max}, or raise the quota of {path} first",
        )


def _guarantee(
    key: tuple[str, str, Resource],
    total: int,
    quotas: Mapping[tuple[str, str, Resource], QuotaDoc],
    capacities: Capacities,
) -> Iterator[FieldProblem]:
    parent, flavor, resource = key
    shown = amounts.show(total, resource)
    if parent:
        above = quotas.get((parent, flavor, resource))
        limit = amounts.parse(above.min, resource) if above else 0
        if total > limit:
            yield _wrong(
                f"quota.{parent} {flavor} {resource}.min",
                f"the children of {parent} are guaranteed {shown} of {flavor}, {parent} itself only "
                f"{amounts.show(limit, resource)}",
                f"raise the min of {parent} to {shown} first, or lower the children's",
            )
        return
    if resource is Resource.JOBS:
        return  # no pool bounds a number of jobs
    capacity = capacities.get((flavor, resource), 0)
    if capacity is not None and total > capacity:
        yield _wrong(
            f"quota.{flavor} {resource}.min",
            f"the root tenants are guaranteed {shown} of {flavor}, its exclusive pools hold "
            f"{amounts.show(capacity, resource)}",
            "guarantee at most what exclusive pools hold, or add an exclusive pool first",
        )


def _wrong(field: str, detail: str, remedy: str) -> FieldProblem:
    return FieldProblem(field=field, detail=detail, remedy=remedy)


def capacities_of(docs: Documents, reported: Mapping[tuple[str, Resource], int], silent: set[str]) -> Capacities:
    """Exclusive capacity per flavor after the change. `reported`: by (pool, resource). `silent`: pools yet unheard."""
    found: dict[tuple[str, Resource], int | None] = {}
    for doc in docs.values():
        if not isinstance(doc, PoolDoc) or doc.tenure is not Tenure.EXCLUSIVE:
            continue
        known = (doc.name, Resource.ACCELERATORS) in reported and doc.name not in silent
        for resource in (Resource.ACCELERATORS, Resource.CPUS, Resource.MEMORY):
            so_far = found.get((doc.flavor, resource), 0)
            found[doc.flavor, resource] = (
                so_far + reported[doc.name, resource] if known and so_far is not None else None
            )
    return found
