"""Live attempts as the arbiter sees them, with what a preemption of each would cost; and who borrows from whom."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from backends.naming import parse_attempt_id
from gateway.ledger import elastic as elastics
from gateway.ledger.codec import placed_of, queued_job, to_ms
from policies.snapshot import Borrowing, Elastic, LiveAttempt, Override, Placed, QueuedJob
from policies.vocabulary import AttemptState, JobKind, PriorityClass, StopCause

_LIVE = text(
    """
    SELECT a.id, a.resize_to, a.job_id, a.chunk, a.state, a.version, a.placed, a.created_at, a.started_at,
        j.submitted_at, j.version AS job_version, j.want_size, j.want_hold,
        -- What is due for a waiter that is not placed yet counts as under way: nobody else may have it.
        coalesce(a.stop_cause, CASE WHEN waiter.id IS NOT NULL THEN a.stop_due->>'cause' END) AS stop_cause,
        t.path, j.principal, j.kind, l.klass, j.request, l.contingent_on, l.state AS lease_state,
        saved.at AS saved_at, saved.save_ms, restarted.restart_ms AS restart_measured_ms
    FROM attempts a
    JOIN jobs j ON j.id = a.job_id
    JOIN tenants t ON t.id = j.tenant_id
    JOIN leases l ON l.id = a.lease_id
    LEFT JOIN leases waiter ON waiter.attempt_id = a.stop_for AND waiter.state = 'contingent'
    LEFT JOIN LATERAL (
        SELECT at, save_ms FROM checkpoints c
        WHERE c.job_id = a.job_id AND c.array_index = coalesce(a.chunk, -1) AND verified >= 1
        ORDER BY step DESC, attempt_number DESC LIMIT 1
    ) saved ON true
    LEFT JOIN LATERAL (
        SELECT b.restart_ms FROM attempts b WHERE b.job_id = a.job_id AND b.restart_ms > 0 ORDER BY number DESC LIMIT 1
    ) restarted ON true
    WHERE a.ended_at IS NULL AND l.state IN ('held', 'contingent')  -- a displaced waiter holds nothing any more
    """
)
_PREEMPTIONS = text(
    """
    SELECT job_id, count(*) AS week, count(*) FILTER (WHERE ended_at > now() - interval '1 day') AS today,
        max(ended_at) AS last
    FROM attempts WHERE state = 'PREEMPTED' AND ended_at > now() - interval '7 days'
        AND started_at IS NOT NULL  -- what never ran was not disturbed
        AND job_id IN (SELECT job_id FROM attempts WHERE ended_at IS NULL)
    GROUP BY job_id
    """
)
_BORROWINGS = text(
    """
    SELECT lender.path AS lender, borrower.path AS borrower, flavor, amount, since, until
    FROM borrowings JOIN tenants lender ON lender.id = lender_id JOIN tenants borrower ON borrower.id = borrower_id
    WHERE until IS NULL OR until > now() - interval '60 days'
    """
)
_OVERRIDES = text("SELECT attempt_id, force, reason, expires_at FROM overrides WHERE expires_at > now()")


Wishes = dict[UUID, tuple[int, str, QueuedJob]]
"""Job id -> (its version, its class in force, the job as it would be queued): decoded once, as the queue's are."""


def attempts(session: Session, *, default_restart_ms: int, wishes: Wishes | None = None) -> tuple[LiveAttempt, ...]:
    """Every attempt that holds a lease. Restart: measured at an earlier attempt of the job, else the default."""
    preemptions = {row.job_id: row for row in session.execute(_PREEMPTIONS)}
    sizes = elastics.read(session)
    rows = session.execute(_LIVE).mappings().all()
    known = _wishes(rows, wishes if wishes is not None else {})
    return tuple(
        replace(
            _live(row, preemptions.get(row["job_id"]), default_restart_ms, sizes.get(row["id"])),
            wish=known.get(row["job_id"]),
        )
        for row in rows
    )


