"""What users wish of a job, as columns set by guarded UPDATEs. The row is the truth; a nudge only says "look again".

Two users at once are fine: each wish is one UPDATE, and a wish that is there already is answered and not repeated.
Decides which wish a state allows. Never carries one out: for live jobs the attempt's workflow does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger import arrays, events, outbox, transition, waiters
from gateway.ledger.codec import dumps
from policies.states import LIVE_JOB_STATES
from policies.vocabulary import JobKind, JobState, PriorityClass, Reason

LIVE: Final = sorted(state.value for state in LIVE_JOB_STATES)
MAX_REPLICAS: Final = 100_000


class WishRefusedError(Exception):
    """The job's state or spec does not allow the wish. `field` is what to change, the message says how."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class NoSuchJobError(LookupError):
    """There is no job with this id."""


@dataclass(frozen=True, slots=True)
class WishResult:
    """The job after the wish. `changed` is False where it had been wished before, or came too late."""

    state: str
    version: int
    changed: bool


def cancel(session: Session, job_id: UUID, principal: str, message: str = "", index: int | None = None) -> WishResult:
    """A queued job is CANCELLED at once; a live one when its attempts have ended. After the end: nothing changes.

    With `index` that index of an array alone, in the same way: it counts as ended and not as failed, the job goes on.
    """
    if index is not None:
        return _cancel_index(session, job_id, principal, message, index)
    ended = _set(
        session,
        job_id,
        "state = 'CANCELLED', reason = :reason, message = :message, want_cancel = true, pending = NULL,"
        " ended_at = now()",
        "state = 'QUEUED' AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.job_id = jobs.id AND a.ended_at IS NULL)",
        {"reason": Reason.USER_CANCELLED.value, "message": message[:500]},
    )
    if ended is not None:
        arrays.cancel_rest(session, job_id)
        _event(session, JobState.CANCELLED.value, ended, principal, reason=Reason.USER_CANCELLED.value)
        outbox.wake_arbiter(session)  # dependents may have become possible or impossible
        return WishResult(ended.state, ended.version, changed=True)
    return _wish(
        session,
        job_id,
        principal,
        "CancelWished",
        "want_cancel = true",
        guard="NOT want_cancel",
        then_spare=True,
        or_ended=True,
    )


def hold(session: Session, job_id: UUID, principal: str) -> WishResult:
    """The job is not admitted until unheld; what runs, runs on. Refused once it has ended, as all but a cancel is."""
    return _wish(session, job_id, principal, "Held", "want_hold = true", guard="NOT want_hold")


def unhold(session: Session, job_id: UUID, principal: str) -> WishResult:
    """The job may be admitted again."""
    return _wish(session, job_id, principal, "Unheld", "want_hold = false", guard="want_hold")


def checkpoint(session: Session, job_id: UUID, principal: str) -> WishResult:
    """One more save of what runs. Refused where the job has no `checkpoint` or does not run."""
    row = _require(session, job_id)
    if "checkpoint" not in row.request:
        raise WishRefusedError("checkpoint", "the job declares none; submit it with checkpoint.url to save it")
    if row.state not in {JobState.RUNNING, JobState.ADMITTED}:
        raise WishRefusedError("state", f"the job is {row.state}; only a running job can save")
    return _wish(session, job_id, principal, "CheckpointWished", "want_checkpoint = want_checkpoint + 1", guard="true")


