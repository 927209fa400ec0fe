"""An attempt as its workflow sees it: the row and the wishes, as of the database's now(). Reads only."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger import survivors, theft
from gateway.ledger.codec import placed_of, to_ms
from gateway.ledger.config import LedgerSettings
from policies.snapshot import Placed
from policies.vocabulary import LeaseState, StopCause
from workflows.messages import AttemptView, GroupSeen, ResizeView

NOT_A_GANG_S: Final = 10 * 365 * 86_400

_ROW = text(
    """
    SELECT a.*, j.want_cancel OR EXISTS (SELECT FROM tasks t WHERE t.job_id = a.job_id AND t.want_cancel
            AND t.index = a.first_index AND a.first_index = a.last_index) AS want_cancel,
        j.want_checkpoint, j.want_size, j.kind, j.request, l.state AS lease_state,
        l.covers_until, (extract(epoch FROM now()) * 1000)::bigint AS now_ms,
        -- An index of an array counts for itself.
        coalesce((SELECT t.no_progress FROM tasks t WHERE t.job_id = a.job_id AND t.index = a.chunk),
            j.no_progress) AS no_progress,
        CASE WHEN l.state = 'contingent' THEN (
            SELECT CASE WHEN v.stop_cause IS NOT NULL OR (v.stop_due IS NOT NULL AND EXISTS (SELECT FROM leases w
                WHERE w.attempt_id = v.stop_for AND w.state = 'contingent')) THEN 'going' ELSE 'stays' END
            FROM attempts v WHERE v.job_id = a.job_id AND v.ended_at IS NULL AND l.contingent_on ? v.id LIMIT 1
        ) END AS follows,
        EXISTS (SELECT FROM checkpoints c
            WHERE c.job_id = a.job_id AND c.array_index = coalesce(a.chunk, -1) AND c.attempt_number = a.number
                AND c.verified >= 1) AS newer_checkpoint,
        coalesce((SELECT c.reshardable FROM checkpoints c WHERE c.job_id = a.job_id AND c.verified >= 1
            ORDER BY c.step DESC, c.attempt_number DESC LIMIT 1), true) AS reshardable
    FROM attempts a JOIN jobs j ON j.id = a.job_id JOIN leases l ON l.id = a.lease_id
    WHERE a.id = :id
    """
)
# The least certain start first: shared pools, then those that place nodes themselves, machines to be bought last.
_BACKENDS = text(
    """
    SELECT pools.backend, bool_or(place_first) AS place_first, bool_or(backends.dark_since IS NOT NULL) AS dark,
        array_agg(pools.name ORDER BY pools.name) AS pools
    FROM pools JOIN backends ON backends.name = pools.backend JOIN flavors ON flavors.name = pools.flavor
    WHERE pools.name = ANY(:pools)
    GROUP BY pools.backend
    ORDER BY min(CASE WHEN capacity_type = 'spot' THEN 2 WHEN tenure = 'shared' THEN 0 ELSE 1 END), pools.backend
    """
)


def load(session: Session, attempt_id: str, settings: LedgerSettings) -> AttemptView | None:
    """None: there is no such attempt."""
    row = session.execute(_ROW, {"id": attempt_id}).mappings().one_or_none()
    if row is None:
        return None
    backends = session.execute(_BACKENDS, {"pools": [part["pool"] for part in row["placed"]]}).all()
    request: Mapping[str, Any] = row["request"]
    checkpoint = request.get("checkpoint")
    # Members that come or go under a launch are no stop of it.
    inside = row["stop_cause"] == StopCause.RESIZE and row["stopping_at"] is None and row["resize_to"]["in_place"]
    seen = [_seen(backend, found) for backend, found in sorted(row["observed"].items())]
    return AttemptView(
        attempt_id=row["id"],
        job_id=str(row["job_id"]),
        number=row["number"],
        state=row["state"],
        version=row["version"],
        now_ms=row["now_ms"],
        backends=[found.backend for found in backends],
        prepared=sorted(row["handles"]),
        started=list(row["started_groups"]),
        dark=[found.backend for found in backends if found.dark],
        seen=seen,
        lease_state=row["lease_state"],
        # On a contingent lease nothing may start anywhere; the victims still have the room.
        place_first=row["lease_state"] == LeaseState.CONTINGENT or any(found.place_first for found in backends),
        stop_cause="" if inside else row["stop_cause"] or "",
        stop_grace_s=row["stop_grace_s"] or 0,
        stop_asked_ms=to_ms(row["stop_asked_at"]),
        stop_sent=row["stopping_at"] is not None,
        want_cancel=row["want_cancel"],
        want_checkpoint=row["want_checkpoint"],
        checkpoint_done=row["checkpoint_asked"],
        want_size=row["want_size"],
        kind=row["kind"],
        created_ms=to_ms(row["created_at"]) or 0,
        pending_ms=to_ms(row["pending_at"]),
        started_ms=to_ms(row["started_at"]),
        stopping_ms=to_ms(row["stopping_at"]),
        first_running_ms=min((found.started_ms for found in seen if found.started_ms is not None), default=None),
        gang_timeout_s=request.get("gang_timeout_s") or NOT_A_GANG_S,
        backend_wait_timeout_s=settings.backend_wait_timeout_s,
        max_duration_s=_seconds(request.get("max_duration_ms")),
        term_s=settings.term_s,
        save_timeout_s=checkpoint["save_timeout_s"] if checkpoint else 0,
        recovery_s=settings.recovery_s,
        covers_until_ms=to_ms(row["covers_until"]),
        stall_after_ms=_stall_after(request.get("stall"), row["progress"]),
        checkpoints=checkpoint is not None,
        grace_s=request.get("grace_s", settings.default_grace_s),
        pools={found.backend: list(found.pools) for found in backends},
        handles=dict(row["handles"]),
        no_progress=row["no_progress"],
        newer_checkpoint=row["newer_checkpoint"],
        resize=_resize(row["resize_to"]) if inside else None,
        survives=bool(_survivors(row)),
        follows=row["follows"] or "",
        preemptor=row["why"].get("token") == theft.AFTER_PREEMPTION,
        place_timeout_s=settings.place_timeout_s,
        replicas_total=sum(part["replicas"] for part in row["placed"]),
    )


def _resize(wish: Mapping[str, Any]) -> ResizeView:
    (part,) = placed_of(wish["placed"])
    nodes = [node for node, members in part.nodes for _ in range(members)]
    return ResizeView(wish["group"], wish["replicas"], wish["from"], nodes, sent="sent" in wish)


def _survivors(row: Mapping[Any, Any]) -> tuple[Placed, ...]:
    told = row["stop_cause"] is not None or row["stop_due"] is not None
    return () if told else survivors.of(row, reshardable=row["reshardable"])


def _seconds(duration_ms: int | None) -> int | None:
    return None if duration_ms is None else -(-duration_ms // 1000)


def _stall_after(stall: Mapping[str, int] | None, progress: Mapping[str, Any]) -> int | None:
    """POLICIES §10: after the first report, max(timeout, factor x median step time) without another."""
    if stall is None or "at_ms" not in progress:
        return None
    patience_ms = max(stall["timeout_s"] * 1000, stall["factor"] * int(progress.get("step_ms", 0)))
    return int(progress["at_ms"]) + patience_ms


def _seen(backend: str, found: Mapping[str, Any]) -> GroupSeen:
    known: Sequence[str] = tuple(GroupSeen.__dataclass_fields__)
    return GroupSeen(**{"backend": backend, **{name: found[name] for name in known if name in found}})
