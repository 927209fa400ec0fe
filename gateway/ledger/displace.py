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

# Told already with a longer grace: it counts as not told, so that its workflow tells it again.
STOP_AGAIN: Final = text(
    """
    UPDATE attempts SET stopping_at = CASE WHEN :grace_s < coalesce(stop_grace_s, 0) THEN NULL ELSE stopping_at END,
        stop_grace_s = least(coalesce(stop_grace_s, 0), :grace_s), stop_for = :stop_for,
        stop_credit = stop_credit OR :credit, version = attempts.version + 1
    FROM jobs
    WHERE attempts.id = :id AND attempts.version = :version AND attempts.ended_at IS NULL
        AND attempts.stop_cause = :cause AND jobs.id = attempts.job_id
    RETURNING attempts.job_id, jobs.tenant_id
    """
)


def void_promises(session: Session, preempts: Sequence[Preempt]) -> str | None:
    """Void the leases of displaced waiters; the attempt whose lease is held by now (it has begun), None if none is."""
    for preempt in preempts:
        if preempt.displaced and not leases.void_contingent(session, preempt.attempt):
            return preempt.attempt
    return None


def spare_the_rest(session: Session, preempts: Sequence[Preempt]) -> None:
    """Victims of a displaced waiter that did not pass on are spared where nobody has told them yet."""
    waiters.spare_victims(session, [preempt.attempt for preempt in preempts if preempt.displaced])
