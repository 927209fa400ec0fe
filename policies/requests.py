"""What equal wishes share in a cycle: where they may go, what they count against, and what did not fit for them.

Jobs that ask for the same thing at the same places share one `Request`, so that a long queue of few shapes is looked
at once per shape. Room and quota only shrink during a cycle, so what did not fit once is not tried again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from policies.decisions import Numbers
from policies.placement.ever import EmptyFederation, could_ever_fit
from policies.placement.filters import Candidate, request_key
from policies.snapshot import Flavor, Pool, QueuedJob
from policies.vocabulary import Resource

Need = Mapping[str, Mapping[Resource, int]]


@dataclass(slots=True, eq=False)
class Request:
    """matching: pools that pass the filters. choices: those of them in which it would ever fit whole.

    blocked: (pool, version and number of the slots in the way) where it did not fit; (pool, 0, 0): in no way at all.
    """

    matching: tuple[Candidate, ...]
    choices: tuple[Candidate, ...]
    possible: bool
    elastic: bool
    asked: Numbers
    needs: dict[str, Need] = field(default_factory=dict)
    blocked: set[tuple[str, int, int]] = field(default_factory=set)
    promised_never: bool = False  # no end of what runs makes room for it

    def accelerators(self, flavor: str) -> int:
        """milli-GPU of the whole job."""
        return self.needs[flavor][flavor][Resource.ACCELERATORS]


class Requests:
    """All requests of a cycle, by the job that asks."""

    def __init__(self, jobs: Sequence[QueuedJob], pools: Sequence[Pool], flavors: Mapping[str, Flavor]) -> None:
        self._empty = EmptyFederation(pools, flavors)
        self._by_key: dict[object, Request] = {}
        # The snapshot keeps these jobs alive, so their identity is a safe and cheap key.
        self._by_identity = {id(job): self._by_wish(job) for job in jobs}
        self._eased: list[QueuedJob] = []  # kept alive as well

    def of(self, job: QueuedJob) -> Request:
        """The request of a job of the snapshot, or of a smaller copy of one."""
        return self._by_identity.get(id(job)) or self._by_wish(job)

    def eased(self, job: QueuedJob) -> QueuedJob:
        """The job as it is to be placed: nodes are avoided by preference, not at the price of never starting.

        Only where it could not fit without them in any pool, however empty, does it use the nodes it avoids; while
        others would do and are merely busy it waits for those.
        """
        if not job.placement.avoid_nodes or self.of(job).possible:
            return job
        anywhere = replace(job, placement=replace(job.placement, avoid_nodes=()))
        self._by_identity[id(anywhere)] = self._by_wish(anywhere)
        self._eased.append(anywhere)
        return anywhere

    def _by_wish(self, job: QueuedJob) -> Request:
        key = request_key(job)
        found = self._by_key.get(key)
        if found is None:
            found = self._by_key[key] = self._new(job)
        return found

    def _new(self, job: QueuedJob) -> Request:
        ever = could_ever_fit(job, self._empty)
        accelerators = sum(group.per_member.accelerators * group.replicas for group in job.groups)
        found = Request(
            ever.matching,
            ever.choices,
            ever.possible,
            elastic=any(group.min_replicas < group.replicas for group in job.groups),
            asked={"asked_milli_gpu": accelerators, "members": sum(group.replicas for group in job.groups)},
        )
        for choice in ever.matching:
            found.needs.setdefault(choice.flavor.name, _need(job, choice.flavor.name))
        return found


def _need(job: QueuedJob, flavor: str) -> Need:
    wanted = {Resource.JOBS: 1, Resource.ACCELERATORS: 0, Resource.CPUS: 0, Resource.MEMORY: 0}
    for group in job.groups:
        total = group.per_member.times(group.replicas)
        wanted[Resource.ACCELERATORS] += total.accelerators
        wanted[Resource.CPUS] += total.cpus
        wanted[Resource.MEMORY] += total.memory
    return {flavor: wanted}
