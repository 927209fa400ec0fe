"""The queue as the arbiter sees it. A decoded job is kept by (id, version): a cycle decodes what is new only."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger import arrays, theft
from gateway.ledger.codec import queued_job, to_ms
from gateway.ledger.limits import budgets_left
from policies.arrays import chunks
from policies.snapshot import QueuedJob

CHUNKS_OFFERED: Final = 100  # of one array in one cycle
CHUNK_LIMIT: Final = 1
"""Indexes in one chunk: no backend here has native arrays (ADR 6). One that declares `array` brings its own limit."""

_VERSIONS = text(
    """
    SELECT id, version, pending->>'token' AS token, pending->>'blocker' AS blocker,
        CASE WHEN pending->>'token' = 'BudgetExhausted' THEN pending->'numbers' END AS unpaid
    FROM jobs WHERE state = 'QUEUED' AND array_size IS NULL  -- an array is offered by its chunks alone
    """
)
_JOBS = text(
    """
    SELECT jobs.id, tenants.path, principal, kind, klass, submitted_at, jobs.version, request, want_size, not_before,
        want_hold, (SELECT max(ended_at) FROM attempts WHERE attempts.job_id = jobs.id) AS queued_at,
        CASE WHEN request ? 'elastic' AND kind <> 'inference' THEN (
            SELECT jsonb_build_object('reshardable', c.reshardable, 'replicas', (
                SELECT sum(CAST(part->>'replicas' AS int)) FROM jsonb_array_elements(a.placed) part
                WHERE part->>'group' = request->'elastic'->>'group'))
            FROM checkpoints c JOIN attempts a ON a.job_id = c.job_id AND a.number = c.attempt_number
            WHERE c.job_id = jobs.id AND c.verified >= 1
            ORDER BY c.step DESC, c.attempt_number DESC LIMIT 1) END AS saved
    FROM jobs JOIN tenants ON tenants.id = jobs.tenant_id WHERE jobs.id = ANY(:ids)
    """
)
_BACKENDS = text("SELECT name, version, (extract(epoch FROM now()) * 1000)::bigint AS now_ms FROM backends")
_ENDS = text("SELECT id, state FROM jobs WHERE id = ANY(:ids)")
_ARRAYS = text(
    """
    SELECT jobs.id, tenants.path, principal, kind, klass, submitted_at, jobs.version, request, want_size, not_before,
        want_hold, array_size, CASE WHEN state = 'QUEUED' AND started_at IS NOT NULL THEN (
            SELECT max(ended_at) FROM attempts WHERE attempts.job_id = jobs.id) END AS queued_at,
        pending->>'token' AS token, pending->>'blocker' AS blocker,
        CASE WHEN pending->>'token' = 'BudgetExhausted' THEN pending->'numbers' END AS unpaid
    FROM jobs JOIN tenants ON tenants.id = jobs.tenant_id
    WHERE array_size IS NOT NULL AND ended_at IS NULL AND NOT want_cancel AND state IN ('QUEUED', 'ADMITTED', 'RUNNING')
    """
)
_TASKS = text(
    """
    SELECT job_id, max(index) AS last, count(*) AS known,
        count(*) FILTER (WHERE state IN ('ADMITTED', 'RUNNING', 'STOPPING')) AS live,
        array_agg(index ORDER BY index) FILTER (WHERE state = 'QUEUED' AND NOT want_cancel
            AND (not_before IS NULL OR not_before <= now())) AS again
    FROM tasks WHERE job_id = ANY(:ids) GROUP BY job_id
    """
)
# Indexes that wait out a back-off of their own, the nearest first, or stay away from nodes.
_APART = text(
    """
    SELECT job_id, index AS task, avoid_nodes, not_before, coalesce(not_before > now(), false) AS cooling
    FROM tasks
    WHERE job_id = ANY(:ids) AND state = 'QUEUED' AND NOT want_cancel
        AND (not_before > now() OR avoid_nodes IS NOT NULL)
    ORDER BY not_before, index
    """
)


@dataclass(slots=True)
class QueueMemory:
    """What one process has decoded: job id -> (version, job, what of it has to be judged anew in each cycle)."""

    jobs: dict[UUID, tuple[int, QueuedJob, "Open"]] = field(default_factory=dict)
    live: dict[UUID, tuple[int, str, QueuedJob]] = field(default_factory=dict)  # of `gateway.ledger.living`


@dataclass(frozen=True, slots=True)
class Open:
    """after: dependencies by kind. refused_by: backend -> until when, and which version of it, serves it not."""

    after: Mapping[str, Sequence[str]]
    refused_by: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> "Open":
        """Of a row's request."""
        return cls(request.get("after") or {}, request.get("refused_by") or {})


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
            memory.jobs[found["id"]] = (found["version"], queued_job(found), Open.of(found["request"]))
    for gone in memory.jobs.keys() - {row.id for row in rows}:
        del memory.jobs[gone]
    waits: dict[str, tuple[str | None, str | None]] = {str(row.id): (row.token, row.blocker) for row in rows}
    first = theft.first_in_line(session)
    whole = (
        [
            replace(job, first_in_line=True) if UUID(job.id) in first else job
            for job in _closed(session, [memory.jobs[row.id] for row in rows])
        ]
        if first
        else _closed(session, [memory.jobs[row.id] for row in rows])
    )
    arrays = session.execute(_ARRAYS).mappings().all()
    waits.update({str(row["id"]): (row["token"], row["blocker"]) for row in arrays})
    unpaid = {str(row["id"]): row["unpaid"] for row in (*(row._mapping for row in rows), *arrays) if row["unpaid"]}  # noqa: SLF001  (the documented name)
    return Queue(tuple(_unpaid(session, [*whole, *_chunks(session, arrays)], unpaid)), waits)


