"""What a running attempt says of itself: steps and checkpoints, and what it is told in return.

Only the job's newest attempt is heard, and only while it lives: an older one is fenced, whatever it saved. Times are
the database's; what a job claims is clamped to them and can lower its credit, never raise it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger import events, outbox
from gateway.ledger.codec import dumps, to_ms
from policies.elastic.resume import Layout, may_resume
from policies.vocabulary import StopCause

RECENT: Final = 15  # step times that the median is of
WARM_UP: Final = 10  # reports before a rate is measured, and that it is measured over at least


class FencedAttemptError(Exception):
    """This attempt has ended or a newer one has begun: nothing that it says is stored."""


class OutsideError(ValueError):
    """The URL lies outside the folder of this attempt."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the attempt is to do: kind "" is nothing; `number` counts checkpoint wishes."""

    kind: str = ""
    number: int = 0
    deadline: datetime | None = None


_ATTEMPT = text(
    """
    SELECT a.id, a.job_id, a.number, a.chunk, a.started_at, a.pending_at, a.created_at, a.progress, a.restart_ms,
        j.tenant_id, j.request, now() AS now
    FROM attempts a JOIN jobs j ON j.id = a.job_id
    WHERE a.id = :id AND a.ended_at IS NULL AND NOT EXISTS (
        SELECT FROM attempts newer
        WHERE newer.job_id = a.job_id AND newer.chunk IS NOT DISTINCT FROM a.chunk AND newer.number > a.number
            AND newer.state <> 'RESERVED')  -- one that has a place already, and waits for this one to leave
    FOR NO KEY UPDATE OF a
    """
)
_PROGRESS = text("UPDATE attempts SET progress = CAST(:progress AS jsonb), restart_ms = :restart_ms WHERE id = :id")
_CHECKPOINT = text(
    """
    INSERT INTO checkpoints (job_id, array_index, attempt_number, step, url, verified, reshardable, size, save_ms,
        parts, at)
    VALUES (:job_id, :array_index, :number, :step, :url, :verified, :reshardable, :size, :save_ms,
        CAST(:parts AS jsonb), now())
    ON CONFLICT (job_id, array_index, attempt_number, step) DO UPDATE
        SET verified = greatest(checkpoints.verified, :verified)
    RETURNING (xmax = 0) AS is_new
    """
)
_INVALID = text(
    """
    UPDATE checkpoints SET verified = 0
    WHERE job_id = (SELECT job_id FROM attempts WHERE id = :id) AND url = :url AND verified > 0
    """
)
_TOLD = text(
    """
    SELECT CASE WHEN NOT (a.stop_cause = 'resize' AND coalesce(CAST(a.resize_to->>'in_place' AS boolean), false))
            THEN a.stop_cause END AS stop_cause,  -- a resize inside the launch is no stop of its members
        coalesce(a.stopping_at, a.stop_asked_at)
            + make_interval(secs => coalesce(a.stop_grace_s, 0)) AS deadline,
        a.noticed_at IS NULL AND a.stop_grace_s > 0 AS new_notice,
        j.want_checkpoint, a.checkpoint_asked, j.want_cancel OR EXISTS (SELECT FROM tasks t WHERE t.job_id = a.job_id
            AND t.want_cancel AND t.index = a.first_index AND a.first_index = a.last_index) AS want_cancel
    FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE a.id = :id AND a.ended_at IS NULL
    """
)
_NOTICED = text("UPDATE attempts SET noticed_at = now() WHERE id = :id AND noticed_at IS NULL AND ended_at IS NULL")
# As `workflows.decide` says it to a backend; every other cause is "stop".
_KINDS: Final[Mapping[str, str]] = {
    StopCause.PREEMPT: "preempt",
    StopCause.RECLAIM: "preempt",
    StopCause.BACKFILL: "preempt",
    StopCause.MOVE: "preempt",
    StopCause.REVOCATION: "revoke",
    StopCause.DRAIN: "revoke",
    StopCause.RESIZE: "resize",
}


