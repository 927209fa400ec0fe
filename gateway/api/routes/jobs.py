"""Submitting and listing jobs. The submit is one transaction without any network in it but the database's."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID, uuid4

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session
from sqlmodel import col

from gateway.api import admission, shedding
from gateway.api.auth import Submitter, Viewer, caller_of
from gateway.api.bodies import StrictRequest, StrictRoute
from gateway.api.callers import Caller
from gateway.api.common import narrowed, scope_of, visible_job
from gateway.api.deps import Deps, DepsOf
from gateway.api.dryrun import dry_run_of
from gateway.api.pages import Cursor, Limit, make_cursor, read_cursor
from gateway.api.problems import ProblemError, conflict, invalid
from gateway.archives import exists as archive_exists
from gateway.archives import store_of
from gateway.ledger.submit import KeyConflictError, NewJob, SubmitResult, body_digest, submit_many
from gateway.ledger.tables.access import IdempotencyKey
from gateway.queries import jobs
from gateway.queries.config import Config
from gateway.queries.veil import veiled, veiled_one
from gateway.webhooks.addresses import networks
from policies.vocabulary import Role
from tidegate.wire import job as wire
from tidegate.wire.enums import JobState, PriorityClass
from tidegate.wire.problem import FieldProblem
from tidegate.wire.spec import JobSpec, TenantPath

router = APIRouter(tags=["jobs"], route_class=StrictRoute)
Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$")]
_SHA256 = "0123456789abcdef"


@dataclass(frozen=True, slots=True)
class _Wish:
    """One job of a request: `prefix` leads to its fields in problems."""

    spec: JobSpec
    prefix: str
    key: str | None


class _SubmitRoute(StrictRoute):
    """The hottest route. A request that is plainly in order goes straight to its transaction; every other one takes
    FastAPI's way, which words the problem. Both read the same bytes by the same parser and the same model.
    """

    async def shortcut(self, request: StrictRequest) -> Response | None:
        plain = request.headers.get("content-type") == "application/json" and not request.scope["query_string"]
        if not plain or "idempotency-key" in request.headers:
            return None
        deps: Deps = request.app.state.deps
        caller = await caller_of(request, deps, Role.SUBMITTER)
        if not await request.body():
            return None  # what is missing is told as on every other route
        body = await request.json()
        try:
            spec = JobSpec.model_validate(body)
        except ValidationError:
            return None
        return await to_thread.run_sync(_submit, deps, caller, spec, None)


_submits = APIRouter(tags=["jobs"], route_class=_SubmitRoute)


@_submits.post("/jobs", status_code=202, response_model=wire.Submitted | wire.DryRun)
def submit_job(
    deps: DepsOf,
    caller: Submitter,
    spec: JobSpec,
    key: Key = None,
    *,
    dry_run: Annotated[bool, Query(description="Answer with the plan and store nothing.")] = False,
) -> JSONResponse:
    """Accept a job. The same key with the same body answers with the job that it made."""
    if dry_run:
        with deps.transaction() as session:
            _, tenant = _accepted(session, deps, caller, [_Wish(spec, "", None)])
        plan = dry_run_of(deps, spec, tenant=tenant, principal=caller.principal)
        with deps.transaction() as session:
            plan = veiled_one(session, scope_of(caller), plan)
        return JSONResponse(plan.model_dump(mode="json"), 200)
    return _submit(deps, caller, spec, key)


router.include_router(_submits)


def _submit(deps: Deps, caller: Caller, spec: JobSpec, key: str | None) -> JSONResponse:
    """Without a key one statement makes the job, and needs no transaction around it; with one, a second may look."""
    with deps.statement() if key is None else deps.transaction() as session:
        result = _store(session, deps, caller, [_Wish(spec, "", key)])[0]
        state = _state_of(session, result)
    headers = {"Location": f"/v1/jobs/{result.job_id}"}
    if result.replayed:
        headers["Idempotency-Replayed"] = "true"
    return JSONResponse(_submitted(result, state).model_dump(mode="json"), 202, headers=headers)


@router.post("/jobs:batch", status_code=202)
def submit_batch(deps: DepsOf, caller: Submitter, batch: wire.BatchSubmit, key: Key = None) -> wire.BatchSubmitted:
    """Accept many jobs of one tenant in one transaction: all or none. The key of job n is `<key>/<n>`."""
    wishes = [_Wish(spec, f"jobs.{n}", f"{key}/{n}" if key is not None else None) for n, spec in enumerate(batch.jobs)]
    if len({wish.spec.tenant for wish in wishes}) > 1:
        raise invalid("jobs", "a batch is for one tenant", "send one batch per tenant")
    with deps.transaction() as session:
        results = _store(session, deps, caller, wishes)
        answers = tuple(_submitted(result, _state_of(session, result)) for result in results)
    return wire.BatchSubmitted(jobs=answers)


def _submitted(result: SubmitResult, state: JobState) -> wire.Submitted:
    return wire.Submitted(id=str(result.job_id), state=state, replayed=result.replayed)


def _state_of(session: Session, result: SubmitResult) -> JobState:
    """A replay shows what became of the job, its end included (CASES RS-01h)."""
    if not result.replayed:
        return JobState.QUEUED
    return jobs.state_of(session, result.job_id) or JobState.QUEUED


def _store(session: Session, deps: Deps, caller: Caller, wishes: Sequence[_Wish]) -> tuple[SubmitResult, ...]:
    tenant_id, tenant = _accepted(session, deps, caller, wishes)
    _shed(session, deps, wishes, tenant, tenant_id)
    new = [
        NewJob(spec=wish.spec, job_id=uuid4(), key=wish.key, digest=body_digest(wish.spec) if wish.key else b"")
        for wish in wishes
    ]
    try:
        return submit_many(session, tenant_id=tenant_id, principal=caller.principal, jobs=new)
    except KeyConflictError as error:
        raise conflict(
            "key-conflict",
            f"Idempotency-Key {error.key!r} has made another job",
            "send the same body again, or a new key",
            field="Idempotency-Key",
        ) from error


def _shed(session: Session, deps: Deps, wishes: Sequence[_Wish], tenant: str, tenant_id: int) -> None:
    """429 where the tenant's queue is over its limit; a repeated call is still answered with the job that it made."""
    config = deps.configs.recent(session)
    if not config.queues or _all_known(session, tenant_id, wishes):
        return
    any_p2 = any(wish.spec.priority is PriorityClass.P2 for wish in wishes)
    try:
        shedding.admit(session, config, tenant, jobs=len(wishes), any_p2=any_p2)
    except shedding.Shed as shed:
        if shed.begins:
            with deps.transaction() as other:
                shedding.remember(other, shed, config)
        raise


