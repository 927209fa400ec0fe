"""A job is accepted: key, row, event and wake-up in one transaction, one statement and one round trip.

Decides whether a call with a known key is the same call again. Never validates a spec, never decides when a job runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger.codec import body_digest, dumps, request_of
from tidegate.wire.spec import JobSpec

__all__ = ["KeyConflictError", "NewJob", "SubmitResult", "body_digest", "submit", "submit_many"]


class KeyConflictError(Exception):
    """This key has made another job: the body differs. Nothing was stored."""

    def __init__(self, key: str, job_id: UUID) -> None:
        super().__init__(
            f"Idempotency-Key {key!r} was used for job {job_id} with another body; send the same body or a new key"
        )
        self.key = key
        self.job_id = job_id


@dataclass(frozen=True, slots=True)
class SubmitResult:
    """The job that the call made, or had made before."""

    job_id: UUID
    replayed: bool


@dataclass(frozen=True, slots=True)
class NewJob:
    """One job of a batch."""

    spec: JobSpec
    job_id: UUID
    key: str | None = None
    digest: bytes = b""


_JOB_COLUMNS = """id, tenant_id, principal, name, kind, klass, spec, request, labels, state, reason, message, version,
        attempts, failures, preemptions, revocations, no_progress, want_cancel, want_hold, want_checkpoint, array_size,
        array_ended, array_failed, submitted_at"""
_JOB_REST = "'QUEUED', '', '', 1, 0, 0, 0, 0, 0, false, false, 0, new.array_size, 0, 0, now()"

# A key that is taken makes the whole statement do nothing: no job, no event, no wake-up.
_SUBMIT = text(
    f"""
    WITH new AS (
        SELECT * FROM jsonb_to_recordset(CAST(:jobs AS jsonb)) AS t(n int, id uuid, name text, kind text, klass text,
            spec jsonb, request jsonb, labels jsonb, array_size int, key text, digest text)
    ), kept AS (
        INSERT INTO idempotency_keys (tenant_id, key, body_digest, job_id, created_at)
        SELECT :tenant_id, key, decode(digest, 'hex'), id, now() FROM new WHERE key IS NOT NULL ORDER BY key
        ON CONFLICT DO NOTHING
        RETURNING job_id
    ), made AS (
        INSERT INTO jobs ({_JOB_COLUMNS})
        SELECT new.id, :tenant_id, :principal, new.name, new.kind, new.klass, new.spec,
            new.request, new.labels, {_JOB_REST}
        FROM new WHERE new.key IS NULL OR new.id IN (SELECT job_id FROM kept) ORDER BY new.n
        RETURNING id
    ), told AS (
        INSERT INTO events (at, job_id, tenant_id, kind, reason, data)
        SELECT now(), made.id, :tenant_id, 'QUEUED', '', jsonb_build_object('principal', CAST(:principal AS text))
        FROM made
    ), woken AS (
        SELECT pg_notify('tidegate_work', '') FROM (SELECT 1 FROM made LIMIT 1) AS any_made
    )
    SELECT made.id, w.wakes FROM made CROSS JOIN (SELECT count(*) AS wakes FROM woken) AS w
    """  # noqa: S608  (only our own column lists are joined in)
)
_KNOWN = text(
    "SELECT key, body_digest, job_id FROM idempotency_keys"
    " WHERE tenant_id = :tenant_id AND key = ANY(CAST(:keys AS text[]))"
)


def submit(
    session: Session,
    *,
    tenant_id: int,
    principal: str,
    spec: JobSpec,
    key: str | None,
    body_digest: bytes,
    job_id: UUID,
) -> SubmitResult:
    """Store the job, or find the one that this key made. The caller commits. KeyConflictError: another body.

    A parallel call with the same key waits here for the first one's commit and then sees its job.
    """
    new = NewJob(spec=spec, job_id=job_id, key=key, digest=body_digest)
    return submit_many(session, tenant_id=tenant_id, principal=principal, jobs=(new,))[0]


def submit_many(
    session: Session, *, tenant_id: int, principal: str, jobs: Sequence[NewJob]
) -> tuple[SubmitResult, ...]:
    """All or none, in order; the caller commits. Jobs whose key is known are answered with what it made."""
    made = {
        row[0]
        for row in session.execute(
            _SUBMIT, {"tenant_id": tenant_id, "principal": principal, "jobs": dumps(_rows(jobs))}
        ).all()
    }
    known: dict[str, tuple[bytes, UUID]] = {}
    if len(made) < len(jobs):
        keys = [job.key for job in jobs if job.key is not None and job.job_id not in made]
        rows = session.execute(_KNOWN, {"tenant_id": tenant_id, "keys": keys})
        known = {row.key: (bytes(row.body_digest), row.job_id) for row in rows}
    return tuple(_result(job, made, known) for job in jobs)


def _result(job: NewJob, made: set[UUID], known: dict[str, tuple[bytes, UUID]]) -> SubmitResult:
    if job.job_id in made:
        return SubmitResult(job.job_id, replayed=False)
    assert job.key is not None
    digest, job_id = known[job.key]
    if digest != job.digest:
        raise KeyConflictError(job.key, job_id)
    return SubmitResult(job_id, replayed=True)


def _rows(jobs: Sequence[NewJob]) -> list[dict[str, object]]:
    return [
        {
            "n": n,
            "id": str(job.job_id),
            "name": job.spec.name,
            "kind": job.spec.kind.value,
            "klass": job.spec.priority.value,
            "spec": job.spec.model_dump(mode="json"),
            "request": request_of(job.spec),
            "labels": job.spec.labels,
            "array_size": job.spec.array.indexes if job.spec.array else None,
            "key": job.key,
            "digest": job.digest.hex(),
        }
        for n, job in enumerate(jobs)
    ]
