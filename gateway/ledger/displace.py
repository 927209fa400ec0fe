"""A higher class in the middle of somebody else's preemption: the waiter gives its promise up, its victims pass on.

Within one savepoint the waiter's contingent lease is void before the new one is taken, so that what a victim frees is
never promised twice; a victim's second stop may only shorten its grace. Never decides who may displace whom.
"""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger import leases, waiters
from policies.decisions import Preempt

LOCK_LEASES: Final = text(
    """
    SELECT attempt_id FROM leases WHERE attempt_id = ANY(:ids) AND state = 'contingent'
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    """
)
"""Before any account: who settles one of their victims holds their lease and waits for accounts."""


def void_promises(session: Session, preempts: Sequence[Preempt]) -> str | None:
    """Void the leases of displaced waiters; the attempt whose lease is held by now (it has begun), None if none is."""
    for preempt in preempts:
        if preempt.displaced and not leases.void_contingent(session, preempt.attempt):
            return preempt.attempt
    return None


def spare_the_rest(session: Session, preempts: Sequence[Preempt]) -> None:
    """Victims of a displaced waiter that did not pass on are spared where nobody has told them yet."""
    waiters.spare_victims(session, [preempt.attempt for preempt in preempts if preempt.displaced])