def _accepted(session: Session, deps: Deps, caller: Caller, wishes: Sequence[_Wish]) -> tuple[int, str]:
    """The tenant to submit to. A ProblemError for what can never run, proved by a fresh view; nothing is stored."""
    found: list[tuple[str, FieldProblem]] = []
    for look in (deps.configs.recent, deps.configs.fresh):
        config = look(session)
        tenant = wishes[0].spec.tenant or caller.tenant
        tenant_id = config.tenants.get(tenant) if caller.sees(tenant) else None
        found = _refusals(session, deps, config, caller, wishes, tenant, tenant_id)
        if not found or (tenant_id is not None and _all_known(session, tenant_id, wishes)):
            # A key that has made its job is answered with it, whatever the configuration says today.
            assert tenant_id is not None
            return tenant_id, tenant
    slug, first = found[0]
    raise ProblemError(
        422, slug, first.detail, field=first.field, remedy=first.remedy, errors=[problem for _, problem in found[:50]]
    )


def _refusals(
    session: Session,
    deps: Deps,
    config: Config,
    caller: Caller,
    wishes: Sequence[_Wish],
    tenant: str,
    tenant_id: int | None,
) -> list[tuple[str, FieldProblem]]:
    if tenant_id is None:
        remedy = f"name {caller.tenant} or a tenant below it"
        return [
            ("invalid", FieldProblem(field="tenant", detail=f"no tenant {tenant!r} that you may use", remedy=remedy))
        ]
    found: list[tuple[str, FieldProblem]] = []
    now, allow = deps.clock(), networks(deps.settings.webhook_allow)
    for wish in wishes:
        of_one = admission.refusals(wish.spec, tenant, config, now, allow=allow)
        of_one += _bad_references(session, deps, caller, wish.spec, tenant_id)
        found += [
            (slug, p.model_copy(update={"field": f"{wish.prefix}.{p.field}"}) if wish.prefix else p)
            for slug, p in of_one
        ]
    return found


