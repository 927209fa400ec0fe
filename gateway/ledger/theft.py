"""Theft by foreign load (DESIGN §5): the victims went, and somebody else took the room before their waiter could start.

It is counted, the pool preempts nobody for a while, and those who gave way for nothing stand first in line
(`first_in_line`). What counts as evidence: the backend says that there is no room, on a lease that is held, where it
reports foreign use. Moves no state of a job or attempt.
"""

from typing import Any, Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger import events
from gateway.ledger.tables.work import AttemptRow, LeaseRow
from policies.preemption.theft import pause_ms
from policies.settings import PolicySettings
from policies.vocabulary import LeaseState
from workflows.messages import EndRequest

AFTER_PREEMPTION: Final = "AfterPreemption"
"""The token with which the arbiter admits a waiter together with its victims."""

_NODES_OF = text(
    """
    SELECT part->>'pool' AS pool, part->'nodes' AS nodes FROM attempts, jsonb_array_elements(attempts.placed) part
    WHERE attempts.id = :id
    """
)
_FOREIGN = text(
    """
    SELECT DISTINCT pool FROM nodes WHERE pool = :pool AND (CAST(:all AS boolean) OR name = ANY(:names))
        AND foreign_accelerators + foreign_cpus + foreign_memory + foreign_disk > 0
    """
)
_LOST = text("UPDATE attempts SET preemption_lost = true WHERE id = :id")
_PAUSE = text(
    """
    UPDATE pools SET no_preemption_until = greatest(
        no_preemption_until, now() + make_interval(secs => CAST(:pause_ms AS double precision) / 1000))
    WHERE name = ANY(:pools)
    """
)
_VICTIMS = text("SELECT count(*) FROM attempts WHERE stop_for = :id AND state = 'PREEMPTED'")
# A victim whose job has had another attempt since is in line no longer: it was served.
_FIRST = text(
    """
    SELECT DISTINCT victim.job_id FROM attempts waiter
    JOIN attempts victim ON victim.stop_for = waiter.id AND victim.state = 'PREEMPTED'
    JOIN jobs ON jobs.id = victim.job_id
    WHERE waiter.preemption_lost AND waiter.ended_at > now() - interval '1 day'
        AND jobs.state = 'QUEUED' AND jobs.array_size IS NULL AND victim.number = jobs.attempts
    """
)


def note(
    session: Session, attempt: AttemptRow, lease: LeaseRow | None, end: EndRequest, settings: PolicySettings
) -> bool:
    """Called before the lease is resolved: whether this end is a theft; if so it is written down. The caller holds the
    job's lock.
    """
    held = lease is not None and lease.state == LeaseState.HELD
    preempted = held and attempt.why.get("token") == AFTER_PREEMPTION and attempt.started_at is None
    pools = _taken(session, attempt.id) if preempted and end.no_room else []
    pause = pause_ms(preempted=preempted, no_room=end.no_room, foreign=bool(pools), settings=settings)
    if not pause:
        return False
    session.execute(_LOST, {"id": attempt.id})
    session.execute(_PAUSE, {"pools": pools, "pause_ms": pause})
    victims = session.execute(_VICTIMS, {"id": attempt.id}).scalar_one()
    data: dict[str, Any] = {"pools": pools, "victims": victims, "no_preemption_ms": pause}
    events.append(session, attempt.job_id, events.PREEMPTION_LOST, attempt_id=attempt.id, data=data)
    return True


def _taken(session: Session, attempt_id: str) -> list[str]:
    """Pools in which foreign load lies where the attempt was to run: on its nodes, or anywhere where none are named."""
    found: set[str] = set()
    for row in session.execute(_NODES_OF, {"id": attempt_id}).all():
        names = [node for node, _ in row.nodes]
        found.update(session.execute(_FOREIGN, {"pool": row.pool, "names": names, "all": not names}).scalars())
    return sorted(found)


def first_in_line(session: Session) -> frozenset[UUID]:
    """Queued jobs that gave way for nothing and have not been served since."""
    return frozenset(session.execute(_FIRST).scalars())
