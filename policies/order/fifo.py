"""First in, first out inside each class, without ageing, shares or turns."""

from collections.abc import Sequence

from policies.order.standing import Ranked, Standing
from policies.snapshot import QueuedJob

ELEMENTS = ("priority", "submitted", "id")
"""The elements of the key by name (`policies.registry.rank_factor`)."""


def order(jobs: Sequence[QueuedJob], standing: Standing) -> list[Ranked]:
    """By class, then submit time, then id."""
    ranked: list[Ranked] = [
        ((-standing.class_of(job).base, job.submitted_ms, job.id, job.chunk[0] if job.chunk else 0), job)
        for job in jobs
    ]
    ranked.sort(key=lambda pair: pair[0])
    return ranked
