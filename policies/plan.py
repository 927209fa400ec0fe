"""`plan()`: one cycle's whole answer. Every queued job gets exactly one of Admit, Wait, Reject; a running one gets a
Wait where a size that was asked for has to wait.

Pure: the same snapshot in any order, the same settings and the same `now_ms` give the same plan. It applies nothing.
"""

from policies.admission import consider
from policies.cycle import State, standing
from policies.decisions import Plan
from policies.elastic.resize import resize
from policies.gates import before_capacity, never
from policies.registry import order_named
from policies.settings import PolicySettings
from policies.snapshot import QueuedJob, Snapshot


def plan(snapshot: Snapshot, settings: PolicySettings, now_ms: int) -> Plan:
    """Decide one cycle over a consistent snapshot at `now_ms` (epoch milliseconds)."""
    state = State(snapshot, settings, now_ms)
    jobs = [state.requests.eased(job) for job in snapshot.queued if not _set_aside(job, state)]
    ranked = order_named(settings.order)(jobs, standing(state, jobs))
    for key, job in sorted(ranked, key=lambda found: not found[1].first_in_line):
        consider(job, key, state)
    resize(jobs, state)
    return Plan(
        acts=tuple(state.acts),
        rejects=tuple(sorted(state.rejects, key=lambda found: (found.job, found.chunk or ()))),
        waits=tuple(sorted(state.waits, key=lambda found: (found.job, found.chunk or ()))),
        policy=f"{settings.order}@{settings.version}",
    )


def _set_aside(job: QueuedJob, state: State) -> bool:
    """Jobs that capacity has nothing to say about."""
    rejected = never(job, state.now_ms)
    if rejected is not None:
        state.rejects.append(rejected)
        return True
    active = not state.inactive or not _inactive(job.tenant, state)
    waits = before_capacity(job, active=active)
    if waits is not None:
        state.waits.append(waits)
    return waits is not None


def _inactive(tenant: str, state: State) -> bool:
    while tenant:
        if tenant in state.inactive:
            return True
        tenant = tenant.rpartition("/")[0]
    return False
