"""One Act of a plan, applied: a gang's admission, or a waiter with its victims, whole or not at all.

The caller gives it a savepoint and holds the locks. Every guard that meets zero rows means that the world has moved on
since the snapshot: `DroppedError`, and the next cycle decides again. Never decides anything itself.
"""

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast
from uuid import UUID, uuid4

from sqlalchemy import CursorResult, text
from sqlalchemy.orm import Session

from backends.naming import attempt_id
from gateway.ledger import displace, events, leases, moving, outbox, resizing, transition
from gateway.ledger.codec import dumps, placed_json
from gateway.ledger.decisions import Decided
from gateway.ledger.limits import LimitExceeded
from gateway.ledger.queue import parse_key
from policies.decisions import Act, Admit, Move, Preempt, Resize, Why
from policies.vocabulary import JobState, Pending, PriorityClass, StopCause

STALE: Final = "Stale"


class DroppedError(Exception):
    """This act does not hold any more; `reason` is a token."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class LockedJob:
    """A job's row, locked. `withheld`: cancelled or on hold."""

    id: UUID
    tenant_id: int
    klass: str
    state: str
    version: int
    attempts: int
    request: Mapping[str, Any]
    array_size: int | None
    withheld: bool


@dataclass(slots=True)
class Applied:
    """What has been applied so far in this commit."""

    admitted: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    attempts: dict[str, str] = field(default_factory=dict)  # id in the queue -> attempt made
    decided: list[Decided] = field(default_factory=list)


# Chunks of one array share the job's row, which may be live already.
_COUNT = text("UPDATE jobs SET attempts = :attempts, version = version + 1 WHERE id = :id AND version = :version")
_TASK = text(
    """
    INSERT INTO tasks (job_id, index, state, reason, attempts, failures, want_cancel, attempt_id)
    VALUES (:job_id, :chunk, 'ADMITTED', '', 1, 0, false, '')
    ON CONFLICT (job_id, index) DO UPDATE SET state = 'ADMITTED', attempts = tasks.attempts + 1
        WHERE tasks.state = 'QUEUED' AND NOT tasks.want_cancel
    RETURNING attempts
    """
)
_TASK_ATTEMPT = text("UPDATE tasks SET attempt_id = :attempt_id WHERE job_id = :job_id AND index = :chunk")
_ATTEMPT = text(
    """
    INSERT INTO attempts (id, job_id, number, chunk, first_index, last_index, state, version, placed, lease_id, handles,
        started_groups, resume_from, stop_for, stop_credit, checkpoint_asked, observed, why, progress, reason, codes,
        message, gpu_ms, money, restart_ms, created_at)
    SELECT :id, jobs.id, :number, :chunk, :chunk, :chunk, 'RESERVED', 1, CAST(:placed AS jsonb), :lease_id, '{}', '[]',
        '', '', false, jobs.want_checkpoint, '{}', CAST(:why AS jsonb), '{}', '', '{}', '', 0, 0, 0, now()
    FROM jobs WHERE jobs.id = :job_id
    """
)
# A displaced waiter has nothing to save, and its lease is void already: it is told at once.
_STOP = text(
    """
    UPDATE attempts SET stop_cause = :cause, stop_grace_s = :grace_s, stop_asked_at = now(), stop_for = :stop_for,
        stop_credit = :credit, version = attempts.version + 1
    FROM jobs
    WHERE attempts.id = :id AND attempts.version = :version AND attempts.ended_at IS NULL
        AND attempts.stop_cause IS NULL AND jobs.id = attempts.job_id AND NOT jobs.want_cancel
        AND NOT EXISTS (SELECT FROM tasks WHERE tasks.job_id = attempts.job_id AND tasks.want_cancel
            AND tasks.index = attempts.first_index AND attempts.first_index = attempts.last_index)
    RETURNING attempts.job_id, jobs.tenant_id
    """
)
# Told once the waiter is placed (`gateway.ledger.placing`). What was due for a waiter that is gone binds nobody; what
# is due or told for one that lives passes on with the same cause.
_DUE = text(
    """
    UPDATE attempts SET stop_due = CAST(:due AS jsonb), stop_for = :stop_for, version = attempts.version + 1
    FROM jobs
    WHERE attempts.id = :id AND attempts.version = :version AND attempts.ended_at IS NULL AND jobs.id = attempts.job_id
        AND CASE WHEN :again THEN coalesce(attempts.stop_cause, attempts.stop_due->>'cause') = :cause
            ELSE attempts.stop_cause IS NULL AND NOT jobs.want_cancel
                AND NOT EXISTS (SELECT FROM tasks WHERE tasks.job_id = attempts.job_id AND tasks.want_cancel
                    AND tasks.index = attempts.first_index AND attempts.first_index = attempts.last_index)
                AND (attempts.stop_due IS NULL OR NOT EXISTS (SELECT FROM leases
                    WHERE leases.attempt_id = attempts.stop_for AND leases.state = 'contingent')) END
    RETURNING attempts.job_id, jobs.tenant_id
    """
)


