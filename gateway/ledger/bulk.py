"""Launches of attempts that are due together, a statement each for all of them (DESIGN §4.3).

Only what is plainly the first launch of an attempt at its only backend is offered here: RESERVED, its lease held, no
wish and no handle. Everything else, and whatever fails on the way, is the business of the attempt's own workflow.
"""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger import launch, steps
from gateway.ledger.config import LedgerSettings
from policies.vocabulary import AttemptState
from workflows.store import Due, Launched

_NO_WISH: Final = """
    a.ended_at IS NULL AND a.stop_cause IS NULL AND NOT j.want_cancel AND NOT EXISTS (
        SELECT FROM tasks t WHERE t.job_id = a.job_id AND t.want_cancel
            AND t.index = a.first_index AND a.first_index = a.last_index)
"""
_FRESH = text(
    f"""
    SELECT a.id, min(pools.backend) AS backend
    FROM attempts a JOIN jobs j ON j.id = a.job_id JOIN leases l ON l.id = a.lease_id
        CROSS JOIN LATERAL jsonb_array_elements(a.placed) part JOIN pools ON pools.name = part->>'pool'
    WHERE a.id = ANY(:ids) AND a.state = 'RESERVED' AND a.handles = '{{}}' AND l.state = 'held' AND {_NO_WISH}
    GROUP BY a.id HAVING count(DISTINCT pools.backend) = 1
    ORDER BY a.id
    """  # noqa: S608  (constants only)
)
_STILL = text(
    f"""
    SELECT a.id FROM attempts a JOIN jobs j ON j.id = a.job_id JOIN leases l ON l.id = a.lease_id
    WHERE a.id = ANY(:ids) AND a.state = 'PENDING' AND l.state = 'held' AND {_NO_WISH}
    """  # noqa: S608  (constants only)
)
_LAUNCHED = text(
    """
    UPDATE attempts SET handles = handles || jsonb_build_object(l.backend, l.native),
        started_groups = CASE WHEN started_groups ? l.backend THEN started_groups
            ELSE started_groups || to_jsonb(l.backend) END
    FROM unnest(CAST(:ids AS text[]), CAST(:backends AS text[]), CAST(:natives AS text[])) AS l(id, backend, native)
    WHERE attempts.id = l.id AND ended_at IS NULL
    """
)


def begin(session: Session, attempts: Sequence[str], settings: LedgerSettings) -> tuple[Due, ...]:
    """Those of the attempts that may be launched now, PENDING from here on, with what is to be launched."""
    fresh = session.execute(_FRESH, {"ids": sorted(attempts)}).all()
    return tuple(
        Due(row.id, row.backend, launch.request(session, row.id, row.backend, settings))
        for row in fresh
        if steps.mark(session, row.id, AttemptState.PENDING)
    )


def still_wanted(session: Session, attempts: Sequence[str]) -> frozenset[str]:
    """Those that nobody has asked to stop meanwhile: what is prepared is started on a fresh look only."""
    return frozenset(session.execute(_STILL, {"ids": list(attempts)}).scalars())


def launched(session: Session, done: Sequence[Launched]) -> None:
    """Handles, and that start() was answered."""
    session.execute(
        _LAUNCHED,
        {
            "ids": [one.attempt_id for one in done],
            "backends": [one.backend for one in done],
            "natives": [one.native for one in done],
        },
    )
