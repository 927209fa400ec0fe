"""After a restore from a backup: the ledger's own part (DESIGN §4.9).

The backends are asked by workflows, who then adopt or settle what they find; until then every live attempt keeps its
lease, since no answer is never "no job".
"""

from dataclasses import dataclass

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from gateway.ledger import outbox
from gateway.ledger.engine import in_transaction

_EPOCH = text(
    """
    UPDATE arbiter SET epoch = greatest(epoch + 1, CAST(:at_least AS bigint)), holder = :holder, beat = now()
    WHERE id = 1 RETURNING epoch
    """
)
_LIVE = text("SELECT id FROM attempts WHERE ended_at IS NULL ORDER BY id")
# Whatever was owed at the time of the backup is owed anew, at once.
_OWED = text("UPDATE outbox SET due_at = now() WHERE done_at IS NULL")


@dataclass(frozen=True, slots=True)
class Recovered:
    """The new epoch, and the live attempts whose objects are to be looked for and whose workflows to be ended."""

    epoch: int
    attempts: tuple[str, ...]


def recover_rows(engine: Engine) -> Recovered:
    """Fence every arbiter there was, make all owed rows due. Its epoch is the clock's: the backup knew no later one."""

    def work(session: Session) -> Recovered:
        at_least = session.execute(text("SELECT extract(epoch FROM now())::bigint")).scalar_one()
        epoch = session.execute(_EPOCH, {"at_least": at_least, "holder": "recover"}).scalar_one()
        session.execute(_OWED)
        return Recovered(int(epoch), tuple(session.execute(_LIVE).scalars()))

    return in_transaction(engine, work)


def restart_workflows(engine: Engine, attempts: tuple[str, ...]) -> None:
    """Owe a start for each of these that still lives, once the backends have been listed."""
    in_transaction(
        engine,
        lambda session: outbox.add(
            session,
            outbox.START,
            list(
                session.execute(
                    text("SELECT id FROM attempts WHERE id = ANY(:ids) AND ended_at IS NULL ORDER BY id"),
                    {"ids": list(attempts)},
                ).scalars()
            ),
        ),
    )
