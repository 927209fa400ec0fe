"""`?dry_run=true`: what the arbiter would do with a job now. The real plan on a real snapshot; stores nothing."""

from dataclasses import replace
from uuid import UUID, uuid4

from sqlalchemy.orm import Session

from gateway.api.deps import Deps
from gateway.api.problems import ProblemError
from gateway.ledger import snapshot
from gateway.ledger.codec import queued_job, request_of
from gateway.ledger.queue import QueueMemory, chunk_key
from gateway.queries import jobs
from policies.decisions import Plan, Why
from policies.snapshot import QueuedJob
from tidegate.wire import job as wire
from tidegate.wire.spec import JobSpec


def dry_run_of(deps: Deps, spec: JobSpec, *, tenant: str, principal: str) -> wire.DryRun:
    """One cycle's plan with the job added at the end of the queue. Of an array, its first task."""
    if deps.plan is None:
        raise ProblemError(501, "no-planner", "this process has no planner", remedy="ask another replica")
    with Session(deps.engine) as session:
        cycle = snapshot.read(session, QueueMemory(), default_restart_ms=deps.settings.default_restart_s * 1000)
        job = replace(_queued(deps, spec, tenant, principal), waits_for=_open(session, spec))
    with_job = replace(cycle.snapshot, queued=(*cycle.snapshot.queued, job))
    return _answer(deps.plan(with_job, cycle.now_ms), job.id)


def _queued(deps: Deps, spec: JobSpec, tenant: str, principal: str) -> QueuedJob:
    job_id = uuid4()
    row = {
        "id": job_id,
        "path": tenant,
        "principal": principal,
        "kind": spec.kind.value,
        "klass": spec.priority.value,
        "submitted_at": deps.clock(),
        "version": 1,
        "request": request_of(spec),
        "want_size": None,
        "not_before": None,
        "want_hold": False,
    }
    if spec.array is None:
        return queued_job(row)
    return queued_job(row, chunk=(0, 0), key=chunk_key(job_id, 0))


def _open(session: Session, spec: JobSpec) -> tuple[str, ...]:
    named = {*spec.after.ok, *spec.after.any, *spec.after.not_ok}
    states = {name: jobs.state_of(session, UUID(name)) for name in sorted(named)}
    return tuple(name for name, state in states.items() if state is not None and not state.ended)


def _answer(plan: Plan, job: str) -> wire.DryRun:
    for act in plan.acts:
        for admit in act.admits:
            if admit.job == job:
                placed = tuple(
                    wire.PlacedGroup(group=p.group, pool=p.pool, flavor=p.flavor, replicas=p.replicas, nodes=p.nodes)
                    for p in admit.placed
                )
                preempts = tuple(preempt.attempt for preempt in act.preempts)
                return wire.DryRun(decision="Admit", why=_why(admit.why), placed=placed, preempts=preempts)
    for reject in plan.rejects:
        if reject.job == job:
            return wire.DryRun(decision="Reject", why=_why(reject.why))
    for wait in plan.waits:
        if wait.job == job:
            return wire.DryRun(decision="Wait", why=_why(wait.why).model_copy(update={"blocker": wait.blocker}))
    return wire.DryRun(decision="Wait", why=wire.Why(token="PendingEvaluation"))  # noqa: S106  (a word, no secret)


def _why(why: Why) -> wire.Why:
    return wire.Why(token=why.token, numbers=dict(why.numbers), remedy=why.remedy)