def _wishes(rows: Sequence[Mapping[Any, Any]], memory: Wishes) -> dict[UUID, QueuedJob]:
    """What each job asks for, should it go on elsewhere."""
    found: dict[UUID, QueuedJob] = {}
    for row in rows:
        if row["chunk"] is not None:
            continue
        kept = memory.get(row["job_id"])
        if kept is None or kept[:2] != (row["job_version"], row["klass"]):
            job = queued_job({**row, "id": row["job_id"], "version": row["job_version"], "not_before": None})
            kept = memory[row["job_id"]] = (row["job_version"], row["klass"], job)
        found[row["job_id"]] = kept[2]
    for gone in memory.keys() - found.keys():
        del memory[gone]
    return found


def borrowings(session: Session) -> tuple[Borrowing, ...]:
    """Open intervals, and closed ones that a half-life has not made small yet."""
    return tuple(
        Borrowing(row.lender, row.borrower, row.flavor, row.amount, to_ms(row.since) or 0, to_ms(row.until))
        for row in session.execute(_BORROWINGS)
    )


def overrides(session: Session) -> tuple[Override, ...]:
    """Operators' words that have not expired."""
    return tuple(
        Override(row.attempt_id, row.force, to_ms(row.expires_at) or 0, row.reason)
        for row in session.execute(_OVERRIDES)
    )


def _held(row: Mapping[Any, Any], placed: tuple[Placed, ...]) -> tuple[Placed, ...]:
    """A growth is leased before it is carried out: what it adds is taken already."""
    wish = row["resize_to"]
    return placed_of(wish["placed"]) if _resizes(row) and wish["replicas"] > wish["from"] else placed


def _keeps(row: Mapping[Any, Any]) -> tuple[Placed, ...]:
    wish = row["resize_to"]
    return placed_of(wish["placed"]) if _resizes(row) and wish["replicas"] < wish["from"] else ()


def _resizes(row: Mapping[Any, Any]) -> bool:
    return row["resize_to"] is not None and row["stop_cause"] == StopCause.RESIZE


def _moved_from(row: Mapping[Any, Any]) -> str:
    """The attempt of its own job for whose end it waits, "" for none."""
    waits_for = row["contingent_on"] if row["lease_state"] == "contingent" else ()
    return next((one for one in waits_for if parse_attempt_id(one)[0] == row["job_id"]), "")


def _live(row: Mapping[Any, Any], preempted: Any, default_restart_ms: int, elastic: Elastic | None) -> LiveAttempt:
    request = row["request"]
    checkpoint = request.get("checkpoint")
    placed = placed_of(row["placed"])
    leased_ms = to_ms(row["created_at"]) or 0
    started_ms = to_ms(row["started_at"])
    max_duration_ms = request.get("max_duration_ms")
    return LiveAttempt(
        id=row["id"],
        job=str(row["job_id"]),
        tenant=row["path"],
        user=row["principal"],
        kind=JobKind(row["kind"]),
        klass=PriorityClass(row["klass"]),
        state=AttemptState(row["state"]),
        version=row["version"],
        placed=_held(row, placed),
        leased_ms=leased_ms,
        started_ms=started_ms,
        ends_by_ms=None if max_duration_ms is None else (started_ms or leased_ms) + max_duration_ms,
        checkpoint_ms=to_ms(row["saved_at"]),
        checkpoint_interval_ms=checkpoint["interval_ms"] if checkpoint else None,
        save_ms=(row["save_ms"] or checkpoint["save_timeout_s"] * 1000) if checkpoint else None,
        restart_ms=row["restart_measured_ms"] or default_restart_ms,
        min_runtime_ms=request.get("min_runtime_ms", 0),
        deadline_ms=request.get("deadline_ms"),
        preemptions_week=preempted.week if preempted else 0,
        preemptions_today=preempted.today if preempted else 0,
        last_preempted_ms=to_ms(preempted.last) if preempted else None,
        stopping=StopCause(row["stop_cause"]) if row["stop_cause"] else None,
        contingent_on=tuple(row["contingent_on"]) if row["lease_state"] == "contingent" else (),
        elastic=elastic,
        moved_from=_moved_from(row),
        keeps=_keeps(row),
    )
