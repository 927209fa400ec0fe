"""A plan, written: the epoch first, then a savepoint per act; what the world has overtaken is dropped, the rest holds.

Lock order, so that nothing here ever waits in a ring: jobs and attempts first and only those that nobody else holds
(a row in other hands is being changed, so what was decided about it is stale), then accounts in ascending id.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger import acts, decisions, displace, resizing, transition
from gateway.ledger.acts import STALE, Applied, DroppedError, LockedJob
from gateway.ledger.archive import Archive
from gateway.ledger.codec import dumps, from_ms
from gateway.ledger.decisions import Decided
from gateway.ledger.limits import LimitExceeded
from gateway.ledger.queue import parse_key
from gateway.ledger.snapshot import LedgerCycle
from policies.decisions import Act, Move, Plan, Preempt, Reject, Resize, Wait, Why
from policies.vocabulary import JobState, Pending
from workflows.store import CommitReport, Cycle, FencedError

_PROVE: Final = text("UPDATE arbiter SET beat = now() WHERE id = 1 AND epoch = :epoch RETURNING epoch")
_LOCK_JOBS = text(
    """
    SELECT id, tenant_id, klass, state, version, attempts, array_size, want_cancel OR want_hold AS withheld,
        CASE WHEN id = ANY(:whole) THEN request END AS request
    FROM jobs WHERE id = ANY(:ids) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    """
)
_LOCK_ATTEMPTS = text("SELECT id FROM attempts WHERE id = ANY(:ids) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED")
_LOCK_ACCOUNTS = text(
    """
    WITH RECURSIVE above AS (
        SELECT t.id, t.parent_id FROM tenants t WHERE t.id IN (
            SELECT tenant_id FROM jobs WHERE id = ANY(:ids)
            UNION SELECT tenant_id FROM leases WHERE attempt_id = ANY(:displaced))
        UNION SELECT t.id, t.parent_id FROM tenants t JOIN above ON t.id = above.parent_id
    )
    SELECT id FROM accounts WHERE tenant_id IS NULL OR tenant_id IN (SELECT id FROM above) ORDER BY id
    FOR NO KEY UPDATE
    """
)
_WAIT = text(
    """
    UPDATE jobs SET pending = w.pending
    FROM jsonb_to_recordset(CAST(:waits AS jsonb)) AS w(id uuid, version int, pending jsonb)
    WHERE jobs.id = w.id AND jobs.version = w.version AND jobs.state IN ('QUEUED', 'ADMITTED', 'RUNNING')
    RETURNING jobs.id
    """
)


@dataclass(slots=True)
class Committed:
    """The report, and the archive of snapshots as it stands once the transaction has committed."""

    report: CommitReport
    archive: Archive


@dataclass(slots=True)
class _Locked:
    jobs: dict[UUID, LockedJob] = field(default_factory=dict)
    attempts: set[str] = field(default_factory=set)


def prove(session: Session, epoch: int) -> None:
    """The epoch is still mine, and stays so until this transaction ends; else FencedError."""
    if session.execute(_PROVE, {"epoch": epoch}).one_or_none() is None:
        raise FencedError(f"epoch {epoch} is over: a later arbiter has taken it")


def apply(session: Session, epoch: int, cycle: Cycle, plan: Plan, *, archive: Archive, config: str) -> Committed:
    """Write what still holds of the plan. The caller commits."""
    prove(session, epoch)
    known = cycle.waits if isinstance(cycle, LedgerCycle) else {}
    waits = _news(plan.waits, known)
    locked = _lock(session, plan, waits)
    done = Applied()
    dropped: dict[str, str] = {}
    rejected: list[str] = []
    for act in plan.acts:
        if (problem := _attempt(session, act, locked, done)) is not None:
            _drop(act, problem, dropped, done)
            waits |= _news(_limited(act, problem), known)
    for reject in plan.rejects:
        if _reject(session, reject, locked, done):
            rejected.append(reject.job)
        else:
            dropped[reject.job] = STALE
    written = _write_waits(session, waits, locked, done)
    if done.decided:
        digest, archive = archive.store(session, cycle.snapshot)
        decisions.record(
            session, done.decided, epoch=epoch, snapshot=digest, now_ms=cycle.now_ms, policy=plan.policy, config=config
        )
    report = CommitReport(tuple(done.admitted), tuple(done.preempted), tuple(rejected), written, dropped)
    return Committed(report, archive)


def _news(waits: tuple[Wait, ...], known: Mapping[str, tuple[str | None, str | None]]) -> dict[UUID, Wait]:
    """Waits whose token or blocker differs from what the row says; of an array's chunks the first speaks for all."""
    found: dict[UUID, Wait] = {}
    seen: set[UUID] = set()
    for wait in waits:
        job_id, _ = parse_key(wait.job)
        if job_id not in seen:
            seen.add(job_id)
            if known.get(str(job_id)) != (wait.pending.value, wait.blocker):
                found[job_id] = wait
    return found


def _wishes(act: Act) -> list[Preempt | Move | Resize]:
    return [*act.preempts, *act.moves, *act.resizes]


