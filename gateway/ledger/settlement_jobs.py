"""What the end of an attempt means for its job: another attempt, the end, or, for an array, the end of one index.

Runs inside `gateway.ledger.settlement`, which holds the job's lock. Never touches leases.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import null, text
from sqlalchemy.orm import Session

from gateway.ledger import arrays
from gateway.ledger.codec import dumps, from_ms
from gateway.ledger.tables.work import AttemptRow, JobRow
from gateway.ledger.transition import move_job
from policies.reasons import Verdict, verdict
from policies.retry import Counters, Next, next_step
from policies.settings import HOUR_MS, PolicySettings
from policies.vocabulary import JobState, Reason

_MAX_AVOIDED: Final = 50  # of one attempt; more bad nodes than that are no longer a matter of one job
REFUSED_MS: Final = HOUR_MS
"""For how long a job stays away from a backend that does not serve its tenant, unless its document changes before.

Not for ever: what mends it may lie outside the document (a worker restarted as root), and a worker that had not read
the changed document yet may have refused once more.
"""


@dataclass(frozen=True, slots=True)
class JobEnd:
    """What settlement knows of the end."""

    reason: Reason
    verdict: Verdict
    ended_at: datetime
    now_ms: int
    exit_code: int | None
    message: str
    bad_nodes: tuple[str, ...] = ()
    credit_gpu_ms: int = 0
    refused_by: str = ""


def settle_job(session: Session, job: JobRow, attempt: AttemptRow, end: JobEnd, settings: PolicySettings) -> str:
    """Change the job (and the task of an array); the job's state afterwards."""
    if job.ended_at is not None:
        return job.state
    if end.refused_by:
        refusal = {"until_ms": end.now_ms + REFUSED_MS, "remedy": end.message}
        session.execute(_REFUSED, {"id": job.id, "backend": end.refused_by, "refusal": dumps(refusal)})
    if job.array_size is not None and attempt.chunk is not None:
        return _settle_tasks(session, job, attempt, end, settings)
    step = _step(job, end, settings)
    values = {**_counters(step), **_memory(session, job, attempt, end)}
    return _move(session, job, step.job_state, end, values, step.not_before_ms)


def goes_on(job: JobRow, end: JobEnd, settings: PolicySettings) -> bool:
    """Whether another attempt of the job (no array) follows this end."""
    return job.ended_at is None and _step(job, end, settings).job_state is JobState.QUEUED


def _step(job: JobRow, end: JobEnd, settings: PolicySettings) -> Next:
    return next_step(
        end.verdict,
        Counters(job.failures, job.preemptions, job.revocations),
        retry_max=_retry_max(job, end),
        now_ms=end.now_ms,
        settings=settings,
        cancel_wanted=job.want_cancel,
    )


def _move(  # noqa: PLR0917  (private, one caller's facts)
    session: Session,
    job: JobRow,
    to: JobState,
    end: JobEnd,
    values: Mapping[str, Any],
    not_before_ms: int | None = None,
    reason: str | None = None,
) -> str:
    data: dict[str, Any] = {"exit_code": end.exit_code}
    if end.credit_gpu_ms:
        data["credit_gpu_ms"] = end.credit_gpu_ms
    changes = dict(values)
    reason = end.reason.value if reason is None else reason
    if to is JobState.QUEUED:
        changes["pending"] = null()
        changes["not_before"] = None if not_before_ms is None else from_ms(not_before_ms)
    else:
        changes["exit_code"] = end.exit_code
        if to is JobState.CANCELLED:
            reason = Reason.USER_CANCELLED.value
    if not move_job(session, job.id, to, reason=reason, message=end.message, values=changes, data=data):
        raise AssertionError(f"job {job.id} was {job.state} under its lock and would not become {to}")
    return to


def _retry_max(job: JobRow, end: JobEnd) -> int:
    """How many failures are forgiven; none when the spec forgives only other events or its time for tries is over."""
    retry = job.request.get("retry") or {}
    allowed = retry.get("on_events") or []
    if allowed and end.reason.value not in allowed:
        return 0
    limit_s = retry.get("max_duration_s")
    began = job.started_at or job.submitted_at
    if limit_s is not None and end.ended_at - began >= timedelta(seconds=limit_s):
        return 0
    return int(retry.get("max") or 0)


def _counters(step: Next) -> dict[str, Any]:
    return {"failures": step.failures, "preemptions": step.preemptions, "revocations": step.revocations}


def _memory(session: Session, job: JobRow, attempt: AttemptRow, end: JobEnd) -> dict[str, Any]:
    """What the next attempt must know: nodes to avoid, and whether this one left anything newer to begin from."""
    found: dict[str, Any] = {}
    # The NEXT attempt avoids them, no later one (POLICIES §10): every end writes the list anew, most of them empty.
    avoided = list(dict.fromkeys(end.bad_nodes))[-_MAX_AVOIDED:] if end.verdict.avoid_node else []
    if avoided != list(job.request.get("avoid_nodes", ())):
        found["request"] = {**job.request, "avoid_nodes": avoided}
    found["no_progress"] = job.no_progress + 1 if _idle(session, attempt, end) else 0
    return found


