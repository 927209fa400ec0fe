"""`backends forget`: the operator's word that a dark backend will not come back, and what the ledger makes of it.

An attempt that lives there alone is settled as LOST (or by the end that was seen last), charged until it was last seen.
Of a gang with parts elsewhere the part there is written off, and the rest gets a stop: its lease goes back when the
living backends confirm, and then it ends as any gang that lost a member (REVOKED, NodeLost). Never asks a backend. What
comes back later belongs to no live attempt: the reconciler ends it.
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from gateway.ledger import events, outbox, reconcile, settlement
from gateway.ledger.codec import dumps
from gateway.ledger.engine import in_transaction
from policies.settings import PolicySettings
from policies.vocabulary import Reason, StopCause
from workflows.messages import GroupSeen

GRACE_S: Final = 10
"""SIGTERM to SIGKILL for the other parts of a gang, as for every lost member."""
BACKEND_FORGOTTEN: Final = "BackendForgotten"
log = logging.getLogger(__name__)

_BACKEND = text("SELECT dark_since FROM backends WHERE name = :name FOR UPDATE")
_DRAIN = text("UPDATE backends SET draining = true, version = version + 1 WHERE name = :name AND NOT draining")
_NODES = text("DELETE FROM nodes WHERE pool IN (SELECT name FROM pools WHERE backend = :name)")
_FOREIGN = text("DELETE FROM foreign_use WHERE pool IN (SELECT name FROM pools WHERE backend = :name)")
_POOLS = text("UPDATE pools SET as_of = NULL WHERE backend = :name RETURNING name")
_PLACES = text(
    """
    SELECT a.job_id, jobs.tenant_id, a.placed, a.observed, (extract(epoch FROM now()) * 1000)::bigint AS now_ms,
        (SELECT array_agg(name) FROM pools WHERE backend = :name) AS there
    FROM attempts a JOIN jobs ON jobs.id = a.job_id WHERE a.id = :id AND a.ended_at IS NULL
    FOR NO KEY UPDATE OF jobs
    """
)
_WRITE_OFF = text(
    """
    UPDATE attempts SET placed = CAST(:placed AS jsonb), handles = handles - :name,
        started_groups = started_groups - :name, observed = observed || CAST(:seen AS jsonb),
        stop_asked_at = CASE WHEN stop_cause IS NULL THEN now() ELSE stop_asked_at END,
        stop_grace_s = CASE WHEN stop_cause IS NULL THEN :grace_s ELSE stop_grace_s END,
        stop_cause = coalesce(stop_cause, :cause), version = version + 1
    WHERE id = :id AND ended_at IS NULL
    """
)


class NoSuchBackendError(LookupError):
    """There is no backend of this name."""


class StillAnswersError(Exception):
    """It is not dark, so nobody may write off what runs there."""


@dataclass(slots=True)
class Forgotten:
    """What was done. `left`: attempts that could not be settled just now; the same again goes on with them."""

    pools: list[str]
    attempts: list[str]
    settled: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def begin(session: Session, name: str, *, force: bool = False) -> Forgotten:
    """Drop the capacity of its pools and name the attempts that live there. `force`: although it answers; it drains
    then, so that nothing new is placed there.
    """
    row = session.execute(_BACKEND, {"name": name}).one_or_none()
    if row is None:
        raise NoSuchBackendError(name)
    if row.dark_since is None:
        if not force:
            raise StillAnswersError(f"backend {name} answers; what runs there is known and not lost")
        session.execute(_DRAIN, {"name": name})
    session.execute(_NODES, {"name": name})
    session.execute(_FOREIGN, {"name": name})
    pools = sorted(session.execute(_POOLS, {"name": name}).scalars())
    outbox.wake_arbiter(session)
    return Forgotten(pools, [one.attempt_id for one in reconcile.live_attempts(session, name)])


def finish(engine: Engine, name: str, found: Forgotten, settings: PolicySettings) -> Forgotten:
    """Each attempt in a transaction of its own: locks are held shortly, and one that fails stops no other."""
    for attempt in found.attempts:
        try:
            alone = in_transaction(engine, lambda s, a=attempt: _write_off(s, name, a, settings))  # type: ignore[misc]
        except Exception:
            log.exception("forgetting %s: attempt %s is left", name, attempt)
            found.left.append(attempt)
        else:
            (found.settled if alone else found.stopped).append(attempt)
    return found


def _write_off(session: Session, name: str, attempt_id: str, settings: PolicySettings) -> bool:
    """Whether it lived there alone (or has ended meanwhile), so that it is over now."""
    row = session.execute(_PLACES, {"id": attempt_id, "name": name}).one_or_none()
    if row is None:
        return True
    there = set(row.there or ())
    rest = [part for part in row.placed if part["pool"] not in there]
    events.insert(session, row.job_id, row.tenant_id, BACKEND_FORGOTTEN, attempt_id=attempt_id, data={"backend": name})
    if not rest:
        end = reconcile.last_end(session, attempt_id)
        if end.reason == Reason.LOST:
            end = replace(end, message=f"its backend {name} was forgotten by an operator")
        settlement.settle(session, end, settings=settings)
        # Its workflow waits for a backend that will not answer: it reads the row, and leaves.
        outbox.add(session, outbox.NUDGE, [attempt_id])
        return True
    _stop_the_rest(session, name, attempt_id, rest, row)
    return False


def _stop_the_rest(session: Session, name: str, attempt_id: str, rest: Sequence[Any], row: Any) -> None:
    before = row.observed.get(name) or {}
    known = {one: before[one] for one in GroupSeen.__dataclass_fields__ if one in before and one != "backend"}
    seen = asdict(GroupSeen(name, **known))
    if seen["phase"] != "Ended":
        seen |= {"phase": "Ended", "cause": Reason.LOST.value, "ended_ms": seen["as_of_ms"] or row.now_ms}
    del seen["backend"]
    values = {
        "id": attempt_id,
        "name": name,
        "placed": dumps(rest),
        "seen": dumps({name: {"nodes": {}, "detail": "", **seen}}),
        "grace_s": GRACE_S,
        "cause": StopCause.MEMBER_LOST.value,
    }
    session.execute(_WRITE_OFF, values)
    outbox.add(session, outbox.NUDGE, [attempt_id])