def _lock(session: Session, plan: Plan, waits: Mapping[UUID, Wait]) -> _Locked:
    admitted = {parse_key(admit.job)[0] for act in plan.acts for admit in act.admits}
    admitted |= {UUID(move.job) for act in plan.acts for move in act.moves}  # admitted elsewhere
    resizes = [resize for act in plan.acts for resize in act.resizes]
    jobs = (
        admitted
        | {UUID(resize.job) for resize in resizes}
        | {parse_key(reject.job)[0] for reject in plan.rejects}
        | set(waits)
    )
    attempts = {wish.attempt for act in plan.acts for wish in _wishes(act)}
    locked = _Locked()
    if jobs:
        rows = session.execute(_LOCK_JOBS, {"ids": list(jobs), "whole": list(admitted)}).mappings()
        locked.jobs = {row["id"]: LockedJob(**row) for row in rows}
    if attempts:
        locked.attempts = set(session.execute(_LOCK_ATTEMPTS, {"ids": sorted(attempts)}).scalars())
    displaced = {preempt.attempt for act in plan.acts for preempt in act.preempts if preempt.displaced}
    if displaced:
        mine = set(session.execute(displace.LOCK_LEASES, {"ids": sorted(displaced)}).scalars())
        locked.attempts -= displaced - mine
    resized = {resize.attempt for resize in resizes}
    if resized:
        mine = set(session.execute(resizing.LOCK_LEASES, {"ids": sorted(resized)}).scalars())
        locked.attempts -= resized - mine
    if admitted or resized:
        others = sorted(displaced | resized)
        session.execute(_LOCK_ACCOUNTS, {"ids": sorted(admitted), "displaced": others}).all()
    return locked


def _attempt(session: Session, act: Act, locked: _Locked, done: Applied) -> Why | None:
    """Apply one act in a savepoint; why it was dropped, or None. The numbers of a limit name whose it is."""
    busy = [admit.job for admit in act.admits if parse_key(admit.job)[0] not in locked.jobs]
    busy += [resize.job for resize in act.resizes if UUID(resize.job) not in locked.jobs]
    busy += [move.job for move in act.moves if UUID(move.job) not in locked.jobs]
    busy += [wish.attempt for wish in _wishes(act) if wish.attempt not in locked.attempts]
    if busy:
        return Why(STALE, {}, f"{busy[0]} is being changed by another transaction, or is gone")
    try:
        with session.begin_nested():
            acts.apply(session, act, locked.jobs, done)
    except DroppedError as error:
        return Why(error.reason, {}, str(error))
    except LimitExceeded as error:
        token = Pending.BUDGET_EXHAUSTED if error.is_budget else Pending.TENANT_LIMIT
        return Why(token.value, error.numbers, str(error))
    return None


def _limited(act: Act, problem: Why) -> tuple[Wait, ...]:
    """A limit that the plan did not know of (a budget, an allowance) is told to the job, as the plan would have."""
    if problem.token == STALE:
        return ()
    pending, whose = Pending(problem.token), str(problem.numbers.get("tenant", ""))
    return tuple(Wait(a.job, a.version, pending, problem, whose) for a in act.admits)


def _drop(act: Act, problem: Why, dropped: dict[str, str], done: Applied) -> None:
    token, message = problem.token, problem.remedy
    for admit in act.admits:
        dropped[admit.job] = token
        if token != STALE:
            continue  # its Wait says it, once
        why = Why(token, admit.why.numbers, message)
        done.decided.append(Decided("Admit", parse_key(admit.job)[0], None, why, applied=False))
    for wish in _wishes(act):
        dropped[wish.attempt] = token
        why = Why(token, wish.why.numbers, message)
        done.decided.append(Decided(type(wish).__name__, None, wish.attempt, why, applied=False))


def _reject(session: Session, reject: Reject, locked: _Locked, done: Applied) -> bool:
    job_id, _ = parse_key(reject.job)
    data = {"numbers": dict(reject.why.numbers), "remedy": reject.why.remedy}
    ended = job_id in locked.jobs and transition.move_job(
        session,
        job_id,
        JobState.REJECTED,
        version=reject.version,
        reason=reject.reason,
        message=reject.why.remedy,
        data=data,
    )
    if ended:
        done.decided.append(Decided("Reject", job_id, None, reject.why, {"reason": reject.reason.value}))
    return ended


def _write_waits(session: Session, waits: Mapping[UUID, Wait], locked: _Locked, done: Applied) -> int:
    """One statement for all. A wait about a job that this commit has changed finds another version and is left out."""
    mine = {job_id: wait for job_id, wait in waits.items() if job_id in locked.jobs}
    if not mine:
        return 0
    rows = [{"id": str(job_id), "version": wait.version, "pending": _pending(wait)} for job_id, wait in mine.items()]
    written = session.execute(_WAIT, {"waits": dumps(rows)}).scalars()
    count = 0
    for job_id in written:
        wait = mine[job_id]
        data = {"blocker": wait.blocker, "starts_ms": wait.starts_ms}
        done.decided.append(
            Decided("Wait", job_id, None, Why(wait.pending.value, wait.why.numbers, wait.why.remedy), data)
        )
        count += 1
    return count


def _pending(wait: Wait) -> dict[str, Any]:
    return {
        "token": wait.pending.value,
        "numbers": dict(wait.why.numbers),
        "remedy": wait.why.remedy,
        "blocker": wait.blocker,
        "starts_at": None if wait.starts_ms is None else from_ms(wait.starts_ms).isoformat(),
    }
