"""What an order may look at beside the jobs themselves, and the name of an order policy's function."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from policies.settings import PolicySettings
from policies.snapshot import QueuedJob
from policies.vocabulary import PriorityClass


@dataclass(frozen=True, slots=True)
class Standing:
    """qad_rank: tenants by their QAD, 0 for the one furthest below its guarantee (equal QAD, equal rank).
    running: live attempts per (tenant, class, user). klass: the class in force per job where it is not its own.
    """

    settings: PolicySettings
    now_ms: int
    qad_rank: Mapping[str, int]
    running: Mapping[tuple[str, PriorityClass, str], int]
    klass: Mapping[str, PriorityClass]

    def class_of(self, job: QueuedJob) -> PriorityClass:
        """The class in force."""
        return self.klass.get(job.id, job.klass) if self.klass else job.klass


Key = tuple[int | str, ...]
Ranked = tuple[Key, QueuedJob]
Order = Callable[[Sequence[QueuedJob], Standing], list[Ranked]]
"""Jobs in the order in which they are considered, each with its key; the same jobs in any order give the same list."""
