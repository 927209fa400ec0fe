"""Whether a job could ever be placed, and in the user's words why not: by the arbiter's own function, never another.

Pure. `Config.ever` gives the word; everything else here only finds the field that stands in the way, by asking again
for less.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from gateway.ledger.codec import Request, dumps, queued_job, request_of
from gateway.queries.config import Config
from policies.placement.filters import Candidate
from policies.snapshot import GroupRequest, PlacementWish, QueuedJob, Resources
from policies.vocabulary import CapacityWish
from tidegate.wire.problem import FieldProblem
from tidegate.wire.spec import JobSpec

Found = tuple[str, FieldProblem]
MOST_SHAPES: Final = 10_000
_NOBODY: Final = UUID(int=0)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SIZES: Final[tuple[tuple[str, Callable[[Resources], int]], ...]] = (
    ("accelerators", lambda of: of.accelerators),
    ("cpus", lambda of: of.cpus),
    ("memory", lambda of: of.memory),
    ("disk", lambda of: of.disk),
)


def wish_of(spec: JobSpec, tenant: str) -> QueuedJob:
    """The job as a cycle would see it, without a name and a time: what it asks for, and where."""
    return _wish(spec, tenant, _request(spec))


def _request(spec: JobSpec) -> Request:
    # Without its deadline, which may not even be an instant.
    return request_of(spec if spec.deadline is None else spec.model_copy(update={"deadline": None}))


def _wish(spec: JobSpec, tenant: str, request: Request) -> QueuedJob:
    row = {
        "id": _NOBODY,
        "path": tenant,
        "principal": "",
        "kind": spec.kind.value,
        "klass": spec.priority.value,
        "submitted_at": _EPOCH,
        "version": 1,
        "request": request,
        "want_size": None,
        "not_before": None,
        "want_hold": False,
    }
    return queued_job(row)


def size_refusals(row: Mapping[str, Any], group: str, replicas: int, config: Config) -> Iterator[Found]:
    """Nothing, or why a job of this row could never have that size: no pool holds it, even when empty."""
    job = queued_job({**row, "want_size": {group: replicas}, "saved": None})
    pinned = tuple(replace(each, min_replicas=each.replicas) if each.name == group else each for each in job.groups)
    if config.ever(replace(job, groups=pinned)).possible:
        return
    alone = tuple(each for each in pinned if each.name == group)
    most = _most(replace(job, groups=alone), config) if alone else 0
    yield _no_fit(
        "replicas",
        f"{replicas} members are asked for, the largest pool that may take them holds {most} when empty",
        f"ask for at most {most}",
    )


def fit_refusals(spec: JobSpec, tenant: str, config: Config) -> Iterator[Found]:
    """Nothing, or each thing for which the job would wait as NoMatchingFlavor for good."""
    request = _request(spec)
    # Jobs come in many of one shape: what fits once fits for as long as this view is believed.
    shape = f"{tenant} {spec.kind} {spec.priority} {dumps(request)}"
    if shape in config.fitting:
        return
    job = _wish(spec, tenant, request)
    if config.ever(job).possible:
        if len(config.fitting) < MOST_SHAPES:
            config.fitting.add(shape)
        return
    alone = False
    for index, group in enumerate(job.groups):
        one = replace(job, groups=(group,))
        found = config.ever(one)
        if not found.possible:
            alone = True
            yield _of_group(spec, one, f"groups.{index}." if spec.groups else "", found.matching, config)
    if not alone:
        yield _together(job, config)


def _of_group(spec: JobSpec, job: QueuedJob, where: str, matching: Sequence[Candidate], config: Config) -> Found:
    (group,) = job.groups
    if not matching:
        return _nowhere(job, where, config)
    if job.placement.require and config.ever(_required(job, {})).possible:
        return _labels(job, matching, config)
    if not config.ever(_sized(job, 1)).possible:
        return _too_large(group.per_member, where, matching)
    most = _most(job, config)
    # A group of an elastic job may start with its smallest size.
    field = "elastic.min" if group.name == spec.elastic_group else (f"{where}replicas" if where else "num_nodes")
    return _no_fit(
        field,
        f"{group.min_replicas} members are asked for, the largest pool that may take them holds {most} when empty; "
        "a group is never split over pools",
        f"ask for at most {most}, or make several groups, each of which fits one pool",
    )


def _nowhere(job: QueuedJob, where: str, config: Config) -> Found:
    """No pool passes the filters: the field is the first filter without which one would."""
    (group,) = job.groups
    wanted = group.accelerator or ("accelerators" if group.per_member.accelerators else "room for it")
    for field, loose in _loosened(job):
        if matching := config.ever(loose).matching:
            offers = ", ".join(sorted({f"{c.pool.name} ({c.flavor.name})" for c in matching})[:10])
            return _no_fit(
                field,
                f"no pool that this job may use has {wanted}, but for {field} some would",
                f"loosen {field}; without it there are: {offers}",
            )
    have = ", ".join(sorted({f.accelerator or "CPUs only" for f in config.flavors.values()})[:10]) or "nothing yet"
    return _no_fit(
        f"{where}resources.accelerators" if group.per_member.accelerators else "placement",
        f"no pool that this job may use has {wanted}",
        f"take what there is ({have}), or loosen placement and capacity",
    )


def _loosened(job: QueuedJob) -> Iterator[tuple[str, QueuedJob]]:
    wish = job.placement
    for name in ("pools", "flavors", "backends", "zones"):
        if getattr(wish, name):
            yield f"placement.{name}", replace(job, placement=_without(wish, name))
    if job.capacity is not CapacityWish.MIXED:
        yield "capacity.type", replace(job, capacity=CapacityWish.MIXED)
    if job.max_price is not None:
        yield "capacity.max_price", replace(job, max_price=None)


def _without(wish: PlacementWish, name: str) -> PlacementWish:
    # `ordered` ranks by names that the list has to hold.
    return PlacementWish(
        flavors=() if name == "flavors" else wish.flavors,
        pools=() if name == "pools" else wish.pools,
        backends=() if name == "backends" else wish.backends,
        zones=() if name == "zones" else wish.zones,
        require=wish.require,
    )


def _labels(job: QueuedJob, matching: Sequence[Candidate], config: Config) -> Found:
    wanted = dict(job.placement.require)
    # One label that nothing fits with, if there is one; else they are not found together.
    lonely = [key for key in sorted(wanted) if not config.ever(_required(job, {key: wanted[key]})).possible]
    shown = ", ".join(f"{key}={wanted[key]}" for key in lonely or sorted(wanted))[:300]
    values = {
        f"{key}={value}"
        for candidate in matching
        for labels in (candidate.flavor.labels, *(node.labels for node in candidate.pool.nodes))
        for key, value in labels.items()
    }
    have = ", ".join(sorted(values)[:10]) or "none"
    return _no_fit(
        f"placement.require.{lonely[0]}" if lonely else "placement.require",
        f"too few nodes of the pools that this job may use have {shown}",
        f"take it away, or require what they have (labels there: {have})",
    )


def _required(job: QueuedJob, require: dict[str, str]) -> QueuedJob:
    return replace(job, placement=replace(job.placement, require=require))


def _too_large(member: Resources, where: str, matching: Sequence[Candidate]) -> Found:
    shapes = [node.capacity for candidate in matching for node in candidate.pool.nodes]
    largest = max(shapes, default=Resources())
    # The field that no node has enough of; where each alone would do, they are not found together on one.
    tight = [name for name, of in _SIZES if of(member) > max((of(shape) for shape in shapes), default=0)]
    return _no_fit(
        f"{where}resources.{tight[0]}" if tight else f"{where}resources",
        "one member is larger than any node that there is",
        f"ask for at most {largest.accelerators / 1000:g} accelerators, {largest.cpus / 1000:g} CPUs, "
        f"{largest.memory} bytes of memory and {largest.disk} of disk per member, and for more members",
    )


def _together(job: QueuedJob, config: Config) -> Found:
    """Each group would fit: the field is the first group that does not fit beside those before it."""
    # The last of these gangs is the whole job, which does not fit.
    gangs = (replace(job, groups=job.groups[:size]) for size in range(2, len(job.groups) + 1))
    beside = next(gang for gang in gangs if not config.ever(gang).possible)
    most = _most(beside, config)
    name = beside.groups[-1].name
    return _no_fit(
        f"groups.{len(beside.groups) - 1}.replicas",
        f"the groups fit one by one, but {name!r} does not fit beside those before it, even when all is empty",
        f"ask for at most {most} members of {name!r}, or for less in the other groups"
        if most
        else f"leave {name!r} out, or ask for less in the other groups",
    )


def _most(job: QueuedJob, config: Config) -> int:
    """The largest size of the last group at which the job would fit; 0 where none does."""
    low, high = 0, job.groups[-1].min_replicas
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if config.ever(_sized(job, middle)).possible else (low, middle)
    return low


def _sized(job: QueuedJob, replicas: int) -> QueuedJob:
    last: GroupRequest = replace(job.groups[-1], replicas=replicas, min_replicas=replicas)
    return replace(job, groups=(*job.groups[:-1], last))


def _no_fit(field: str, detail: str, remedy: str) -> Found:
    return "no-matching-flavor", FieldProblem(field=field[:500], detail=detail, remedy=remedy)
