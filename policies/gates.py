"""What keeps a job from being considered at all, whatever is free: tenants, holds, dependencies, instants, deadlines.

Also the words for every token that a plan may wait with. Looks at no capacity.
"""

from collections.abc import Mapping
from typing import Final

from policies.decisions import Numbers, Reject, Wait, Why
from policies.order.default import queued_since
from policies.snapshot import QueuedJob
from policies.vocabulary import Pending, Reason

REMEDIES: Final[Mapping[Pending, str]] = {
    Pending.DEACTIVATED: "an operator activates the tenant",
    Pending.ON_HOLD: "`tidegate unhold` releases it",
    Pending.MISCONFIGURED: "give the job at least one group with at least one replica",
    Pending.NO_MATCHING_FLAVOR: "ask for an accelerator, size, zone, price or placement that some pool offers",
    Pending.BUDGET_EXHAUSTED: "wait for the next period, have the budget raised, or set a shorter max_duration",
    Pending.TENANT_LIMIT: "wait for jobs of the tenant to end, or ask who sets its quota to raise max",
    Pending.WAITING_FOR_QUOTA: "wait for borrowed quota to come back, or ask for a higher min",
    Pending.TOPOLOGY_UNAVAILABLE: "ask for fewer accelerators per member, or wait until a node is free of small jobs",
    Pending.NO_SPOT_CAPACITY: "wait, or allow on_demand capacity",
    Pending.WAITING_FOR_CAPACITY: "wait for running jobs to end, or allow more flavors",
    Pending.WAITING_FOR_SIZE: "wait for the size of its newest checkpoint, or save one that is reshardable next time",
    Pending.WAITING_FOR_DEPENDENCY: "the jobs named in `after` have to end first",
    Pending.COOLING_DOWN: "it is tried again at the estimated start",
    Pending.BEHIND_RESERVATION: "set a shorter max_duration, so that it ends before the job in front is due",
    Pending.BACKEND_UNREACHABLE: "an operator looks at the backend, or allow another",
}


def wait(
    job: QueuedJob, pending: Pending, numbers: Numbers, *, blocker: str = "", starts_ms: int | None = None
) -> Wait:
    """A Wait with the token's words."""
    why = Why(pending.value, numbers, REMEDIES.get(pending, ""))
    return Wait(job.id, job.version, pending, why, blocker, starts_ms, job.chunk)


def nowhere(job: QueuedJob, asked: Numbers) -> Wait:
    """No pool could ever take the job: because a backend does not serve its tenant, or because none matches."""
    if not job.placement.refused_by:
        return wait(job, Pending.NO_MATCHING_FLAVOR, asked)
    backend, remedy = job.placement.refused_by[0]
    why = Why(Pending.MISCONFIGURED.value, {**asked, "backend": backend}, remedy)
    return Wait(job.id, job.version, Pending.MISCONFIGURED, why, backend, None, job.chunk)


def reject(job: QueuedJob, reason: Reason, numbers: Numbers, remedy: str) -> Reject:
    """A Reject with its words."""
    return Reject(job.id, job.version, reason, Why(reason.value, numbers, remedy), job.chunk)


def before_capacity(job: QueuedJob, *, active: bool) -> Wait | None:
    """The tokens that are worse than any about capacity."""
    if not active:
        return wait(job, Pending.DEACTIVATED, {"tenant": job.tenant})
    if job.on_hold:
        return wait(job, Pending.ON_HOLD, {})
    if not job.groups or any(group.replicas < 1 for group in job.groups):
        return wait(job, Pending.MISCONFIGURED, {"groups": len(job.groups)})
    return None


def not_yet(job: QueuedJob, now_ms: int) -> Wait | None:
    """Budgets, dependencies and instants: the job could be placed, but its time has not come.

    A job that no budget pays for takes no room in a plan from one that could run.
    """
    if job.over_budget is not None:
        return wait(job, Pending.BUDGET_EXHAUSTED, job.over_budget, blocker=str(job.over_budget.get("tenant", "")))
    if job.waits_for:
        return wait(job, Pending.WAITING_FOR_DEPENDENCY, {"unfinished": len(job.waits_for)}, blocker=min(job.waits_for))
    if job.not_before_ms > now_ms:
        return wait(job, Pending.COOLING_DOWN, {"not_before_ms": job.not_before_ms}, starts_ms=job.not_before_ms)
    return None


def never(job: QueuedJob, now_ms: int) -> Reject | None:
    """Jobs that can no longer end as they asked, whatever is free."""
    if job.dependency_impossible:
        return reject(job, Reason.DEPENDENCY_IMPOSSIBLE, {}, "submit it again without the job it waits for")
    if job.deadline_ms is None:
        return None
    # Of a job that has run before, the estimate no longer says what is left.
    first = job.queued_ms is None or job.queued_ms == job.submitted_ms
    still_ms = job.estimated_ms if first and job.estimated_ms is not None else 0
    if now_ms + still_ms > job.deadline_ms:
        return reject(
            job,
            Reason.DEADLINE_INFEASIBLE,
            {"deadline_ms": job.deadline_ms, "estimated_ms": still_ms, "late_ms": now_ms + still_ms - job.deadline_ms},
            "submit it again with a later deadline, or with more accelerators",
        )
    return None


def too_late(job: QueuedJob, now_ms: int) -> Reject | None:
    """A job that would wait on, past its `sla.max_queue`."""
    if job.max_queue_ms is None:
        return None
    waited_ms = now_ms - max(queued_since(job), job.not_before_ms)
    if waited_ms <= job.max_queue_ms:
        return None
    return reject(
        job,
        Reason.QUEUE_SLO,
        {"waited_ms": waited_ms, "max_queue_ms": job.max_queue_ms},
        "submit it again with a longer sla.max_queue, a higher class or more flavors",
    )