def resize(session: Session, job_id: UUID, principal: str, group: str, replicas: int) -> WishResult:
    """Another target size for the elastic group: of a queued job from its next start on.

    The arbiter makes a running one smaller at once, and larger when there is room and quota for it; until then the job
    says for what it waits. The last wish counts. Refused of a job that could not resume at another size.
    """
    row = _require(session, job_id)
    _check_size(row.request, group, replicas)
    state = session.execute(_SIZE_STATE, {"job_id": job_id, "group": group}).one()
    if row.state in LIVE and state.replicas not in {None, replicas}:
        _check_resumable(row.request, kind=state.kind, reshardable=state.reshardable)
    return _wish(
        session,
        job_id,
        principal,
        "ResizeWished",
        "want_size = coalesce(want_size, '{}'::jsonb) || CAST(:size AS jsonb), want_size_at = clock_timestamp(),"
        " pending = NULL",
        guard="want_size IS NULL OR NOT want_size @> CAST(:size AS jsonb)",
        values={"size": dumps({group: replicas})},
        data={"group": group, "replicas": replicas},
    )


def requeue(session: Session, job_id: UUID, principal: str) -> WishResult:
    """What runs is told to save and leave, and the job is queued again; it costs none of its retries."""
    row = _require(session, job_id)
    if row.state not in LIVE:
        raise WishRefusedError("state", f"the job has ended ({row.state}); submit it again")
    asked = session.execute(_REQUEUE, {"job_id": job_id}).scalars().all()
    if not asked and not _live_attempts(session, job_id):
        raise WishRefusedError("state", f"nothing of the job runs; it is {row.state}")
    if asked:
        _event(session, "RequeueWished", row, principal)
        outbox.add(session, outbox.NUDGE, asked)
    return WishResult(row.state, row.version, changed=bool(asked))


def update(
    session: Session,
    job_id: UUID,
    principal: str,
    *,
    priority: PriorityClass | None = None,
    labels: Mapping[str, str] | None = None,
    max_duration_s: int | None = None,
) -> WishResult:
    """Labels always, after the end without an event; priority and max_duration while the job is queued."""
    row = _require(session, job_id)
    if (priority is not None or max_duration_s is not None) and row.state != JobState.QUEUED:
        field = "priority" if priority is not None else "max_duration"
        raise WishRefusedError(field, f"may change only while the job is QUEUED; it is {row.state}")
    parts: list[str] = []
    values: dict[str, Any] = {}
    changed: dict[str, Any] = {}
    if priority is not None:
        parts.append("klass = :klass")
        changed["priority"] = values["klass"] = priority.value
    if labels is not None:
        parts.append("labels = CAST(:labels AS jsonb)")
        values["labels"] = dumps(dict(labels))
        changed["labels"] = dict(labels)
    if max_duration_s is not None:
        parts.append("request = request || CAST(:limit AS jsonb), spec = spec || CAST(:spec_limit AS jsonb)")
        values["limit"] = dumps({"max_duration_ms": max_duration_s * 1000})
        values["spec_limit"] = dumps({"max_duration": max_duration_s})
        changed["max_duration"] = max_duration_s
    if not parts:
        return WishResult(row.state, row.version, changed=False)
    queued_only = priority is not None or max_duration_s is not None
    guard = "state = 'QUEUED'" if queued_only else "true"
    assign = ", ".join(parts)
    if queued_only or row.state in LIVE:
        try:
            return _wish(session, job_id, principal, "Updated", assign, guard=guard, values=values, data=changed)
        except WishRefusedError:
            if queued_only:
                raise
    # Nothing follows the terminal event, and nobody who followed the job would hear of it: the caller audits it.
    after = _set(session, job_id, assign, "true", values)
    return WishResult(after.state, after.version, changed=True)