def _unpaid(
    session: Session, jobs: Sequence[QueuedJob], told: Mapping[str, Mapping[str, int | str]]
) -> Sequence[QueuedJob]:
    """The jobs, those marked that no budget paid for when the ledger last asked and that none pays for now."""
    if not told:
        return jobs
    left = budgets_left(session)
    marked = []
    for job in jobs:
        numbers = told.get(job.id.partition("/")[0])
        marked.append(job if numbers is None or _paid(job, numbers, left) else replace(job, over_budget=numbers))
    return marked


def _paid(job: QueuedJob, told: Mapping[str, int | str], left: Mapping[tuple[str, str], int]) -> bool:
    """Whether what it was told may be so no more: the ledger has the word. A changed duration is another question."""
    budget = left.get((str(told.get("tenant")), str(told.get("resource"))))
    changed = job.max_duration_ms not in {None, told.get("for_ms")}
    return budget is None or changed or int(told.get("asked", 0)) <= budget


def chunk_key(job_id: UUID | str, chunk: int) -> str:
    """The id of a chunk in the queue: the job's with its number."""
    return f"{job_id}/{chunk}"


def parse_key(key: str) -> tuple[UUID, int | None]:
    """(job id, chunk) of an id in the queue."""
    job, _, chunk = key.partition("/")
    return UUID(job), int(chunk) if chunk else None


def _chunks(session: Session, arrays: Sequence[Mapping[Any, Any]]) -> list[QueuedJob]:
    """A chunk has a lease, an attempt, a retry and an end of its own."""
    if not arrays:
        return []
    ids = {"ids": [row["id"] for row in arrays]}
    tasks = {row.job_id: row for row in session.execute(_TASKS, ids)}
    apart: dict[UUID, dict[int, Any]] = {}
    for one in session.execute(_APART, ids):
        apart.setdefault(one.job_id, {})[one.task] = one
    wholes = _closed(session, [(row["version"], queued_job(row), Open.of(row["request"])) for row in arrays])
    found: list[QueuedJob] = []
    for row, whole in zip(arrays, wholes, strict=True):
        task = tasks.get(row["id"])
        parallelism = row["request"]["array"]["parallelism"] or row["array_size"]
        room = max(0, min(parallelism - (task.live if task is not None else 0), CHUNKS_OFFERED))
        mine = apart.get(row["id"], {})
        indexes = _open_indexes(session, row, task, room)
        # Behind all that may start now: they would keep its places, and say for what the array waits.
        indexes += [index for index, one in mine.items() if one.cooling][: room - len(indexes)]
        # Cut by position among the open ones: with a limit of one index, positions and indexes need not be neighbours.
        cut = chunks(len(indexes), CHUNK_LIMIT) if indexes else ()
        spans = [(indexes[first], indexes[last]) for first, last in cut]
        found += [_chunk(whole, row["id"], span, mine.get(span[0])) for span in spans]
    return found


def _chunk(whole: QueuedJob, job_id: UUID, span: tuple[int, int], apart: Any) -> QueuedJob:
    """One chunk as a job of the queue; `apart`: its index's own back-off and nodes to stay away from."""
    job = replace(whole, id=chunk_key(job_id, span[0]), chunk=span)
    if apart is None:
        return job
    avoided = tuple(apart.avoid_nodes or ())
    not_before_ms = max(job.not_before_ms, to_ms(apart.not_before) or 0)
    return replace(job, not_before_ms=not_before_ms, placement=replace(job.placement, avoid_nodes=avoided))


def _open_indexes(session: Session, row: Mapping[Any, Any], task: Any, room: int) -> list[int]:
    """At most `room` indexes that may start: those that wait for another try, then those that never began."""
    if task is None:
        return list(range(min(row["array_size"], room)))
    first = task.last + 1
    holes = arrays.without_row(session, row["id"], first, room) if task.known < first and room else []
    return [*(task.again or []), *holes, *range(first, min(row["array_size"], first + room))][:room]


def _closed(session: Session, jobs: Iterable[tuple[int, QueuedJob, Open]]) -> list[QueuedJob]:
    """The jobs with their dependencies, and the refusals that they met, judged by what is so now."""
    jobs = list(jobs)
    wanted = {name for _, _, open_ in jobs for names in open_.after.values() for name in names}
    refused = any(open_.refused_by for _, _, open_ in jobs)
    if not wanted and not refused:
        return [job for _, job, _ in jobs]
    ids = [UUID(name) for name in wanted]
    states = {str(row.id): row.state for row in session.execute(_ENDS, {"ids": ids})} if wanted else {}
    backends = {row.name: row for row in session.execute(_BACKENDS)} if refused else {}
    return [_judged(_served(job, open_.refused_by, backends), open_.after, states) for _, job, open_ in jobs]


def _served(job: QueuedJob, refused_by: Mapping[str, Mapping[str, Any]], backends: Mapping[str, Any]) -> QueuedJob:
    """Without the refusals that are over: the backend's document has changed since, or their time is up."""
    if not refused_by:
        return job
    held = tuple(
        (name, remedy)
        for name, remedy in job.placement.refused_by
        if (now := backends.get(name)) is not None
        and refused_by[name]["version"] == now.version
        and now.now_ms < refused_by[name]["until_ms"]
    )
    return replace(job, placement=replace(job.placement, refused_by=held))


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
