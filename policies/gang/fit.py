"""Places for every group of a job, or for none: the only place where groups become `Placed`.

One pool for the whole gang is tried first; otherwise each group goes whole into one pool. A group is never split over
pools. Rooms are left as they were: who takes a fit calls `take`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from policies.placement.filters import Candidate, label_filter, takes_group
from policies.placement.rooms import Amounts, Labels, Room, Spread, amounts, members_in, times
from policies.snapshot import GroupRequest, Placed, QueuedJob

Gang = tuple[Placed, ...]


def spread_of(placed: Placed) -> list[tuple[str, Amounts]]:
    """Node and amount for what is placed on named nodes."""
    return [(node, times(amounts(placed.per_member), members)) for node, members in placed.nodes]


def take(by_pool: Mapping[str, Room], gang: Iterable[Placed]) -> None:
    """Take what `fit` found."""
    for placed in gang:
        by_pool[placed.pool].take(spread_of(placed))


def give(by_pool: Mapping[str, Room], gang: Iterable[Placed]) -> None:
    """The reverse of take."""
    for placed in gang:
        by_pool[placed.pool].give(spread_of(placed))


def fit_in_one(job: QueuedJob, by_pool: Mapping[str, Room], candidate: Candidate) -> Gang | None:
    """The whole gang in one pool, or None. Nodes are always named; `public` hides those of pools that place."""
    if not all(takes_group(group, candidate.flavor) for group in job.groups):
        return None
    return _gang(job, by_pool, [[candidate]] * len(job.groups))


def fit_across(job: QueuedJob, by_pool: Mapping[str, Room], candidates: Sequence[Candidate]) -> Gang | None:
    """Each group whole in some pool; for jobs of several groups that no single pool takes."""
    if len(job.groups) == 1:
        return None
    return _gang(job, by_pool, [[c for c in candidates if takes_group(group, c.flavor)] for group in job.groups])


def public(gang: Gang, by_pool: Mapping[str, Room]) -> Gang:
    """The gang as a decision says it: without nodes where the backend places by itself."""
    return tuple(
        placed
        if by_pool[placed.pool].pool.places_nodes
        else Placed(placed.group, placed.pool, placed.flavor, placed.replicas, placed.per_member)
        for placed in gang
    )


def _gang(job: QueuedJob, by_pool: Mapping[str, Room], options: Sequence[Sequence[Candidate]]) -> Gang | None:
    found: dict[str, Placed] = {}
    # The largest members first: small ones fill what they leave.
    order = sorted(
        zip(job.groups, options, strict=True),
        key=lambda pair: (amounts(pair[0].per_member), pair[0].name),
        reverse=True,
    )
    for group, pools in order:
        placed = next((p for c in pools if (p := _group(job, group, by_pool[c.pool.name], c)) is not None), None)
        if placed is None:
            give(by_pool, found.values())
            return None
        found[group.name] = placed
        take(by_pool, (placed,))
    give(by_pool, found.values())
    return tuple(found[group.name] for group in job.groups)


def _group(job: QueuedJob, group: GroupRequest, room: Room, candidate: Candidate) -> Placed | None:
    each = amounts(group.per_member)
    allows = label_filter(job, candidate)
    avoid = frozenset(job.placement.avoid_nodes)
    spread = _sized(group, each, room, allows, avoid)
    if spread is None:
        return None
    replicas = sum(count for _, count in spread)
    return Placed(group.name, candidate.pool.name, candidate.flavor.name, replicas, group.per_member, spread)


def _sized(
    group: GroupRequest,
    each: Amounts,
    room: Room,
    allows: Callable[[Labels], bool] | None,
    avoid: frozenset[str],
) -> Spread | None:
    spread = room.spread(each, group.replicas, allows, avoid)
    if spread is not None or group.min_replicas >= group.replicas:
        return spread
    # Elastic: as many as fit, if that is enough (POLICIES §9: the largest valid size that fits).
    most = sum(count * len(names) for count, _, names in room.shapes(each, allows, avoid))
    most = min(most, members_in(room.total(), each)) // group.step * group.step
    return room.spread(each, most, allows, avoid) if most >= max(1, group.min_replicas) else None
