"""The default order: class with ageing, the tenant's QAD, the user's turn, the kind's own value, age, id."""

from collections.abc import Sequence
from typing import Final

from policies.order.standing import Key, Ranked, Standing
from policies.settings import HOUR_MS, PolicySettings
from policies.snapshot import QueuedJob
from policies.vocabulary import PriorityClass

ELEMENTS = ("priority", "qad", "turn", "kind", "submitted", "id")
"""The elements of the key by name (`policies.registry.rank_factor`)."""

_NEVER: Final = 1 << 62
_BASES: Final = {klass: klass.base for klass in PriorityClass}


def order(jobs: Sequence[QueuedJob], standing: Standing) -> list[Ranked]:
    """POLICIES §1's key, ascending. The turn is the user's n-th job in its tenant and class, running ones counted."""
    turns, settings, now_ms = dict(standing.running), standing.settings, standing.now_ms
    ranked: list[Ranked] = []
    # By their own values first, so that a user's turns follow them; the position keeps jobs from being compared.
    for own, _, job in sorted((_own(job), at, job) for at, job in enumerate(jobs)):
        klass = standing.class_of(job)
        whose = (job.tenant, klass, job.user)
        turn = turns.get(whose, 0)
        turns[whose] = turn + 1
        priority = -(_BASES[klass] + ageing(job, klass, settings, now_ms))
        kind = own[0] if klass is not PriorityClass.P0 else _deadline(job)
        ranked.append(((priority, standing.qad_rank.get(job.tenant, 0), turn, kind, *own[1:]), job))
    ranked.sort(key=_key)
    return ranked


def _deadline(job: QueuedJob) -> int:
    """Two P0 that cannot both run: the earliest deadline after the QAD, then age (POLICIES §4)."""
    return _NEVER if job.deadline_ms is None else job.deadline_ms


def ageing(job: QueuedJob, klass: PriorityClass, settings: PolicySettings, now_ms: int) -> int:
    """+10 an hour in steps of 100, at most 900, so that a class never overtakes the next. P0 is first already."""
    if klass is PriorityClass.P0:
        return 0
    waited_ms = max(0, now_ms - queued_since(job))
    points = min(settings.ageing_cap, waited_ms * settings.ageing_per_hour // HOUR_MS)
    return points - points % settings.ageing_step


def queued_since(job: QueuedJob) -> int:
    """When the job's present wait began."""
    return job.submitted_ms if job.queued_ms is None else job.queued_ms


def _own(job: QueuedJob) -> tuple[int, int, str, int]:
    return (job.order_value, job.submitted_ms, job.id, job.chunk[0] if job.chunk else 0)


def _key(ranked: Ranked) -> Key:
    return ranked[0]