# The size that counts is that of the attempt which lives, or would be resumed from.
_SIZE_STATE = text(
    """
    SELECT j.kind, saved.reshardable, coalesce(
        (SELECT sum(CAST(part->>'replicas' AS int)) FROM attempts a, jsonb_array_elements(a.placed) part
            WHERE a.job_id = j.id AND a.ended_at IS NULL AND part->>'group' = :group),
        (SELECT sum(CAST(part->>'replicas' AS int)) FROM attempts a, jsonb_array_elements(a.placed) part
            WHERE a.job_id = j.id AND a.number = saved.attempt_number AND part->>'group' = :group)
    )::int AS replicas
    FROM jobs j LEFT JOIN LATERAL (
        SELECT reshardable, attempt_number FROM checkpoints c WHERE c.job_id = j.id AND verified >= 1
        ORDER BY step DESC, attempt_number DESC LIMIT 1) saved ON true
    WHERE j.id = :job_id
    """
)
_REQUEUE = text(
    """
    UPDATE attempts SET stop_cause = 'requeue', stop_asked_at = now(), version = version + 1,
        stop_grace_s = coalesce((SELECT CAST(request->>'grace_s' AS int) FROM jobs WHERE id = :job_id), 300)
    WHERE job_id = :job_id AND ended_at IS NULL AND stop_cause IS NULL
    RETURNING id
    """
)


_ARRAY = text(
    """
    SELECT id, tenant_id, state, version, request, array_size, array_ended, array_failed, want_cancel
    FROM jobs WHERE id = :id FOR NO KEY UPDATE
    """
)
_COUNT_ENDED = text(
    "UPDATE jobs SET array_ended = array_ended + 1, version = version + 1 WHERE id = :id RETURNING state, version"
)
_TOUCH = text("UPDATE jobs SET version = version + 1 WHERE id = :id RETURNING state, version")
# The version rises, so that nothing is carried out that was decided about the attempt before.
_OF_INDEX = text(
    """
    UPDATE attempts SET version = version + 1
    WHERE job_id = :job_id AND ended_at IS NULL AND first_index = :index AND last_index = :index
    RETURNING id
    """
)


def _cancel_index(session: Session, job_id: UUID, principal: str, message: str, index: int) -> WishResult:
    row = session.execute(_ARRAY, {"id": job_id}).one_or_none()
    if row is None:
        raise NoSuchJobError(f"no job {job_id}")
    if row.array_size is None:
        raise WishRefusedError("index", "the job is no array; cancel it without an index")
    if not 0 <= index < row.array_size:
        raise WishRefusedError("index", f"lies between 0 and {row.array_size - 1}")
    if row.state not in LIVE or row.want_cancel:
        return WishResult(row.state, row.version, changed=False)
    data = {"index": index, "message": message[:500]}
    if arrays.cancel_waiting(session, job_id, index):
        _event(session, "IndexCancelled", row, principal, reason=Reason.USER_CANCELLED.value, data=data)
        after = session.execute(_COUNT_ENDED, {"id": job_id}).one()
        outbox.wake_arbiter(session)
        return _end_array(session, row) or WishResult(after.state, after.version, changed=True)
    if not arrays.wish_cancel(session, job_id, index):
        return WishResult(row.state, row.version, changed=False)
    _event(session, "IndexCancelWished", row, principal, data=data)
    told = list(session.execute(_OF_INDEX, {"job_id": job_id, "index": index}).scalars())
    outbox.add(session, outbox.NUDGE, told)
    waiters.spare_victims(session, told)
    outbox.wake_arbiter(session)
    after = session.execute(_TOUCH, {"id": job_id}).one()
    return WishResult(after.state, after.version, changed=True)


def _end_array(session: Session, row: Any) -> WishResult | None:
    """The job's end, where the index was the last that had not ended."""
    ended = row.array_ended + 1
    end = arrays.end_of(
        session, row.id, row.request, size=row.array_size, ended=ended, failed=row.array_failed, cancelled=False
    )
    if end is None:
        return None
    if row.state == JobState.QUEUED and end is not JobState.CANCELLED:
        # Its other indexes have run; between two of them it waited, and from there the table knows no such end.
        transition.move_job(session, row.id, JobState.ADMITTED, data={"cancelled_last": True})
    reason, code = arrays.words_of_end(session, row.id, end)
    if not transition.move_job(session, row.id, end, reason=reason.value, values={"exit_code": code}):
        raise AssertionError(f"array {row.id} was {row.state} under its lock and would not become {end}")
    after = _require(session, row.id)
    return WishResult(after.state, after.version, changed=True)


