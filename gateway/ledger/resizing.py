"""A resize, decided and carried through by relaunch: the lease grows before anything is told, and passes to the next
attempt in the transaction that ends the one before (DESIGN §7), so that nobody ever sees what it holds free.

`attempts.resize_to` is {group, replicas, from, placed, items, in_place, lost, token, numbers, at: when it was decided};
it counts while the attempt's stop cause, told or due, is `resize`. Never decides who is resized; one in place is
carried through by `gateway.ledger.inplace`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4

from sqlalchemy import null, select, text
from sqlalchemy.orm import Session

from backends.naming import attempt_id as attempt_name
from gateway.ledger import events, leases, outbox
from gateway.ledger.codec import dumps, placed_json, placed_of
from gateway.ledger.items import items_of
from gateway.ledger.limits import LimitExceeded, amounts_of
from gateway.ledger.tables.work import AttemptRow, JobRow, LeaseRow
from gateway.ledger.transition import move_job
from policies.decisions import Loan, Resize
from policies.elastic.places import size_of
from policies.snapshot import Placed
from policies.vocabulary import JobKind, JobState, LeaseState, Payer, PriorityClass, Reason

LOCK_LEASES: Final = text(
    """
    SELECT attempt_id FROM leases WHERE attempt_id = ANY(:ids) AND state = 'held'
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    """
)
"""Before any account: who posts its use holds the lease and waits for accounts."""

_DECIDE = text(
    """
    UPDATE attempts SET resize_to = CAST(:to AS jsonb) || jsonb_build_object('at', now()),
        version = attempts.version + 1, stop_credit = false, stop_for = '',
        stop_due = CASE WHEN :waits THEN jsonb_build_object('cause', 'resize', 'credit', false, 'grace_s', grace.s) END,
        stop_cause = CASE WHEN NOT :waits THEN 'resize' END,
        stop_grace_s = CASE WHEN NOT :waits THEN grace.s END,
        stop_asked_at = CASE WHEN NOT :waits THEN now() END
    FROM jobs, LATERAL (
        SELECT coalesce(CAST(:grace_s AS int), CAST(jobs.request->>'grace_s' AS int), 300) AS s) grace
    WHERE attempts.id = :id AND attempts.version = :version AND attempts.ended_at IS NULL
        AND attempts.stop_cause IS NULL AND jobs.id = attempts.job_id AND NOT jobs.want_cancel
        AND jobs.version = :job_version
    RETURNING jobs.id AS job_id, jobs.tenant_id
    """
)
_FOR_WAITER = text("UPDATE attempts SET stop_for = :waiter WHERE id = :id")
_TRIED = text("UPDATE attempts SET resized_at = now(), version = version + 1 WHERE id = :id")
_LIVE_LEASE = text("attempt_id = :attempt AND state IN ('held', 'contingent')")
_PLACED = text("UPDATE attempts SET lease_id = :lease_id WHERE id = :id")
_SUCCESSOR = text(
    """
    INSERT INTO attempts (id, job_id, number, state, version, placed, lease_id, handles, started_groups, resume_from,
        stop_for, stop_credit, checkpoint_asked, observed, why, progress, reason, codes, message, gpu_ms, money,
        restart_ms, preemption_lost, created_at, resized_at)
    SELECT :id, jobs.id, :number, 'RESERVED', 1, CAST(:placed AS jsonb), :lease_id, '{}', '[]', '', '', false,
        jobs.want_checkpoint, '{}', CAST(:why AS jsonb), '{}', '', '{}', '', 0, 0, 0, false, now(),
        coalesce(CAST(:at AS timestamptz), now())
    FROM jobs WHERE jobs.id = :job_id
    """
)
# A waiter counts on all of it, and would have been told so next.
_WHOLE = text(
    """
    SELECT coalesce(stop_due->>'cause' <> 'resize', false) AND EXISTS (
        SELECT FROM leases l WHERE l.state = 'contingent' AND l.contingent_on @> jsonb_build_array(attempts.id))
    FROM attempts WHERE id = :id
    """
)
_NEWEST = text(
    """
    SELECT reshardable FROM checkpoints WHERE job_id = :job AND verified >= 1
    ORDER BY step DESC, attempt_number DESC LIMIT 1
    """
)


def decide(session: Session, resize: Resize) -> Any:
    """Write the wish: (job_id, tenant_id), or None where it is stale. LimitExceeded: a growth too many.

    A growth leases what it adds now, or nothing happens. What a waiter counts on is due, and told when it is placed.
    """
    row = session.execute(
        _DECIDE,
        {
            "id": resize.attempt,
            "version": resize.version,
            "job_version": resize.job_version,
            "to": dumps(_wish(session, resize)),
            "waits": bool(resize.waiter),
            "grace_s": None if resize.grace_ms is None else -(-resize.grace_ms // 1000),
        },
    ).one_or_none()
    if row is None:
        return None
    held = placed_of(session.execute(_OF, {"id": resize.attempt}).scalar_one())
    if resize.replicas > size_of(held, resize.group):
        change_lease(session, resize.attempt, resize.placed, loans=resize.loans)
    data = {"to": resize.replicas, "numbers": dict(resize.why.numbers), "in_place": resize.in_place}
    events.insert(
        session,
        row.job_id,
        row.tenant_id,
        "ResizeDecided",
        attempt_id=resize.attempt,
        reason=resize.why.token,
        data=data,
    )
    outbox.add(session, outbox.NUDGE, [resize.attempt])
    return row


def count_on(session: Session, attempt_id: str, waiter: str) -> None:
    """This attempt is made smaller for a waiter, which has its own attempt by now."""
    session.execute(_FOR_WAITER, {"id": attempt_id, "waiter": waiter})


def refused(session: Session, resize: Resize, error: LimitExceeded) -> None:
    """A growth that a limit forbids: said once, and not tried again before the cool-down is over."""
    session.execute(_TRIED, {"id": resize.attempt})
    row = session.execute(_WHOSE, {"id": resize.attempt}).one()
    data = {"to": resize.replicas, "tenant": error.tenant, "resource": error.resource, "limit": error.limit}
    events.insert(
        session, row.job_id, row.tenant_id, "ResizeRefused", attempt_id=resize.attempt, reason=str(error), data=data
    )


_OF = text("SELECT placed FROM attempts WHERE id = :id")
_WHOSE = text("SELECT job_id, tenant_id FROM attempts JOIN jobs ON jobs.id = job_id WHERE attempts.id = :id")


def _wish(session: Session, resize: Resize) -> dict[str, Any]:
    held = session.execute(_OF, {"id": resize.attempt}).scalar_one_or_none()
    return wish_json(
        resize.group,
        resize.placed,
        before=size_of(placed_of(held or []), resize.group),
        in_place=resize.in_place,
        token=resize.why.token,
        numbers=resize.why.numbers,
    )


def wish_json(
    group: str,
    placed: Sequence[Placed],
    *,
    before: int,
    in_place: bool = False,
    token: str,
    numbers: Mapping[str, Any],
    lost: bool = False,
) -> dict[str, Any]:
    """A wish as `attempts.resize_to` holds it. lost: the members that go are taken away by somebody else."""
    return {
        "group": group,
        "replicas": size_of(tuple(placed), group),
        "from": before,
        "placed": placed_json(placed),
        "items": items_of(placed),
        "in_place": in_place,
        "lost": lost,
        "token": token,
        "numbers": dict(numbers),
    }


def change_lease(
    session: Session,
    attempt_id: str,
    placed: Sequence[Placed],
    *,
    loans: Sequence[Loan] = (),
    smaller: bool = False,
    to: str | None = None,
    max_duration_ms: int | None = None,
) -> LeaseRow:
    """Post the attempt's lease up to now and take one of another size in its place; LimitExceeded: a growth too many.

    loans: what a growth borrows more. to: the attempt that has it from now on, with the whole `max_duration_ms` ahead;
    the same attempt has what is left of its own. smaller: no limit is asked.
    """
    before = _live_lease(session, attempt_id)
    attempt = session.get_one(AttemptRow, attempt_id, populate_existing=True)
    now: datetime = session.execute(select(text("now()"))).scalar_one()
    hold_ms = max_duration_ms
    if to is None:
        rolling = session.execute(_ROLLING, {"id": attempt_id}).scalar_one()
        left = (before.covers_until or now) - now
        hold_ms = None if rolling else max(0, left // timedelta(milliseconds=1))
    kept = [*_still_borrowed(before.loans, amounts_of(before.items), amounts_of(items_of(placed))), *loans]
    leases.release(session, before, used_from=attempt.started_at, used_until=now, payer=Payer.TENANT)
    after = leases.take(
        session,
        lease_id=uuid4(),
        attempt_id=to or attempt_id,
        job_id=before.job_id,
        tenant_id=before.tenant_id,
        placed=placed,
        klass=PriorityClass(before.klass),
        loans=kept,
        max_duration_ms=hold_ms,
        smaller=smaller,
    )
    if to is None:
        session.execute(_PLACED, {"id": attempt_id, "lease_id": after.id})
    return after


_ROLLING = text(
    "SELECT request->>'max_duration_ms' IS NULL FROM jobs WHERE id = (SELECT job_id FROM attempts WHERE id = :id)"
)


def _live_lease(session: Session, attempt_id: str) -> LeaseRow:
    statement = select(LeaseRow).where(_LIVE_LEASE.bindparams(attempt=attempt_id)).with_for_update(key_share=True)
    return session.execute(statement.execution_options(populate_existing=True)).scalar_one()


def _still_borrowed(
    loans: Sequence[Mapping[str, Any]], before: Mapping[tuple[str, str], int], after: Mapping[tuple[str, str], int]
) -> list[Loan]:
    """What is given up is given back to those who lent last."""
    back = {
        flavor: max(0, held - after.get((flavor, what), 0)) for (flavor, what), held in before.items() if what == _GPU
    }
    found = []
    for loan in reversed(loans):
        returned = min(loan["amount"], back.get(loan["flavor"], 0))
        back[loan["flavor"]] = back.get(loan["flavor"], 0) - returned
        if loan["amount"] > returned:
            found.append(Loan(loan["lender"], loan["flavor"], loan["amount"] - returned))
    return found[::-1]


_GPU: Final = "accelerators"


def may_follow(
    session: Session, job: JobRow, attempt: AttemptRow, lease: LeaseRow | None, reason: Reason
) -> tuple[Placed, ...] | None:
    """Where the job's next attempt goes on with the lease of this one: at the asked size, else at the old one.

    None: nowhere, as after every end that is no resize. The save that was asked for may be of a kind that cannot be
    resharded after all (DESIGN §5: it ends at the asked size or at the old one), and what a waiter or a provider took
    leaves no old size to go on at.
    """
    wish = attempt.resize_to
    if reason is not Reason.RESIZED or not wish or lease is None or lease.state != LeaseState.HELD:
        return None
    if job.want_cancel or job.ended_at is not None or session.execute(_WHOLE, {"id": attempt.id}).scalar_one():
        return None
    newest = session.execute(_NEWEST, {"job": job.id}).one_or_none()
    if job.kind == JobKind.INFERENCE or newest is None or newest.reshardable:
        return placed_of(wish["placed"])
    return None if attempt.stop_for or wish["lost"] else placed_of(attempt.placed)


def succeed(session: Session, job: JobRow, attempt: AttemptRow, placed: Sequence[Placed]) -> str:
    """The next attempt of a resized job, on the lease of the one before; its id.

    Within the settlement: the job has just become QUEUED, and nobody has seen it so.
    """
    wish = attempt.resize_to
    assert wish is not None
    job_id = UUID(str(job.id))
    number = job.attempts + 1
    made = attempt_name(job_id, number)
    lease = change_lease(
        session,
        attempt.id,
        placed,
        smaller=True,
        to=made,
        max_duration_ms=job.request.get("max_duration_ms"),
    )
    why = {"token": wish["token"], "numbers": wish["numbers"], "remedy": ""}
    session.execute(
        _SUCCESSOR,
        {
            "id": made,
            "job_id": job_id,
            "number": number,
            "placed": dumps(placed_json(placed)),
            "lease_id": lease.id,
            "why": dumps(why),
            "at": wish.get("at"),
        },
    )
    moved = move_job(
        session,
        job_id,
        JobState.ADMITTED,
        values={"attempts": number, "pending": null()},
        data={"token": wish["token"], "numbers": wish["numbers"]},
    )
    if not moved:
        raise AssertionError(f"job {job_id} was settled as QUEUED under its lock and would not be ADMITTED")
    size = size_of(tuple(placed), wish["group"])
    data = {"numbers": wish["numbers"], "from": wish["from"], "to": size, "asked": wish["replicas"]}
    events.insert(session, job_id, job.tenant_id, "RESERVED", attempt_id=made, reason=wish["token"], data=data)
    outbox.add(session, outbox.START, [made])
    return made