def _idle(session: Session, attempt: AttemptRow, end: JobEnd) -> bool:
    """It said "saved, run me again" and had saved nothing."""
    if end.reason is not Reason.SAVED_AND_EXITED:
        return False
    index = -1 if attempt.chunk is None else attempt.chunk
    values = {"job": attempt.job_id, "index": index, "number": attempt.number}
    return not session.execute(_PROGRESSED, values).scalar_one()


def _settle_tasks(session: Session, job: JobRow, attempt: AttemptRow, end: JobEnd, settings: PolicySettings) -> str:
    """Each index of the chunk ends or is queued again by its own counters; the job ends when every index has."""
    first = attempt.first_index if attempt.first_index is not None else attempt.chunk
    last = attempt.last_index if attempt.last_index is not None else attempt.chunk
    assert first is not None
    assert last is not None
    session.execute(_MAKE_TASKS, {"job": job.id, "first": first, "last": last, "attempt": attempt.id})
    ended = failed = 0
    idle = _idle(session, attempt, end)
    avoided = list(dict.fromkeys(end.bad_nodes))[-_MAX_AVOIDED:] if end.verdict.avoid_node else []
    step: Next | None = None
    for task in session.execute(_TASKS, {"job": job.id, "first": first, "last": last}).all():
        step = next_step(
            end.verdict,
            Counters(task.failures, job.preemptions, job.revocations),
            retry_max=_retry_max(job, end),
            now_ms=end.now_ms,
            settings=settings,
            cancel_wanted=job.want_cancel or task.want_cancel,
        )
        over = step.job_state is not JobState.QUEUED
        ended += over
        failed += over and step.job_state is JobState.FAILED
        session.execute(
            _TASK,
            {
                "job": job.id,
                "index": task.index,
                "state": step.job_state.value,
                "reason": end.reason.value,
                "exit_code": end.exit_code if over else None,
                "failures": step.failures,
                "no_progress": task.no_progress + 1 if idle else 0,
                "not_before": None if over or step.not_before_ms is None else from_ms(step.not_before_ms),
                "avoid": dumps(avoided) if avoided and not over else None,
            },
        )
    values = {
        "array_ended": job.array_ended + ended,
        "array_failed": job.array_failed + failed,
        **({} if step is None else {"preemptions": step.preemptions, "revocations": step.revocations}),
    }
    return _array_state(session, job, end, values)


def _array_state(session: Session, job: JobRow, end: JobEnd, values: Mapping[str, Any]) -> str:
    live = session.execute(_LIVE, {"job": job.id}).scalar_one()
    assert job.array_size is not None
    result = arrays.end_of(
        session,
        job.id,
        job.request,
        size=job.array_size,
        ended=values["array_ended"],
        failed=values["array_failed"],
        cancelled=job.want_cancel,
    )
    if result is None and job.want_cancel and not live:
        result = JobState.CANCELLED  # the indexes that never began will not
    if result is None and not live:
        # How one index ended is no word about the others, which wait.
        ended = f"{values['array_ended']} of {job.array_size} indexes have ended"
        return _move(session, job, JobState.QUEUED, replace(end, message=ended), values, reason="")
    if result is None:
        session.execute(_COUNT, {"id": job.id, **values})
        return job.state
    if result is JobState.CANCELLED:
        arrays.cancel_rest(session, job.id)
    reason, code = arrays.words_of_end(session, job.id, result)
    message = verdict(reason).words
    return _move(session, job, result, replace(end, reason=reason, exit_code=code, message=message), values)


_PROGRESSED = text(
    """
    SELECT EXISTS (SELECT FROM checkpoints
        WHERE job_id = :job AND array_index = :index AND attempt_number = :number AND verified >= 1)
    """
)
_MAKE_TASKS = text(
    """
    INSERT INTO tasks (job_id, index, state, attempts, attempt_id)
    SELECT :job, n, 'ADMITTED', 1, :attempt FROM generate_series(CAST(:first AS int), CAST(:last AS int)) AS n
    ON CONFLICT DO NOTHING
    """
)
_TASKS = text(
    """
    SELECT index, failures, no_progress, want_cancel FROM tasks
    WHERE job_id = :job AND index BETWEEN :first AND :last AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
    ORDER BY index FOR UPDATE
    """
)
_TASK = text(
    """
    UPDATE tasks SET state = :state, reason = :reason, exit_code = :exit_code, failures = :failures,
        no_progress = :no_progress, not_before = :not_before, avoid_nodes = CAST(:avoid AS jsonb)
    WHERE job_id = :job AND index = :index
    """
)
_LIVE = text("SELECT count(*) FROM attempts WHERE job_id = :job AND ended_at IS NULL")
_COUNT = text(
    """
    UPDATE jobs SET array_ended = :array_ended, array_failed = :array_failed, version = version + 1,
        preemptions = coalesce(CAST(:preemptions AS int), preemptions),
        revocations = coalesce(CAST(:revocations AS int), revocations)
    WHERE id = :id
    """
)
_REFUSED = text(
    """
    UPDATE jobs SET request = jsonb_set(
        jsonb_set(request, '{refused_by}', coalesce(request->'refused_by', CAST('{}' AS jsonb))),
        ARRAY['refused_by', :backend],
        CAST(:refusal AS jsonb) || jsonb_build_object(
            'version', (SELECT version FROM backends WHERE name = :backend)
        )
    ) WHERE id = :id
    """
)