def apply(session: Session, act: Act, jobs: dict[UUID, LockedJob], done: Applied) -> None:
    """All of the act, or DroppedError: the caller rolls its savepoint back. `jobs`, `done` change at the end only."""
    mine, rows = Applied(), ChainMap[UUID, LockedJob]({}, jobs)
    if (begun := displace.void_promises(session, act.preempts)) is not None:
        raise DroppedError(STALE, f"attempt {begun} waits for nobody any more")
    for resize in act.resizes:  # first: what they keep is no room for a waiter that counts on them
        _resize(session, resize, mine)
    for admit in act.admits:
        _admit(session, admit, rows, mine)
    for preempt in act.preempts:
        _preempt(session, preempt, mine)
    displace.spare_the_rest(session, act.preempts)
    for move in act.moves:
        _move(session, move, rows, mine)
    for resize in act.resizes:
        if resize.waiter:
            resizing.count_on(session, resize.attempt, mine.attempts[resize.waiter])
    outbox.add(session, outbox.START, list(mine.attempts.values()))
    jobs.update(rows.maps[0])
    done.admitted += mine.admitted
    done.preempted += mine.preempted
    done.attempts.update(mine.attempts)
    done.decided += mine.decided


def _admit(session: Session, admit: Admit, rows: ChainMap[UUID, LockedJob], mine: Applied) -> None:
    job_id, chunk = parse_key(admit.job)
    job = _admit_job(session, admit, rows[job_id], chunk)
    number = job.attempts if chunk is None else _next_try(session, job_id, chunk)
    made = attempt_id(job_id, number, chunk)
    lease_id = uuid4()
    _make_attempt(session, admit, made, number, lease_id)
    leases.take(
        session,
        lease_id=lease_id,
        attempt_id=made,
        job_id=job_id,
        tenant_id=job.tenant_id,
        placed=admit.placed,
        klass=admit.klass or PriorityClass(job.klass),
        contingent_on=admit.contingent_on,
        loans=admit.loans,
        max_duration_ms=job.request.get("max_duration_ms"),
    )
    data = {"numbers": dict(admit.why.numbers), "contingent_on": list(admit.contingent_on)}
    events.insert(session, job_id, job.tenant_id, "RESERVED", attempt_id=made, reason=admit.why.token, data=data)
    rows[job_id] = job
    mine.admitted.append(admit.job)
    mine.attempts[admit.job] = made
    mine.decided.append(Decided("Admit", job_id, made, admit.why, {"placed": placed_json(admit.placed)}))


def _admit_job(session: Session, admit: Admit, job: LockedJob, chunk: int | None) -> LockedJob:
    """The job's own step. An earlier chunk of this very commit has raised the version; the lock says it was us."""
    stale = job.version != admit.version if chunk is None else job.version < admit.version
    if stale or job.withheld or (chunk is None) != (job.array_size is None):
        raise DroppedError(STALE, f"job {admit.job} has changed since the snapshot")
    attempts = job.attempts + 1
    if job.state == JobState.QUEUED:
        waiting = _waiting(admit) if admit.contingent_on else None
        moved = transition.move_job(
            session,
            job.id,
            JobState.ADMITTED,
            version=job.version,
            values={"attempts": attempts, "pending": waiting},
            data={"token": admit.why.token, "numbers": dict(admit.why.numbers)},
        )
    else:
        live = chunk is not None and job.state in {JobState.ADMITTED, JobState.RUNNING}
        values = {"id": job.id, "version": job.version, "attempts": attempts}
        moved = live and cast("CursorResult[Any]", session.execute(_COUNT, values)).rowcount == 1
    if not moved:
        raise DroppedError(STALE, f"job {admit.job} is {job.state}, no longer waiting")
    state = JobState.ADMITTED if job.state == JobState.QUEUED else job.state
    return replace(job, state=state, version=job.version + 1, attempts=attempts)


def _make_attempt(session: Session, admit: Admit, made: str, number: int, lease_id: UUID) -> None:
    job_id, chunk = parse_key(admit.job)
    session.execute(
        _ATTEMPT,
        {
            "id": made,
            "job_id": job_id,
            "number": number,
            "chunk": chunk,
            "placed": dumps(placed_json(admit.placed)),
            "lease_id": lease_id,
            "why": dumps({"token": admit.why.token, "numbers": dict(admit.why.numbers), "remedy": admit.why.remedy}),
        },
    )
    if chunk is not None:
        session.execute(_TASK_ATTEMPT, {"job_id": job_id, "chunk": chunk, "attempt_id": made})