def _wish(
    session: Session,
    job_id: UUID,
    principal: str,
    kind: str,
    assign: str,
    *,
    guard: str,
    values: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    then_spare: bool = False,
    or_ended: bool = False,
) -> WishResult:
    """`or_ended`: what is wished is so anyway once the job has ended; any other wish is refused from then on."""
    row = _set(session, job_id, assign, f"({guard}) AND state = ANY(:live)", {**(values or {}), "live": LIVE})
    if row is None:
        row = _require(session, job_id)
        if row.state not in LIVE and not or_ended:
            raise WishRefusedError("state", f"the job has ended ({row.state})")
        return WishResult(row.state, row.version, changed=False)
    _event(session, kind, row, principal, data=data)
    outbox.add(session, outbox.NUDGE, _live_attempts(session, job_id))
    if then_spare:
        waiters.spare_victims_of(session, job_id)
    outbox.wake_arbiter(session)
    return WishResult(row.state, row.version, changed=True)


def _set(session: Session, job_id: UUID, assign: str, where: str, values: Mapping[str, Any]) -> Any:
    """The guarded UPDATE; `assign` and `where` are this module's own texts, every value is bound."""
    statement = text(
        f"UPDATE jobs SET {assign}, version = version + 1 WHERE id = :job_id AND {where}"  # noqa: S608
        " RETURNING id, tenant_id, state, version, request"
    )
    return session.execute(statement, {"job_id": job_id, **values}).one_or_none()


def _require(session: Session, job_id: UUID) -> Any:
    row = session.execute(
        text("SELECT id, tenant_id, state, version, request FROM jobs WHERE id = :id"), {"id": job_id}
    ).one_or_none()
    if row is None:
        raise NoSuchJobError(f"no job {job_id}")
    return row


def _live_attempts(session: Session, job_id: UUID) -> list[str]:
    found = session.execute(
        text("SELECT id FROM attempts WHERE job_id = :id AND ended_at IS NULL ORDER BY id"), {"id": job_id}
    )
    return [row.id for row in found]


def _event(
    session: Session, kind: str, row: Any, principal: str, *, reason: str = "", data: Mapping[str, Any] | None = None
) -> None:
    events.insert(session, row.id, row.tenant_id, kind, reason=reason, data={"principal": principal, **(data or {})})


def _check_size(request: Mapping[str, Any], group: str, replicas: int) -> None:
    names = [part[0] for part in request["groups"]]
    if group not in names:
        raise WishRefusedError("group", f"the job has no group {group!r}; it has: {', '.join(names)}")
    elastic = request.get("elastic")
    if elastic is None:
        raise WishRefusedError("replicas", "the job is not elastic; submit it with elastic{min, target, max}")
    if group != elastic["group"]:
        raise WishRefusedError("group", f"{group!r} has one size; the elastic group is {elastic['group']!r}")
    if not elastic["min"] <= replicas <= elastic["max"]:
        raise WishRefusedError(
            "replicas", f"lies between elastic.min {elastic['min']} and elastic.max {elastic['max']}"
        )
    if replicas % elastic["step"]:
        raise WishRefusedError(
            "replicas",
            f"is a multiple of {elastic['step']}: of elastic.multiple_of {elastic['multiple_of']} and of whole model"
            " replicas (tp·pp)",
        )


def _check_resumable(request: Mapping[str, Any], *, kind: str, reshardable: bool | None) -> None:
    """DESIGN §7: replicas come and go; training starts at another size only from a checkpoint that may be resharded."""
    if kind == JobKind.INFERENCE:
        return
    if not request["elastic"]["reshard"]:
        raise WishRefusedError(
            "elastic", "elastic.reshard is false; the job would lose its state. Submit it with elastic.reshard: true"
        )
    if not reshardable:
        raise WishRefusedError("checkpoint", "the newest checkpoint is not reshardable; save one that is, then resize")
