"""Attempts that a restored database has forgotten: made again from what their objects say, or refused by a rule.

An object is as good as an admission that was made already: it gets its attempt, its lease (checked against every limit,
as any) and its workflow, under its own number. Its number is the job's last: of those before it that the database does
not know, nothing is left to do. Never asks a backend.
"""

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from backends.naming import parse_attempt_id
from gateway.ledger import acts, reconcile, settlement, steps
from gateway.ledger.acts import Applied, DroppedError, LockedJob
from gateway.ledger.config import LedgerSettings
from gateway.ledger.limits import LimitExceeded
from policies.decisions import Act, Admit, Why
from policies.reasons import verdict
from policies.settings import PolicySettings
from policies.snapshot import Placed
from policies.vocabulary import AttemptState, Reason, RetryClass, Role, StopCause
from workflows.messages import EndRequest
from workflows.store import Forgotten

RECOVERED: Final = "Recovered"
_GOES_ON: Final = {RetryClass.REQUEUE, RetryClass.INFRASTRUCTURE}

_JOB = text(
    """
    SELECT id, tenant_id, principal, klass, state, version, attempts, array_size, want_cancel OR want_hold AS withheld,
        request, ended_at
    FROM jobs WHERE id = :id FOR NO KEY UPDATE
    """
)
_KNOWN = text(
    """
    SELECT coalesce(max(number), 0) AS newest, coalesce(array_agg(id) FILTER (WHERE ended_at IS NULL), '{}') AS live
    FROM attempts WHERE job_id = :job_id AND chunk IS NOT DISTINCT FROM CAST(:chunk AS int)
    """
)
_NUMBER = text("UPDATE jobs SET attempts = :attempts WHERE id = :id")
_TASK_NUMBER = text(
    """
    INSERT INTO tasks (job_id, index, state, reason, attempts, failures, want_cancel, attempt_id)
    VALUES (:job_id, :chunk, 'QUEUED', '', :attempts, 0, false, '')
    ON CONFLICT (job_id, index) DO UPDATE SET attempts = :attempts
    """
)
_POOLS = text("SELECT count(*) FROM pools WHERE name = ANY(:names)")
_TOKEN = text(
    """
    INSERT INTO tokens (id, digest, tenant_id, principal, role, attempt_id, note, created_at)
    VALUES (gen_random_uuid(), :digest, :tenant_id, :principal, :role, :attempt_id, 'job', now())
    ON CONFLICT DO NOTHING
    """
)
_STALL = text(
    """
    UPDATE attempts SET progress = jsonb_set(progress, '{at_ms}', to_jsonb((extract(epoch FROM now()) * 1000)::bigint))
    WHERE ended_at IS NULL AND progress ? 'at_ms'
    """
)
_TOLD = text(
    """
    SELECT id FROM attempts WHERE ended_at IS NULL AND stop_cause IS NULL AND EXISTS (
        SELECT FROM jsonb_each(observed) AS seen WHERE (seen.value->>'stop_confirmed')::boolean)
    ORDER BY id
    """
)


def take_in(session: Session, found: Forgotten, policy: PolicySettings | None = None) -> str:
    """Make the attempt that this object belongs to. "" when it lives in the ledger now; else why it must be ended."""
    job_id, chunk, number = parse_attempt_id(found.key)
    job = session.execute(_JOB, {"id": job_id}).mappings().one_or_none()
    if job is None:
        return "its job was submitted after the backup and is not known; whoever submitted it does so again"
    if job["ended_at"] is not None:
        return "its job has ended"
    known = session.execute(_KNOWN, {"job_id": job_id, "chunk": chunk}).one()
    if number <= known.newest:
        return f"attempt {known.newest} of its job is newer"
    _count(session, job_id, chunk, number)  # whatever comes of it: no later attempt writes into this one's folder
    placed = tuple(part for one in found.parts.values() for part in _named(one.placed, job["request"]))
    if missing := _missing(session, placed, job["request"]):
        return missing
    for older in known.live:
        settlement.settle(session, _superseded(session, older, number), settings=policy)
    try:
        with session.begin_nested():
            _admit(session, found, placed)
    except (DroppedError, LimitExceeded) as error:
        return f"it cannot have a lease again ({error})"
    return ""


