"""What followers and the reconciler ask of the rows: which attempts live, and which may have lost their workflow."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from backends.types import Phase
from gateway.ledger import outbox
from policies.vocabulary import AttemptState, Reason
from workflows.messages import EndRequest
from workflows.store import Live

_LIVE = text(
    """
    SELECT a.id, a.job_id, a.state, a.handles, a.created_at, parts.backends
    FROM attempts a CROSS JOIN LATERAL (
        SELECT array_agg(DISTINCT pools.backend ORDER BY pools.backend) AS backends
        FROM jsonb_array_elements(a.placed) part JOIN pools ON pools.name = part->>'pool'
    ) parts
    WHERE a.ended_at IS NULL AND (CAST(:backend AS text) = '' OR :backend = ANY(parts.backends))
    ORDER BY a.created_at, a.id
    """
)
# An attempt whose start is still owed is no concern: the relay will come to it.
_WITHOUT = text(
    """
    SELECT a.id FROM attempts a
    WHERE a.ended_at IS NULL AND a.created_at <= now() - make_interval(secs => :older_than_s)
        AND NOT EXISTS (SELECT FROM outbox o WHERE o.target = a.id AND o.kind = 'start' AND o.done_at IS NULL)
        AND NOT EXISTS (SELECT FROM outbox o WHERE o.target = a.id AND o.kind = 'start'
            AND o.done_at > now() - make_interval(secs => :older_than_s))
    ORDER BY a.created_at, a.id
    """
)
_OWED = text("SELECT 1 FROM outbox WHERE kind = 'start' AND target = :id AND done_at IS NULL")
_SEEN = text("SELECT observed FROM attempts WHERE id = :id")
LOST_MESSAGE: Final = "no backend knows anything of it any more"


def live_attempts(session: Session, backend: str) -> Sequence[Live]:
    """Every live attempt with a part at this backend ("": all), oldest first."""
    return tuple(
        Live(
            attempt_id=row.id,
            job_id=str(row.job_id),
            state=AttemptState(row.state),
            handles=dict(row.handles),
            backends=tuple(row.backends or ()),
            created_at=row.created_at,
        )
        for row in session.execute(_LIVE, {"backend": backend})
    )


def without_workflow(session: Session, older_than_s: int) -> Sequence[str]:
    """Live attempts whose start was relayed at least so long ago."""
    return tuple(row.id for row in session.execute(_WITHOUT, {"older_than_s": older_than_s}))


def start_again(session: Session, attempt_id: str) -> None:
    """Owe a start, unless one is owed already."""
    if session.execute(_OWED, {"id": attempt_id}).first() is None:
        outbox.add(session, outbox.START, [attempt_id])


def last_end(session: Session, attempt_id: str) -> EndRequest:
    """The end that was last observed anywhere, the worst first; without any: Lost, with an end that is not known."""
    observed: dict[str, Any] = session.execute(_SEEN, {"id": attempt_id}).scalar_one_or_none() or {}
    ends = [seen for seen in observed.values() if seen["phase"] == Phase.ENDED and seen["cause"]]
    if not ends:
        return EndRequest(attempt_id, Reason.LOST.value, ended_ms=_last_seen_ms(observed), message=LOST_MESSAGE)
    worst = min(ends, key=lambda seen: (seen["exit_code"] == 0, seen["ended_ms"] or 0))
    return EndRequest(
        attempt_id,
        worst["cause"],
        ended_ms=max((seen["ended_ms"] or 0 for seen in ends), default=0) or None,
        exit_code=worst["exit_code"],
        failed_rank=worst["failed_rank"],
        codes=dict(worst["codes"]),
        bad_nodes=list(worst["bad_nodes"]),
    )


def _last_seen_ms(observed: dict[str, Any]) -> int | None:
    """It was running when last seen; what came after is not known and not charged."""
    running = [seen["as_of_ms"] for seen in observed.values() if seen["phase"] == Phase.RUNNING]
    return max(running, default=None)
