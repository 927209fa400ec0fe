"""Whether a wish could ever be met: in pools with nothing in them and with every node back.

The one word on NoMatchingFlavor. The arbiter asks it in each cycle and the gate at submit, so that the two never
disagree. Looks at nothing that changes by itself: no quota, no load, no reach. Proves nothing about a pool that has
reported no node yet: such a pool may take anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.gang.fit import fit_across, fit_in_one
from policies.placement.filters import Candidate, candidates
from policies.placement.rooms import Room
from policies.snapshot import Flavor, Pool, QueuedJob


@dataclass(frozen=True, slots=True)
class Ever:
    """matching: pools that pass the filters. choices: those of them in which the whole gang would ever fit.

    possible: in one of the choices, or group by group in several of those that match.
    """

    matching: tuple[Candidate, ...]
    choices: tuple[Candidate, ...]
    possible: bool


class EmptyFederation:
    """All pools with nothing in them; rooms are built when they are first asked for.

    A fit borrows a room and gives it back, so only one thread at a time may ask.
    """

    def __init__(self, pools: Sequence[Pool], flavors: Mapping[str, Flavor]) -> None:
        self.pools = tuple(pools)
        self.flavors = flavors
        self._rooms: dict[str, Room] = {}

    def room(self, pool: Pool) -> Room:
        """The room of one pool."""
        found = self._rooms.get(pool.name)
        if found is None:
            found = self._rooms[pool.name] = Room.empty(pool)
        return found


def could_ever_fit(job: QueuedJob, empty: EmptyFederation) -> Ever:
    """Where the job would fit if nothing else were there."""
    matching = candidates(job, empty.pools, empty.flavors)
    choices = tuple(choice for choice in matching if _fits(job, choice, empty))
    possible = bool(choices)
    if not possible and len(job.groups) > 1:
        rooms = {choice.pool.name: empty.room(choice.pool) for choice in matching}
        possible = fit_across(job, rooms, matching) is not None
    return Ever(matching, choices, possible)


def _fits(job: QueuedJob, choice: Candidate, empty: EmptyFederation) -> bool:
    pool = choice.pool
    return not pool.nodes or fit_in_one(job, {pool.name: empty.room(pool)}, choice) is not None
