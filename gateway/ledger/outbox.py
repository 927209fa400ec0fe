"""Side effects that a transaction owes: start or nudge an attempt's workflow, send a webhook.

At least once, in the order in which they are due; a row is never lost and one bad row never stops the others. Never
does the effect itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger.codec import dumps, plain
from workflows.store import OutboxItem

WORK: Final = "tidegate_work"  # something for the arbiter
OUTBOX: Final = "tidegate_outbox"  # something for the relay
CLAIM_S: Final = 30  # a dead relay's rows come again after so long
MAX_DELAY_S: Final = 60
MAX_ERROR: Final = 500
KEEP_S: Final = 3600  # done rows: long enough for whoever asks when a start was relayed
PRUNE: Final = 20_000  # rows at a time

START: Final = "start"
NUDGE: Final = "nudge"
WEBHOOK: Final = "webhook"

_ADD = text(
    """
    WITH added AS (
        INSERT INTO outbox (kind, target, data, tries, error, created_at, due_at)
        SELECT CAST(:kind AS text), target, CAST(:data AS jsonb), 0, '', now(), now()
        FROM unnest(CAST(:targets AS text[])) AS target
    )
    SELECT pg_notify('tidegate_outbox', '')
    """
)
# A nudge waits for the start of its attempt: delivered before it, it would start the workflow a second time. Rows of
# attempts that have ended have nobody to go to.
_CLAIM = text(
    """
    UPDATE outbox SET due_at = now() + make_interval(secs => :claim_s), tries = tries + 1,
        done_at = CASE WHEN due.moot THEN now() END
    FROM (
        SELECT id, kind IN ('start', 'nudge') AND EXISTS (
            SELECT FROM attempts WHERE attempts.id = target AND attempts.ended_at IS NOT NULL) AS moot
        FROM outbox WHERE done_at IS NULL AND due_at <= now() AND (kind = 'webhook') = :webhooks
            AND NOT (kind = 'nudge' AND EXISTS (SELECT FROM outbox AS start
                WHERE start.target = outbox.target AND start.kind = 'start' AND start.done_at IS NULL))
        ORDER BY due_at, id LIMIT :limit FOR UPDATE SKIP LOCKED
    ) AS due
    WHERE outbox.id = due.id
    RETURNING outbox.id, kind, target, data, tries, due.moot
    """
)
_DONE = text(
    """
    WITH done AS (
        UPDATE outbox SET done_at = now() WHERE id = ANY(:ids) AND done_at IS NULL RETURNING kind, target
    )
    SELECT pg_notify('tidegate_outbox', '') WHERE EXISTS (
        SELECT FROM done JOIN outbox AS nudge ON nudge.target = done.target
        WHERE done.kind = 'start' AND nudge.kind = 'nudge' AND nudge.done_at IS NULL)
    """
)
_FAILED = text(
    """
    UPDATE outbox SET error = :error,
        due_at = now() + make_interval(secs => least(:max_delay_s, power(2, least(tries, 10) - 1)::int))
    WHERE id = :id AND done_at IS NULL
    """
)
_PUT_OFF = text(
    "UPDATE outbox SET error = :error, due_at = now() + make_interval(secs => :delay_s)"
    " WHERE id = :id AND done_at IS NULL"
)
_GIVE_UP = text("UPDATE outbox SET error = :error, done_at = now() WHERE id = :id AND done_at IS NULL")
_PRUNE = text(
    """
    DELETE FROM outbox WHERE id IN (
        SELECT id FROM outbox WHERE done_at < now() - make_interval(secs => :keep_s) ORDER BY id LIMIT :limit
        FOR UPDATE SKIP LOCKED
    )
    """
)


def add(session: Session, kind: str, targets: Sequence[str], data: Mapping[str, Any] | None = None) -> None:
    """Owe one effect per target, and wake the relay when the transaction commits."""
    if targets:
        session.execute(_ADD, {"kind": kind, "targets": list(targets), "data": dumps(dict(data or {}))})


def wake_arbiter(session: Session) -> None:
    """NOTIFY the arbiter when the transaction commits."""
    session.execute(text("SELECT pg_notify('tidegate_work', '')"))


def claim(session: Session, limit: int, *, webhooks: bool = False) -> tuple[OutboxItem, ...]:
    """Due rows (webhooks, or all others), oldest first, each to one claimer; again after CLAIM_S unless done."""
    rows = session.execute(_CLAIM, {"limit": limit, "claim_s": CLAIM_S, "webhooks": webhooks}).all()
    return tuple(
        OutboxItem(id=row.id, kind=row.kind, target=row.target, data=row.data, tries=row.tries)
        for row in sorted(rows, key=lambda row: row.id)
        if not row.moot
    )


def done(session: Session, ids: Sequence[int]) -> None:
    """These need not be done again."""
    session.execute(_DONE, {"ids": list(ids)})


def failed(session: Session, item_id: int, error: str) -> None:
    """Again later: 1, 2, 4 … up to MAX_DELAY_S seconds after the latest try."""
    session.execute(_FAILED, {"id": item_id, "error": plain(error[:MAX_ERROR]), "max_delay_s": MAX_DELAY_S})


def put_off(session: Session, item_id: int, error: str, delay_s: int) -> None:
    """Again in so many seconds."""
    session.execute(_PUT_OFF, {"id": item_id, "error": plain(error[:MAX_ERROR]), "delay_s": delay_s})


def give_up(session: Session, item_id: int, error: str) -> None:
    """Never again: the row keeps why until it is pruned."""
    session.execute(_GIVE_UP, {"id": item_id, "error": plain(error[:MAX_ERROR])})


def prune(session: Session) -> None:
    """Forget rows that were done long ago."""
    session.execute(_PRUNE, {"keep_s": KEEP_S, "limit": PRUNE})
