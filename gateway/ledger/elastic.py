"""Elastic jobs as the arbiter sees them while they run: sizes, whether they may be resized, what they were measured at.

Reads only, and only rows of elastic jobs.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger.codec import placed_of, sizes_of, to_ms, wish_of
from policies.elastic.places import size_of
from policies.snapshot import Elastic
from policies.vocabulary import JobKind

# Measured rates count only for a growth that nobody asked for: it alone is judged by them.
_ELASTIC = text(
    """
    SELECT a.id, a.placed, a.resized_at, a.progress->>'rate' AS rate, a.why->>'token' AS token, a.stop_cause,
        a.stop_due, j.kind, j.request, j.want_size, j.version AS job_version, before.placed AS placed_before,
        before.rate AS rate_before, unkept.at AS unkept_at,
        j.want_size_at IS NOT NULL AND j.want_size_at > coalesce(a.resized_at, '-infinity') AS wished,
        (SELECT reshardable FROM checkpoints c WHERE c.job_id = a.job_id AND verified >= 1
            ORDER BY step DESC, attempt_number DESC LIMIT 1) AS reshardable,
        (SELECT bool_and(pools.resizes) FROM jsonb_array_elements(a.placed) part
            JOIN pools ON pools.name = part->>'pool') AS resizes
    FROM attempts a JOIN jobs j ON j.id = a.job_id
    LEFT JOIN LATERAL (
        SELECT b.placed, b.progress->>'rate' AS rate FROM attempts b
        WHERE b.job_id = a.job_id AND b.number = a.number - 1 AND b.state = 'RESIZED' AND a.why->>'token' = 'Grown'
    ) before ON true
    LEFT JOIN LATERAL (
        SELECT max(b.created_at) AS at FROM attempts b WHERE b.job_id = a.job_id AND b.why->>'token' = 'GrowthNotKept'
    ) unkept ON true
    WHERE a.ended_at IS NULL AND j.request ? 'elastic'
    """
)
_WAITS = text(
    """
    SELECT id, pending->>'token' AS token, pending->>'blocker' AS blocker FROM jobs
    WHERE state = 'RUNNING' AND want_size_at IS NOT NULL
    """
)


def read(session: Session) -> Mapping[str, Elastic]:
    """By attempt."""
    return {row["id"]: _elastic(row) for row in session.execute(_ELASTIC).mappings()}


def waits(session: Session) -> dict[str, tuple[str | None, str | None]]:
    """The last Wait (token, blocker) of running jobs for whose size somebody asked."""
    return {str(row.id): (row.token, row.blocker) for row in session.execute(_WAITS)}


def _elastic(row: Mapping[Any, Any]) -> Elastic:
    request = row["request"]
    wish = request["elastic"]
    placed = placed_of(row["placed"])
    replicas = row["kind"] == JobKind.INFERENCE
    before = None
    if row["placed_before"] is not None:
        before = (size_of(placed_of(row["placed_before"]), wish["group"]), int(row["rate_before"] or 0))
    due = row["stop_due"] or {}
    return Elastic(
        group=wish["group"],
        sizes=sizes_of(wish, row["want_size"]),
        size=size_of(placed, wish["group"]),
        able=replicas or bool(wish["reshard"] and row["reshardable"]),
        # Ranks of other groups would move with the members of this one.
        in_place=replicas and len(placed) == 1 and bool(row["resizes"]),
        wished=row["wished"],
        under_way="resize" in {row["stop_cause"], due.get("cause")},
        resized_ms=to_ms(row["resized_at"]),
        unkept_ms=to_ms(row["unkept_at"]),
        rate=int(row["rate"] or 0),
        before=before,
        placement=wish_of(request),
        job_version=row["job_version"],
    )