def _count(session: Session, job_id: UUID, chunk: int | None, attempts: int) -> None:
    if chunk is None:
        session.execute(_NUMBER, {"id": job_id, "attempts": attempts})
    else:
        session.execute(_TASK_NUMBER, {"job_id": job_id, "chunk": chunk, "attempts": attempts})


def _admit(session: Session, found: Forgotten, placed: tuple[Placed, ...]) -> None:
    job_id, chunk, number = parse_attempt_id(found.key)
    _count(session, job_id, chunk, number - 1)
    row = dict(session.execute(_JOB, {"id": job_id}).mappings().one())
    principal = row.pop("principal")
    row.pop("ended_at")
    job = LockedJob(**row)
    name = str(job_id) if chunk is None else f"{job_id}/{chunk}"
    whole = None if chunk is None else (chunk, chunk)
    admit = Admit(name, job.version, placed, Why(RECOVERED, {"number": number}), chunk=whole)
    acts.apply(session, Act(admits=(admit,)), {job_id: job}, Applied())
    steps.mark(session, found.key, AttemptState.PENDING)
    for backend, part in found.parts.items():
        steps.prepared(session, found.key, backend, part.native)
        if part.begun:
            steps.started(session, found.key, backend)
        if part.token_sha256:
            values = {"digest": part.token_sha256, "tenant_id": job.tenant_id, "principal": principal}
            session.execute(_TOKEN, {**values, "role": int(Role.VIEWER), "attempt_id": found.key})


def _named(placed: tuple[Placed, ...], request: Mapping[str, Any]) -> list[Placed]:
    """By the job's own names: a group over two pools is `name` and `name-2` at the backend (gateway.ledger.launch)."""
    names = {group[0] for group in request["groups"]}
    found = []
    for part in placed:
        head, dash, tail = part.group.rpartition("-")
        name = head if part.group not in names and dash and tail.isdigit() else part.group
        found.append(Placed(name, part.pool, part.flavor, part.replicas, part.per_member, part.nodes))
    return found


def _missing(session: Session, placed: tuple[Placed, ...], request: Mapping[str, Any]) -> str:
    """What keeps these parts from being the whole of an attempt of this job; "" for nothing."""
    if not placed:
        return "its backend cannot say where it runs"
    names = sorted({part.pool for part in placed})
    if session.execute(_POOLS, {"names": names}).scalar_one() != len(names):
        return f"it runs in a pool that is not configured ({', '.join(names)})"
    for name, _, least, *_ in request["groups"]:
        if sum(part.replicas for part in placed if part.group == name) < least:
            return "only a part of its gang was found"
    return ""


def _superseded(session: Session, attempt_id: str, by: int) -> EndRequest:
    """How an attempt ended that was followed by another: as was seen, where the job goes on after such an end."""
    end = reconcile.last_end(session, attempt_id)
    said = f"attempt {by} followed it, after the backup that was restored"
    reason = Reason(end.reason)
    if verdict(reason).retry not in _GOES_ON:
        reason = Reason.BACKEND_REQUEUED  # it did go on: how this one ended was forgiven then
    return EndRequest(attempt_id, reason, ended_ms=end.ended_ms, exit_code=end.exit_code, message=said)


def after_restore(session: Session, settings: LedgerSettings) -> list[str]:
    """What a row says of the time before the backup must end nobody now. The attempts whose stop was forgotten.

    Stall clocks begin anew: silence of the database was none of the job's. A backend that has got a stop which no row
    knows of got it after the backup: for what is forgotten, so its job goes on (a cancel has to be asked for again).
    """
    session.execute(_STALL)
    told = list(session.execute(_TOLD).scalars())
    for attempt_id in told:
        # As long as may be: a second stop may only shorten what the first one gave.
        steps.ask_stop(session, attempt_id, StopCause.WAITER_GONE, settings.default_grace_s)
    return told
