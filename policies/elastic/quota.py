"""The largest size of a queued elastic job that quota allows. Asks the trees; counts nothing."""

from dataclasses import replace

from policies.cycle import State
from policies.snapshot import QueuedJob


def largest_within(job: QueuedJob, flavor: str, state: State) -> QueuedJob | None:
    """The job with its elastic groups as many steps above min as quota allows in this flavor; None: not even min."""
    steps = max((group.replicas - group.min_replicas) // group.step for group in job.groups)
    low, high = -1, steps  # within at low (−1: nowhere yet), not within at high: the whole job was refused
    while high - low > 1:
        middle = (low + high) // 2
        sized = _sized(job, middle)
        within = state.quotas.ask(job.tenant, state.requests.of(sized).needs[flavor])[0].ok
        low, high = (middle, high) if within else (low, middle)
    return None if low < 0 else _sized(job, low)


def _sized(job: QueuedJob, steps: int) -> QueuedJob:
    groups = tuple(
        replace(group, replicas=max(1, min(group.replicas, group.min_replicas + steps * group.step)))
        for group in job.groups
    )
    return replace(job, groups=groups)
