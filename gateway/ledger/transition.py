"""THE way to change the state of a job, an attempt or a lease: a guarded UPDATE, one version up, one event.

Zero rows changed means that the row was elsewhere already: the caller drops what it had decided. Locks are taken in the
order job, attempt, lease, accounts (ascending id); whoever keeps to these functions cannot deadlock on the first three.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import UUID

from sqlalchemy import ColumnElement, Row, Table, func, null, select, update
from sqlalchemy.orm import Session

from gateway.ledger import events, hooks
from gateway.ledger.tables import metadata
from policies.states import ATTEMPT_EDGES, JOB_EDGES, LEASE_EDGES, predecessors
from policies.vocabulary import AttemptState, JobState, LeaseState

_JOBS: Final[Table] = metadata.tables["jobs"]
_ATTEMPTS: Final[Table] = metadata.tables["attempts"]
_LEASES: Final[Table] = metadata.tables["leases"]

# Without the user's texts and the flat request: kilobytes that would be decoded for nothing at every step.
_TOLD: Final = (
    *(column for column in _JOBS.c if column.name not in {"spec", "request"}),
    func.jsonb_build_object("notify", func.coalesce(_JOBS.c.spec["notify"], func.jsonb_build_array())).label("spec"),
)
# When a state is reached first; a second time (RUNNING after CHECKPOINTING) keeps the first instant.
_ATTEMPT_TIMES: Final = {
    AttemptState.PENDING: "pending_at",
    AttemptState.RUNNING: "started_at",
    AttemptState.STOPPING: "stopping_at",
}


class JobOf(Protocol):
    """What moving an attempt needs of its job."""

    @property
    def id(self) -> UUID: ...
    @property
    def tenant_id(self) -> int: ...
    @property
    def ended_at(self) -> datetime | None: ...


def move_job(
    session: Session,
    job_id: UUID,
    to: JobState,
    *,
    version: int | None = None,
    at: datetime | None = None,
    reason: str = "",
    message: str | None = None,
    values: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
) -> bool:
    """Move a job along its table; `values` are further columns of the same UPDATE, `data` goes into the event."""
    changes: dict[str, Any] = {"state": to, "reason": reason, **(values or {})}
    if message is not None:
        changes["message"] = message
    if to is JobState.RUNNING:
        changes["started_at"] = func.coalesce(_JOBS.c.started_at, at or func.now())
    if not JOB_EDGES[to]:
        changes["ended_at"] = at or func.now()
        changes["pending"] = null()
    row = _guarded(session, _JOBS, job_id, predecessors(JOB_EDGES, to), version, changes)
    if row is None:
        return False
    events.insert(session, job_id, row.tenant_id, to, reason=reason, data=data)
    hooks.owe(session, row, data)
    return True


def move_attempt(
    session: Session,
    attempt_id: str,
    to: AttemptState,
    *,
    version: int | None = None,
    at: datetime | None = None,
    reason: str = "",
    values: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    job: "JobOf | None" = None,
) -> bool:
    """Move an attempt along its table, its job's row locked first. False too when the job has ended.

    job: its row, where the caller has read it under its lock in this transaction.
    """
    job = (
        job
        or session.execute(
            select(_JOBS.c.id, _JOBS.c.tenant_id, _JOBS.c.ended_at)
            .where(_JOBS.c.id == select(_ATTEMPTS.c.job_id).where(_ATTEMPTS.c.id == attempt_id).scalar_subquery())
            .with_for_update(key_share=True)
        ).one_or_none()
    )
    if job is None or job.ended_at is not None:
        return False
    changes: dict[str, Any] = {"state": to, **(values or {})}
    if reason:
        changes["reason"] = reason
    if (column := _ATTEMPT_TIMES.get(to)) is not None:
        changes[column] = func.coalesce(_ATTEMPTS.c[column], at or func.now())
    if not ATTEMPT_EDGES[to]:
        changes["ended_at"] = at or func.now()
    row = _guarded(session, _ATTEMPTS, attempt_id, predecessors(ATTEMPT_EDGES, to), version, changes)
    if row is None:
        return False
    events.insert(session, job.id, job.tenant_id, to, attempt_id=attempt_id, reason=reason, data=data)
    return True


def move_lease(
    session: Session,
    lease_id: UUID,
    to: LeaseState,
    *,
    version: int | None = None,
    values: Mapping[str, Any] | None = None,
) -> bool:
    """Move a lease along its table. Its events are the ledger's transactions, so none is appended here."""
    changes: dict[str, Any] = {"state": to, **(values or {})}
    if not LEASE_EDGES[to]:
        changes["resolved_at"] = func.now()
    return _guarded(session, _LEASES, lease_id, predecessors(LEASE_EDGES, to), version, changes) is not None


def _guarded(  # noqa: PLR0917  (private, and every caller names the same six)
    session: Session,
    table: Table,
    row_id: object,
    before: frozenset[Any],
    version: int | None,
    changes: Mapping[str, Any],
) -> Row[Any] | None:
    guards: list[ColumnElement[bool]] = [table.c.id == row_id, table.c.state.in_(sorted(before))]
    if version is not None:
        guards.append(table.c.version == version)
    told = _TOLD if table is _JOBS else (table.c.id,)
    statement = update(table).where(*guards).values(version=table.c.version + 1, **changes).returning(*told)
    return session.execute(statement).one_or_none()