def _bad_references(
    session: Session, deps: Deps, caller: Caller, spec: JobSpec, tenant_id: int
) -> list[tuple[str, FieldProblem]]:
    found: list[tuple[str, FieldProblem]] = []
    for field in ("ok", "any", "not_ok"):
        for text in getattr(spec.after, field):
            if not _job_is_visible(session, caller, text):
                detail = f"there is no job {text[:64]!r} that you may see"
                found.append(
                    ("invalid", FieldProblem(field=f"after.{field}", detail=detail, remedy="name the id of a job"))
                )
    if spec.workdir is not None:
        sha256 = spec.workdir.removeprefix("sha256:")
        uploaded = (
            len(sha256) == 64  # noqa: PLR2004  (hex digits of SHA-256)
            and set(sha256) <= set(_SHA256)
            and archive_exists(store_of(deps.settings), tenant_id, sha256)
        )
        if not uploaded:
            remedy = "PUT the archive to /v1/workdirs/<sha256> first and name that digest"
            found.append(
                ("invalid", FieldProblem(field="workdir", detail="no such archive of this tenant", remedy=remedy))
            )
    return found


def _job_is_visible(session: Session, caller: Caller, text: str) -> bool:
    try:
        job_id = UUID(text)
    except ValueError:
        return False
    return jobs.find(session, scope_of(caller), job_id) is not None


def _all_known(session: Session, tenant_id: int, wishes: Sequence[_Wish]) -> bool:
    keys = {wish.key for wish in wishes if wish.key is not None}
    if len(keys) < len(wishes):
        return False
    known = session.execute(
        select(col(IdempotencyKey.key)).where(
            col(IdempotencyKey.tenant_id) == tenant_id, col(IdempotencyKey.key).in_(keys)
        )
    ).scalars()
    return set(known) == keys


@router.get("/jobs")
def list_jobs(
    deps: DepsOf,
    caller: Viewer,
    state: Annotated[list[JobState], Query(max_length=8, description="Any of these states.")] = [],  # noqa: B006
    label: Annotated[list[str], Query(max_length=16, description="`key=value`; all of them must be there.")] = [],  # noqa: B006
    tenant: Annotated[TenantPath | None, Query()] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> wire.JobPage:
    """Jobs by (submitted_at, id), oldest first."""
    scope = narrowed(caller, tenant)
    labels = _labels(label)
    filters: dict[str, Any] = {
        "list": "jobs",
        "scope": scope.path,
        "state": sorted({s.value for s in state}),
        "label": sorted(labels.items()),
    }
    last = read_cursor(deps.cursor_key, filters, cursor)
    after = (datetime.fromisoformat(last[0]), UUID(last[1])) if last else None
    with deps.transaction() as session:
        rows = jobs.page(session, scope, states=filters["state"], labels=labels, after=after, limit=limit + 1)
        items = tuple(veiled(session, scope_of(caller), (jobs.view(row, path) for row, path in rows[:limit])))
    following = None
    if len(rows) > limit:
        row = rows[limit - 1][0]
        following = make_cursor(deps.cursor_key, filters, [row.submitted_at.isoformat(), str(row.id)])
    return wire.JobPage(items=items, next=following)


def _labels(texts: list[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise invalid("label", f"{text[:64]!r} has no value", "write label=key=value")
        labels[key] = value
    return labels


@router.get("/jobs/{job_id}")
def get_job(deps: DepsOf, caller: Viewer, job_id: UUID) -> wire.JobDetail:
    """One job with its spec, byte for byte as it was sent."""
    with deps.transaction() as session:
        row, path = visible_job(session, caller, job_id)
        return veiled_one(session, scope_of(caller), jobs.detail(row, path))
