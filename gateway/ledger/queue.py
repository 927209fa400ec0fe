"""The queue as the arbiter sees it. A decoded job is kept by (id, version): a cycle decodes what is new only."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger.codec import queued_job
from policies.snapshot import QueuedJob

CHUNKS_OFFERED: Final = 100  # of one array in one cycle

_VERSIONS = text(
    "SELECT id, version, pending->>'token' AS token, pending->>'blocker' AS blocker FROM jobs WHERE state = 'QUEUED'"
)
_JOBS = text(
    """
    SELECT jobs.id, tenants.path, principal, kind, klass, submitted_at, jobs.version, request, want_size, not_before,
        want_hold, (SELECT max(ended_at) FROM attempts WHERE attempts.job_id = jobs.id) AS queued_at
    FROM jobs JOIN tenants ON tenants.id = jobs.tenant_id WHERE jobs.id = ANY(:ids)
    """
)
_ENDS = text("SELECT id, state FROM jobs WHERE id = ANY(:ids)")
_ARRAYS = text(
    """
    SELECT jobs.id, tenants.path, principal, kind, klass, submitted_at, jobs.version, request, want_size, not_before,
        want_hold, array_size, pending->>'token' AS token, pending->>'blocker' AS blocker
    FROM jobs JOIN tenants ON tenants.id = jobs.tenant_id
    WHERE array_size IS NOT NULL AND NOT want_cancel AND state IN ('QUEUED', 'ADMITTED', 'RUNNING')
    """
)
_TASKS = text(
    """
    SELECT job_id, max(index) AS last, count(*) FILTER (WHERE state IN ('ADMITTED', 'RUNNING', 'STOPPING')) AS live,
        array_agg(index ORDER BY index) FILTER (WHERE state = 'QUEUED') AS again
    FROM tasks WHERE job_id = ANY(:ids) GROUP BY job_id
    """
)


@dataclass(slots=True)
class QueueMemory:
    """What one process has decoded: job id -> (version, job, its dependencies by kind)."""

    jobs: dict[UUID, tuple[int, QueuedJob, Mapping[str, Sequence[str]]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Queue:
    """The queued jobs and the last Wait (token, blocker) of each."""

    jobs: tuple[QueuedJob, ...]
    waits: Mapping[str, tuple[str | None, str | None]]


def read(session: Session, memory: QueueMemory) -> Queue:
    """Every queued job and every chunk of an array that may start, in any order."""
    rows = session.execute(_VERSIONS).all()
    stale = [row.id for row in rows if (kept := memory.jobs.get(row.id)) is None or kept[0] != row.version]
    if stale:
        for found in session.execute(_JOBS, {"ids": stale}).mappings():
            memory.jobs[found["id"]] = (found["version"], queued_job(found), found["request"].get("after") or {})
    for gone in memory.jobs.keys() - {row.id for row in rows}:
        del memory.jobs[gone]
    waits: dict[str, tuple[str | None, str | None]] = {str(row.id): (row.token, row.blocker) for row in rows}
    whole = _closed(session, [memory.jobs[row.id] for row in rows])
    arrays = session.execute(_ARRAYS).mappings().all()
    waits.update({str(row["id"]): (row["token"], row["blocker"]) for row in arrays})
    return Queue((*whole, *_chunks(session, arrays)), waits)


def chunk_key(job_id: UUID | str, chunk: int) -> str:
    """The id of a chunk in the queue: the job's with its number."""
    return f"{job_id}/{chunk}"


def parse_key(key: str) -> tuple[UUID, int | None]:
    """(job id, chunk) of an id in the queue."""
    job, _, chunk = key.partition("/")
    return UUID(job), int(chunk) if chunk else None


def _chunks(session: Session, arrays: Sequence[Mapping[Any, Any]]) -> list[QueuedJob]:
    """One index is one chunk: a lease, an attempt, a retry and an end of its own."""
    if not arrays:
        return []
    tasks = {row.job_id: row for row in session.execute(_TASKS, {"ids": [row["id"] for row in arrays]})}
    wholes = _closed(session, [(row["version"], queued_job(row), row["request"].get("after") or {}) for row in arrays])
    found: list[QueuedJob] = []
    for row, whole in zip(arrays, wholes, strict=True):
        task = tasks.get(row["id"])
        live, again, first = (task.live, task.again or [], task.last + 1) if task is not None else (0, [], 0)
        parallelism = row["request"]["array"]["parallelism"] or row["array_size"]
        room = max(0, min(parallelism - live, CHUNKS_OFFERED))
        indexes = [*again, *range(first, min(row["array_size"], first + room))][:room]
        found += [replace(whole, id=chunk_key(row["id"], index), chunk=(index, index)) for index in indexes]
    return found


def _closed(session: Session, jobs: Iterable[tuple[int, QueuedJob, Mapping[str, Sequence[str]]]]) -> list[QueuedJob]:
    """The jobs with their dependencies judged by the states of now."""
    jobs = list(jobs)
    wanted = {name for _, _, after in jobs for names in after.values() for name in names}
    if not wanted:
        return [job for _, job, _ in jobs]
    states = {str(row.id): row.state for row in session.execute(_ENDS, {"ids": [UUID(name) for name in wanted]})}
    return [_judged(job, after, states) for _, job, after in jobs]


def _judged(job: QueuedJob, after: Mapping[str, Sequence[str]], states: Mapping[str, str]) -> QueuedJob:
    open_ones: list[str] = []
    impossible = False
    for kind, names in after.items():
        for name in names:
            state = states.get(name)
            if state is None:
                impossible = impossible or kind != "any"  # its row is gone with retention: how it ended is not known
            elif state not in {"SUCCEEDED", "FAILED", "CANCELLED", "REJECTED"}:
                open_ones.append(name)
            else:
                well = state == "SUCCEEDED"
                impossible = impossible or (kind == "ok" and not well) or (kind == "not_ok" and well)
    if not open_ones and not impossible:
        return job
    return replace(job, waits_for=tuple(open_ones), dependency_impossible=impossible)
