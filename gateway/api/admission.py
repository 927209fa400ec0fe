"""What is refused at submit: all that the spec and today's configuration prove can never run (DESIGN §9).

Pure. Whatever may change by itself (free capacity, quota) is no business of this file: such a job waits.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from gateway.ledger.codec import deadline_ms, to_ms
from gateway.operators import urls
from gateway.queries.config import Config, PoolShape
from gateway.queries.scope import lineage
from policies.snapshot import Resources
from policies.vocabulary import CapacityType, CapacityWish
from tidegate.wire.enums import PriorityClass
from tidegate.wire.problem import FieldProblem
from tidegate.wire.spec import Group, JobSpec

LONG_SPOT_S: Final = 4 * 3600  # POLICIES §10
OWN_DISK_SCHEMES: Final = ("file", "local")
_TYPES: Final = {
    CapacityWish.SPOT: {CapacityType.SPOT},
    CapacityWish.ON_DEMAND: {CapacityType.ON_DEMAND, CapacityType.RESERVED},
    CapacityWish.RESERVED: {CapacityType.RESERVED},
    CapacityWish.MIXED: set(CapacityType),
}


def refusals(spec: JobSpec, tenant: str, config: Config, now: datetime) -> list[tuple[str, FieldProblem]]:
    """(slug, problem) for each thing that is wrong; empty when the job may be stored."""
    return [
        *_shape(spec, config),
        *_checkpoint(spec, tenant, config),
        *class_refusals(spec.priority, tenant, config),
        *_deadline(spec, now),
    ]


def class_refusals(priority: PriorityClass, tenant: str, config: Config) -> Iterator[tuple[str, FieldProblem]]:
    """P0 and P1 need an allowance at the tenant or above it."""
    if priority is PriorityClass.P2:
        return
    if not any((path, priority.value) in config.allowances for path in lineage(tenant)):
        yield (
            "no-class-allowance",
            FieldProblem(
                field="priority",
                detail=f"{tenant} has no allowance of {priority}",
                remedy=f"use P2, or ask an operator for an allowance of {priority}",
            ),
        )


def _deadline(spec: JobSpec, now: datetime) -> Iterator[tuple[str, FieldProblem]]:
    if spec.deadline is None:
        return
    remedy = "give an RFC 3339 instant in the future, for example 2030-01-31T12:00:00Z"
    try:
        at_ms = deadline_ms(spec.deadline)
    except ValueError:
        yield "invalid", FieldProblem(field="deadline", detail="not an instant", remedy=remedy)
        return
    if at_ms <= (to_ms(now) or 0):
        yield "invalid", FieldProblem(field="deadline", detail="the deadline has passed", remedy=remedy)


def _checkpoint(spec: JobSpec, tenant: str, config: Config) -> Iterator[tuple[str, FieldProblem]]:
    if spec.checkpoint is None:
        spot = CapacityWish(spec.capacity.type.value) is CapacityWish.SPOT
        if spot and (spec.max_duration or 0) > LONG_SPOT_S and not spec.capacity.accept_loss:
            yield (
                "long-spot-without-checkpoint",
                FieldProblem(
                    field="checkpoint",
                    detail="a spot job of more than 4 h that saves nothing would lose everything at a revocation",
                    remedy="add checkpoint.url, or say capacity.accept_loss: true",
                ),
            )
        return
    field = "checkpoint.url"
    try:
        url = urls.normalise(spec.checkpoint.url)
    except ValueError as error:
        yield "bad-storage-url", FieldProblem(field=field, detail=str(error), remedy="correct the URL")
        return
    prefixes = [prefix for path in lineage(tenant) for prefix in config.storages.get(path, ())]
    if urls.under(url, prefixes):
        return
    allowed = ", ".join(sorted(prefixes)[:10]) or "none is configured for your tenant; ask an operator"
    if urls.scheme_of(url) in OWN_DISK_SCHEMES:
        yield (
            "own-disk-checkpoint",
            FieldProblem(
                field=field,
                detail="this is a disk of the instance itself: it is gone when the instance is",
                remedy=f"save under a storage that outlives the instance: {allowed}",
            ),
        )
        return
    yield (
        "outside-storages",
        FieldProblem(
            field=field, detail=f"{url[:300]} is under no storage of {tenant}", remedy=f"use one of: {allowed}"
        ),
    )


def _allowed_pools(spec: JobSpec, config: Config) -> list[PoolShape]:
    wish = CapacityWish(spec.capacity.type.value)
    place = spec.placement
    return [
        pool
        for pool in config.pools
        if CapacityType(pool.capacity_type) in _TYPES[wish]
        and (not place.flavors or pool.flavor in place.flavors)
        and (not place.pools or pool.name in place.pools)
        and (not place.backends or pool.backend in place.backends)
        and (not place.zones or pool.zone in place.zones)
        and (spec.capacity.max_price is None or pool.price <= spec.capacity.max_price)
    ]


def _shape(spec: JobSpec, config: Config) -> Iterator[tuple[str, FieldProblem]]:
    pools = _allowed_pools(spec, config)
    for index, group in enumerate(spec.flat_groups()):
        assert group.resources is not None, "flat_groups fills it in"
        where = f"groups.{index}" if spec.groups else ""
        wanted = group.resources.accelerators
        model = wanted.model
        matching = [p for p in pools if (p.accelerator == model if model else True)]
        if not matching:
            have = ", ".join(sorted({p.accelerator or "CPUs only" for p in config.pools})) or "nothing yet"
            yield _no_fit(
                _join(where, "resources.accelerators" if model else "placement"),
                f"no pool that this job may use has {model or 'what it asks for'}",
                f"take what there is ({have}), or loosen placement and capacity",
            )
            continue
        if any(pool.silent for pool in matching):
            continue
        member = Resources(
            accelerators=wanted.count,
            cpus=group.resources.cpus,
            memory=group.resources.memory,
            disk=group.resources.disk,
        )
        yield from _members(where, group, spec, member, matching)


def _members(
    where: str, group: Group, spec: JobSpec, member: Resources, pools: list[PoolShape]
) -> Iterator[tuple[str, FieldProblem]]:
    needed = spec.elastic.min if spec.elastic and not spec.groups else (group.min_replicas or group.replicas)
    fitting = sum(_fit(member, shape.per_node) * shape.count for pool in pools for shape in pool.shapes)
    if fitting >= needed:
        return
    if fitting == 0:
        largest = max((s.per_node for p in pools for s in p.shapes), default=Resources())
        yield _no_fit(
            _join(where, _tight(member, largest)),
            "one member is larger than any node that there is",
            f"ask for at most {largest.accelerators / 1000:g} accelerators, {largest.cpus / 1000:g} CPUs and "
            f"{largest.memory} bytes of memory per member, and for more members",
        )
        return
    yield _no_fit(
        _join(where, "replicas") if spec.groups else "num_nodes",
        f"{needed} members are asked for, all pools together hold {fitting} when empty",
        f"ask for at most {fitting}",
    )


def _fit(member: Resources, node: Resources) -> int:
    pairs = (
        (member.accelerators, node.accelerators),
        (member.cpus, node.cpus),
        (member.memory, node.memory),
        (member.disk, node.disk),
    )
    return min((have // want for want, have in pairs if want), default=1)


def _tight(member: Resources, node: Resources) -> str:
    if member.accelerators > node.accelerators:
        return "resources.accelerators"
    if member.cpus > node.cpus:
        return "resources.cpus"
    return "resources.memory" if member.memory > node.memory else "resources.disk"


def _join(where: str, field: str) -> str:
    return f"{where}.{field}" if where else field


def _no_fit(field: str, detail: str, remedy: str) -> tuple[str, FieldProblem]:
    return "no-matching-flavor", FieldProblem(field=field, detail=detail, remedy=remedy)
