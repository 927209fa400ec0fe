"""Place before evict (DESIGN §5): victims are told when their waiter's objects exist, in the transaction that says so.

Until then the stop wishes of a preemption are DUE (`attempts.stop_due`) and bind nobody. They count only while the
waiter's lease is contingent, so that a waiter that goes away, in whatever way, leaves nothing behind to be taken back.
Never decides who gives way.
"""

from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger import events, leases, outbox, waiters
from policies.vocabulary import StopCause

# A stop that passes the lease on to the job's next attempt would free nothing for the waiter.
_KEEPS_ITS_ROOM: Final = (StopCause.RESIZE.value,)

# Nobody waits: that is nearly every launch, and it costs no more than this.
_PREPARED = text(
    """
    UPDATE attempts SET handles = handles || jsonb_build_object(CAST(:backend AS text), CAST(:native AS text))
    WHERE id = :id AND ended_at IS NULL
        AND NOT EXISTS (SELECT FROM leases WHERE attempt_id = :id AND state = 'contingent')
    """
)
_PREPARED_WAITER = text(
    """
    UPDATE attempts SET handles = handles || jsonb_build_object(CAST(:backend AS text), CAST(:native AS text))
    WHERE id = :id AND ended_at IS NULL
    RETURNING stop_cause IS NULL AND NOT EXISTS (
        SELECT FROM jsonb_array_elements(placed) part JOIN pools ON pools.name = part->>'pool'
        WHERE pools.backend <> :backend AND NOT handles ? pools.backend) AS whole
    """
)
_LOCK_JOB = text(
    """
    SELECT want_cancel FROM jobs WHERE id = (SELECT job_id FROM attempts WHERE attempts.id = :id) FOR NO KEY UPDATE
    """
)
# In ascending id, as everybody who locks several attempts and waits for them.
_LOCK_ATTEMPTS = text(
    """
    SELECT id FROM attempts WHERE id = :id OR (stop_for = :id AND stop_due IS NOT NULL) ORDER BY id FOR NO KEY UPDATE
    """
)
_WAITS = text(
    """
    SELECT 1 FROM leases l JOIN attempts a ON a.id = l.attempt_id
    WHERE l.attempt_id = :id AND l.state = 'contingent' AND NOT EXISTS (
        SELECT FROM tasks t WHERE t.job_id = a.job_id AND t.want_cancel AND t.index = a.first_index
            AND a.first_index = a.last_index)
    """
)
# Who was told already, for another waiter, is told again if its grace is over sooner now; it never becomes longer.
_TELL = text(
    """
    UPDATE attempts AS victim SET stop_due = NULL, version = victim.version + 1,
        stop_cause = CASE WHEN due.fresh THEN due.cause ELSE victim.stop_cause END,
        stop_grace_s = CASE WHEN due.nearer OR (due.fresh AND stopping_at IS NULL) THEN due.grace_s
            ELSE coalesce(stop_grace_s, 0) END,
        stop_credit = due.credit OR (stop_credit AND NOT due.fresh),
        stopping_at = CASE WHEN due.nearer THEN NULL ELSE stopping_at END,
        stop_asked_at = coalesce(stop_asked_at, now())
    FROM jobs, (
        SELECT id, stop_due->>'cause' AS cause, CAST(stop_due->>'grace_s' AS int) AS grace_s,
            CAST(stop_due->>'credit' AS boolean) AS credit,
            stop_cause IS NULL OR stop_cause = ANY(:keeping) AS fresh,
            now() + make_interval(secs => CAST(stop_due->>'grace_s' AS int))
                < coalesce(stopping_at, now()) + make_interval(secs => coalesce(stop_grace_s, 0)) AS nearer
        FROM attempts WHERE stop_for = :waiter AND stop_due IS NOT NULL AND ended_at IS NULL
    ) due
    WHERE victim.id = due.id AND jobs.id = victim.job_id
    RETURNING victim.id, victim.job_id, jobs.tenant_id, victim.stop_cause, victim.stop_grace_s
    """
)


def prepared(session: Session, attempt_id: str, backend: str, native: str) -> list[str]:
    """The handle of a prepared launch; the last one of a waiter tells its victims: their ids. May come again."""
    values = {"id": attempt_id, "backend": backend, "native": native}
    plain: Any = session.execute(_PREPARED, values)
    if plain.rowcount:
        return []
    # The job's row before the attempt's: a cancel of the waiter comes before this transaction or after it.
    job = session.execute(_LOCK_JOB, {"id": attempt_id}).one_or_none()
    session.execute(_LOCK_ATTEMPTS, {"id": attempt_id}).all()
    row = session.execute(_PREPARED_WAITER, values).one_or_none()
    if job is None or row is None or not row.whole or job.want_cancel:
        return []
    if session.execute(_WAITS, {"id": attempt_id}).first() is None:
        return []
    return _tell(session, attempt_id)


def _tell(session: Session, waiter: str) -> list[str]:
    told = session.execute(_TELL, {"waiter": waiter, "keeping": list(_KEEPS_ITS_ROOM)}).all()
    for row in told:
        data = {"grace_ms": row.stop_grace_s * 1000, "for": waiter}
        events.insert(
            session, row.job_id, row.tenant_id, "StopAsked", attempt_id=row.id, reason=row.stop_cause, data=data
        )
    outbox.add(session, outbox.NUDGE, [row.id for row in told])
    return [row.id for row in told]


def give_up(session: Session, attempt_id: str) -> bool:
    """The waiter is not placed: its promise is void, and whoever was not told is spared. False: it waits for nobody.

    Before anything outside is asked: a backend that does not answer must not keep the victims' room promised.
    """
    session.execute(_LOCK_JOB, {"id": attempt_id}).one_or_none()
    if not leases.void_contingent(session, attempt_id):
        return False
    waiters.spare_victims(session, [attempt_id])
    outbox.wake_arbiter(session)
    return True
