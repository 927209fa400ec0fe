"""The hard filters: which pools a job may go to at all, in the order in which they are to be tried.

Decides nothing about room: a pool that is full or dark today still matches.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from policies.placement.rooms import Labels
from policies.snapshot import Flavor, GroupRequest, PlacementWish, Pool, QueuedJob
from policies.vocabulary import CapacityType, CapacityWish

# Reserved capacity is not taken away either, and what is paid for already costs nothing more (POLICIES §10).
_TYPES: Final[Mapping[CapacityWish, frozenset[CapacityType]]] = {
    CapacityWish.SPOT: frozenset({CapacityType.SPOT}),
    CapacityWish.ON_DEMAND: frozenset({CapacityType.ON_DEMAND, CapacityType.RESERVED}),
    CapacityWish.RESERVED: frozenset({CapacityType.RESERVED}),
    CapacityWish.MIXED: frozenset(CapacityType),
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One pool that a job may go to, with its flavor."""

    pool: Pool
    flavor: Flavor


def request_key(job: QueuedJob) -> tuple[object, ...]:
    """Equal for jobs that ask for the same thing at the same places: what did not fit for one fits for none."""
    wish = job.placement
    where: tuple[object, ...] = ()
    if wish is not _ANYWHERE and wish != _ANYWHERE:
        where = (
            wish.flavors,
            wish.pools,
            wish.backends,
            wish.zones,
            wish.ordered,
            tuple(sorted(wish.require.items())),
            tuple(sorted(wish.prefer.items())),
            tuple(sorted(wish.avoid_nodes)),
            wish.refused_by,
        )
    return (job.groups, job.capacity, job.max_price, where)


_ANYWHERE: Final = PlacementWish()


def candidates(job: QueuedJob, pools: Iterable[Pool], flavors: Mapping[str, Flavor]) -> tuple[Candidate, ...]:
    """The pools that pass every filter for at least one group, first choice first."""
    found = [
        Candidate(pool, flavor)
        for pool in pools
        if (flavor := flavors.get(pool.flavor)) is not None
        and allowed(job, pool, flavor)
        and any(takes_group(group, flavor) for group in job.groups)
    ]
    return tuple(sorted(found, key=lambda c: _preference(job, c)))


def allowed(job: QueuedJob, pool: Pool, flavor: Flavor) -> bool:
    """Whether the job's wish allows the pool, whatever its groups ask for."""
    wish = job.placement
    return (
        flavor.capacity_type in _TYPES[job.capacity]
        and (not wish.flavors or flavor.name in wish.flavors)
        and (not wish.pools or pool.name in wish.pools)
        and (not wish.backends or pool.backend in wish.backends)
        and all(backend != pool.backend for backend, _ in wish.refused_by)
        and (not wish.zones or flavor.zone in wish.zones)
        and (job.max_price is None or flavor.price <= job.max_price)
    )


def takes_group(group: GroupRequest, flavor: Flavor) -> bool:
    """Whether the flavor has the accelerator that the group's members need."""
    if not group.per_member.accelerators:
        return True
    return bool(flavor.accelerator) and group.accelerator in {"", flavor.accelerator}


def label_filter(job: QueuedJob, candidate: Candidate) -> Callable[[Labels], bool] | None:
    """What a node's labels must satisfy on top of its flavor's; None where nothing is left to ask."""
    flavor = candidate.flavor
    known = {
        **flavor.labels,
        "zone": flavor.zone,
        "flavor": flavor.name,
        "pool": candidate.pool.name,
        "backend": candidate.pool.backend,
        "capacity_type": flavor.capacity_type.value,
        "accelerator": flavor.accelerator,
    }
    open_wishes = {key: value for key, value in job.placement.require.items() if known.get(key) != value}
    if not open_wishes:
        return None
    wanted = frozenset(open_wishes.items())
    return lambda labels: wanted <= frozenset(labels)


def _preference(job: QueuedJob, candidate: Candidate) -> tuple[int | bool | str, ...]:
    wish, flavor, pool = job.placement, candidate.flavor, candidate.pool
    place = 0
    if wish.ordered:
        for names, name in ((wish.pools, pool.name), (wish.flavors, flavor.name), (wish.backends, pool.backend)):
            if names:
                place = names.index(name)
                break
    missed = sum(flavor.labels.get(key) != value for key, value in wish.prefer.items())
    # A job without accelerators leaves the cards to those who need them.
    wasteful = bool(flavor.accelerator) and not any(group.per_member.accelerators for group in job.groups)
    price = 0 if flavor.capacity_type is CapacityType.RESERVED else flavor.price
    return (place, missed, wasteful, price, pool.name)