def _next_try(session: Session, job_id: UUID, chunk: int) -> int:
    number = session.execute(_TASK, {"job_id": job_id, "chunk": chunk}).scalar_one_or_none()
    if number is None:
        raise DroppedError(STALE, f"index {chunk} of job {job_id} is not waiting any more")
    return int(number)


def _waiting(admit: Admit) -> dict[str, Any]:
    return {
        "token": Pending.WAITING_FOR_PREEMPTION.value,
        "numbers": {"victims": len(admit.contingent_on), **dict(admit.why.numbers)},
        "remedy": admit.why.remedy,
        "blocker": admit.contingent_on[0],
        "starts_at": None,
    }


def _preempt(session: Session, preempt: Preempt, mine: Applied) -> None:
    stop_for = mine.attempts.get(preempt.waiter, preempt.waiter)
    stop = _stop if preempt.displaced else _due
    job_id = stop(session, preempt, preempt.cause, stop_for)
    data = {"waiter": preempt.waiter, "cause": preempt.cause.value, "grace_ms": preempt.grace_ms}
    mine.preempted.append(preempt.attempt)
    mine.decided.append(Decided("Preempt", job_id, preempt.attempt, preempt.why, {**data, "credit": preempt.credit}))


def _move(session: Session, move: Move, rows: ChainMap[UUID, LockedJob], mine: Applied) -> None:
    """The attempt leaves, and its job's next one has the other place. Where the ledger does not grant that (a limit
    that the plan does not know) the waiter is not to suffer: the victim is stopped as without the place.
    """
    job_id, made, problem = UUID(move.job), None, ""
    try:
        with session.begin_nested():
            if (reserved := moving.reserve(session, move, rows[job_id])) is not None:
                made, rows[job_id] = reserved
    except LimitExceeded as error:
        problem = str(error)
    stop_for = mine.attempts.get(move.waiter, move.waiter)
    _due(session, move, move.instead if made is None else StopCause.MOVE, stop_for)
    mine.preempted.append(move.attempt)
    data = {"waiter": move.waiter, "placed": placed_json(move.placed), "credit": move.credit, "next": made}
    if made is not None:
        mine.attempts[move.job] = made
    why = Why(move.why.token, move.why.numbers, problem or move.why.remedy)
    mine.decided.append(Decided("Move" if made else "Preempt", job_id, move.attempt, why, data))


def _due(session: Session, wish: Preempt | Move, cause: StopCause, stop_for: str) -> UUID:
    due = {"cause": cause.value, "grace_s": -(-wish.grace_ms // 1000), "credit": wish.credit}
    row = session.execute(
        _DUE,
        {
            "id": wish.attempt,
            "version": wish.version,
            "cause": cause.value,
            "due": dumps(due),
            "stop_for": stop_for,
            "again": isinstance(wish, Preempt) and wish.again,
        },
    ).one_or_none()
    if row is None:
        raise DroppedError(STALE, f"attempt {wish.attempt} has changed since the snapshot")
    return UUID(str(row.job_id))


def _stop(session: Session, wish: Preempt, cause: StopCause, stop_for: str) -> UUID:
    row = session.execute(
        _STOP,
        {
            "id": wish.attempt,
            "version": wish.version,
            "cause": cause.value,
            "grace_s": -(-wish.grace_ms // 1000),
            "stop_for": stop_for,
            "credit": wish.credit,
        },
    ).one_or_none()
    if row is None:
        raise DroppedError(STALE, f"attempt {wish.attempt} has changed since the snapshot")
    data = {"grace_ms": wish.grace_ms, "for": stop_for, "numbers": dict(wish.why.numbers)}
    events.insert(
        session, row.job_id, row.tenant_id, "StopAsked", attempt_id=wish.attempt, reason=cause.value, data=data
    )
    outbox.add(session, outbox.NUDGE, [wish.attempt])
    return UUID(str(row.job_id))


def _resize(session: Session, resize: Resize, mine: Applied) -> None:
    try:
        with session.begin_nested():
            row = resizing.decide(session, resize)
    except LimitExceeded as error:
        resizing.refused(session, resize, error)
        why = Why("Refused", resize.why.numbers, str(error))
        mine.decided.append(Decided("Resize", None, resize.attempt, why, applied=False))
        return
    if row is None:
        raise DroppedError(STALE, f"attempt {resize.attempt} has changed since the snapshot")
    data = {"size": {resize.group: resize.replicas}, "in_place": resize.in_place}
    mine.decided.append(Decided("Resize", row.job_id, resize.attempt, resize.why, data))
