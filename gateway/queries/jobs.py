"""Jobs, attempts, tasks and events as users see them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, Select, select, tuple_
from sqlalchemy.orm import Session
from sqlmodel import col

from gateway.ledger.tables.access import Tenant
from gateway.ledger.tables.accounts import CreditRow
from gateway.ledger.tables.work import AttemptRow, Event, JobRow, TaskRow
from gateway.queries.scope import Scope
from tidegate.wire import job as wire
from tidegate.wire.enums import AttemptState, JobKind, JobState, PriorityClass
from tidegate.wire.spec import JobSpec


def _visible(scope: Scope) -> Select[JobRow, str]:
    return select(JobRow, col(Tenant.path)).join(Tenant, col(Tenant.id) == col(JobRow.tenant_id)).where(scope.where())


def find(session: Session, scope: Scope, job_id: UUID) -> tuple[JobRow, str] | None:
    """The row and its tenant's path, if it is there and may be seen."""
    found = session.execute(_visible(scope).where(col(JobRow.id) == job_id)).first()
    return (found[0], found[1]) if found else None


def page(
    session: Session,
    scope: Scope,
    *,
    states: Sequence[str] = (),
    labels: dict[str, str] | None = None,
    after: tuple[datetime, UUID] | None = None,
    limit: int,
) -> list[Row[JobRow, str]]:
    """Up to `limit` jobs after the key, ordered by (submitted_at, id). One row is one job, however many attempts."""
    query = _visible(scope)
    if states:
        query = query.where(col(JobRow.state).in_(states))
    if labels:
        query = query.where(col(JobRow.labels).contains(labels))
    if after is not None:
        query = query.where(tuple_(col(JobRow.submitted_at), col(JobRow.id)) > tuple_(*after))
    query = query.order_by(col(JobRow.submitted_at), col(JobRow.id)).limit(limit)
    return list(session.execute(query).all())


def why(pending: dict[str, Any] | None) -> wire.Why | None:
    """The stored Wait as people read it."""
    return wire.Why.model_validate(pending) if pending and pending.get("token") else None


def _fields(row: JobRow, tenant: str) -> dict[str, Any]:
    return {
        "id": str(row.id),
        "name": row.name,
        "tenant": tenant,
        "principal": row.principal,
        "kind": JobKind(row.kind),
        "priority": PriorityClass(row.klass),
        "state": JobState(row.state),
        "reason": row.reason,
        "message": row.message,
        # Of a running job: a size that was asked for, or indexes of an array, that wait.
        "pending": why(row.pending) if row.state in {"QUEUED", "ADMITTED", "RUNNING"} else None,
        "exit_code": row.exit_code,
        "attempts": row.attempts,
        "failures": row.failures,
        "preemptions": row.preemptions,
        "revocations": row.revocations,
        "on_hold": row.want_hold,
        "array_size": row.array_size,
        "array_ended": row.array_ended,
        "array_failed": row.array_failed,
        "labels": row.labels,
        "submitted_at": row.submitted_at,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "version": row.version,
    }


def view(row: JobRow, tenant: str) -> wire.Job:
    """As lists show it."""
    return wire.Job(**_fields(row, tenant))


def detail(row: JobRow, tenant: str) -> wire.JobDetail:
    """With the spec. It was valid when it was stored; a later release may judge otherwise and still shows it."""
    return wire.JobDetail(**_fields(row, tenant), spec=JobSpec.model_validate(row.spec))


def attempts(session: Session, job_id: UUID, *, after: int, limit: int) -> list[AttemptRow]:
    """Attempts in the order in which they were made. `after` counts rows already seen (they are never deleted)."""
    query = (
        select(AttemptRow)
        .where(col(AttemptRow.job_id) == job_id)
        .order_by(col(AttemptRow.number), col(AttemptRow.chunk).nulls_first(), col(AttemptRow.id))
        .offset(after)
        .limit(limit)
    )
    return list(session.execute(query).scalars())


def credits_of(session: Session, attempt_ids: Sequence[str]) -> dict[str, int]:
    """GPU-milliseconds that each victim earned."""
    rows = session.execute(
        select(col(CreditRow.victim_attempt), col(CreditRow.gpu_ms)).where(
            col(CreditRow.victim_attempt).in_(attempt_ids)
        )
    )
    earned: dict[str, int] = {}
    for attempt, gpu_ms in rows:
        earned[attempt] = earned.get(attempt, 0) + gpu_ms
    return earned


def attempt_view(row: AttemptRow, credit_gpu_ms: int = 0) -> wire.Attempt:
    """One attempt with where it went and what it used."""
    return wire.Attempt(
        id=row.id,
        number=row.number,
        chunk=row.chunk,
        state=AttemptState(row.state),
        reason=row.reason,
        message=row.message,
        placed=tuple(placed_view(placed) for placed in row.placed or ()),
        exit_code=row.exit_code,
        failed_rank=row.failed_rank,
        codes=row.codes,
        stop_cause=row.stop_cause,
        resume_from=row.resume_from,
        gpu_ms=row.gpu_ms,
        money=row.money,
        credit_gpu_ms=credit_gpu_ms,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def placed_view(placed: dict[str, Any]) -> wire.PlacedGroup:
    """From the stored form of policies.snapshot.Placed."""
    return wire.PlacedGroup(
        group=placed["group"],
        pool=placed["pool"],
        flavor=placed["flavor"],
        replicas=placed["replicas"],
        nodes=tuple((str(node), int(count)) for node, count in placed.get("nodes") or ()),
    )


def tasks(session: Session, job_id: UUID, *, after: int, limit: int) -> list[TaskRow]:
    """Indexes to which something has happened."""
    query = (
        select(TaskRow)
        .where(col(TaskRow.job_id) == job_id, col(TaskRow.index) > after)
        .order_by(col(TaskRow.index))
        .limit(limit)
    )
    return list(session.execute(query).scalars())


def task_view(row: TaskRow) -> wire.Task:
    """One index."""
    return wire.Task(
        index=row.index, state=JobState(row.state), reason=row.reason, exit_code=row.exit_code, attempts=row.attempts
    )


def events(session: Session, job_id: UUID, *, after: int, limit: int) -> list[wire.Event]:
    """What happened, oldest first."""
    query = select(Event).where(col(Event.job_id) == job_id, col(Event.id) > after).order_by(col(Event.id)).limit(limit)
    return [
        wire.Event(
            id=row.id or 0,
            at=row.at,
            job=str(row.job_id),
            attempt=row.attempt_id,
            kind=row.kind,
            reason=row.reason,
            data=row.data,
        )
        for row in session.execute(query).scalars()
    ]


def state_of(session: Session, job_id: UUID) -> JobState | None:
    """The state alone; None once the row is gone."""
    state = session.execute(select(col(JobRow.state)).where(col(JobRow.id) == job_id)).scalar_one_or_none()
    return JobState(state) if state else None