def report(session: Session, attempt_id: str, *, step: int, samples: int) -> None:
    """The newest step. A step that goes backwards is a resumed job, and is believed. FencedAttemptError."""
    row = _live(session, attempt_id)
    before: Mapping[str, Any] = row["progress"]
    now_ms = to_ms(row["now"]) or 0
    times = list(before.get("recent", ()))
    if before and step > before["step"]:
        times = [*times, (now_ms - before["at_ms"]) // (step - before["step"])][-RECENT:]
    progress = {
        "step": step,
        "samples": samples,
        "at_ms": now_ms,
        "reports": before.get("reports", 0) + 1,
        "recent": times,
        "step_ms": int(median(times)) if times else 0,
        **_rate(before, samples, now_ms),
    }
    restart_ms = row["restart_ms"]
    if not before:
        began = row["started_at"] or row["pending_at"] or row["created_at"]
        restart_ms = max(1, now_ms - (to_ms(began) or now_ms))
    session.execute(_PROGRESS, {"id": attempt_id, "progress": dumps(progress), "restart_ms": restart_ms})


def _at_another_size(request: Mapping[str, Any], saved: Mapping[str, int], *, reshardable: bool) -> bool:
    """Whether THIS job may resume from it at another size: its tensor and pipeline layout must be the job's own."""
    own = request.get("parallelism") or {"tp": 1, "pp": 1}
    layout = Layout(saved.get("tp") or own["tp"], saved.get("pp") or own["pp"], dp=1)
    return may_resume(layout, Layout(own["tp"], own["pp"], dp=2), reshardable=reshardable)


def _rate(before: Mapping[str, Any], samples: int, now_ms: int) -> dict[str, Any]:
    """Samples per second in thousandths, measured from the WARM_UP-th report on; known after as many again."""
    reports = before.get("reports", 0) + 1
    warm = {"at_ms": now_ms, "samples": samples} if reports == WARM_UP else before.get("warm")
    if warm is None:
        return {}
    more, took_ms = samples - warm["samples"], now_ms - warm["at_ms"]
    known = reports >= 2 * WARM_UP and more > 0 and took_ms > 0
    return {"warm": warm, **({"rate": more * 1_000_000 // took_ms} if known else {})}


def checkpoint(
    session: Session,
    attempt_id: str,
    *,
    step: int,
    url: str,
    size: int = 0,
    save_ms: int = 0,
    reshardable: bool = False,
    parts: Sequence[str] = (),
    world_size: int | None = None,
    parallelism: Mapping[str, int] | None = None,
    verified: int = 1,
) -> bool:
    """A manifest that is complete (1) or whose digests were checked too (2); True the first time. FencedAttemptError,
    OutsideError. The row's time is now(): a save that began long ago ends when we hear of it.
    """
    row = _live(session, attempt_id)
    _must_be_inside(row, url)
    ran_ms = max(0, (to_ms(row["now"]) or 0) - (to_ms(row["started_at"] or row["created_at"]) or 0))
    values = {
        "job_id": row["job_id"],
        "array_index": -1 if row["chunk"] is None else row["chunk"],
        "number": row["number"],
        "step": step,
        "url": url,
        "verified": verified,
        "reshardable": _at_another_size(row["request"], parallelism or {}, reshardable=reshardable),
        "size": size,
        "save_ms": min(save_ms, ran_ms),
        "parts": dumps({"names": list(parts), "world_size": world_size, "parallelism": dict(parallelism or {})}),
    }
    is_new = bool(session.execute(_CHECKPOINT, values).scalar_one())
    if is_new:
        data = {"step": step, "url": url, "size": size, "save_ms": min(save_ms, ran_ms), "verified": verified}
        events.insert(session, row["job_id"], row["tenant_id"], "Checkpoint", attempt_id=attempt_id, data=data)
        outbox.add(session, outbox.NUDGE, [attempt_id])
    return is_new


def checkpoint_broken(session: Session, attempt_id: str, url: str) -> None:
    """Digests did not hold at a resume (L2): the one before is the newest valid one from now on."""
    row = _live(session, attempt_id)
    session.execute(_INVALID, {"id": attempt_id, "url": url})
    events.insert(
        session, row["job_id"], row["tenant_id"], "CheckpointBroken", attempt_id=attempt_id, data={"url": url}
    )


def told(session: Session, attempt_id: str) -> Told:
    """What the attempt is to do now. FencedAttemptError once it has ended."""
    row = session.execute(_TOLD, {"id": attempt_id}).one_or_none()
    if row is None:
        raise FencedAttemptError(f"{attempt_id} has ended")
    if row.stop_cause is not None:
        if row.new_notice:  # it may act on this answer before the backend has passed the stop on
            session.execute(_NOTICED, {"id": attempt_id})
        return Told(_KINDS.get(row.stop_cause, "stop"), row.want_checkpoint, row.deadline)
    if row.want_cancel:
        return Told("stop", row.want_checkpoint)
    if row.want_checkpoint > row.checkpoint_asked:
        return Told("checkpoint", row.want_checkpoint)
    return Told("", row.want_checkpoint)


def _live(session: Session, attempt_id: str) -> Mapping[Any, Any]:
    row = session.execute(_ATTEMPT, {"id": attempt_id}).mappings().one_or_none()
    if row is None:
        raise FencedAttemptError(f"{attempt_id} has ended, or a newer attempt of its job has begun")
    return row


def _must_be_inside(row: Mapping[Any, Any], url: str) -> None:
    declared = row["request"].get("checkpoint")
    if declared is None:
        raise OutsideError("url: the job declares no checkpoint; submit it with checkpoint.url")
    index = "" if row["chunk"] is None else f"index-{row['chunk']}/"
    folder = f"{declared['url'].rstrip('/')}/{index}attempt-{row['number']}/"
    if not url.startswith(folder) or ".." in url.split("/"):
        raise OutsideError(f"url: must lie below {folder}")
