"""What a user may wish of a job that is there. Each is a guarded UPDATE of the ledger; workflows carry it out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query
from sqlalchemy.orm import Session

from gateway.api.admission import class_refusals, loss_refusals
from gateway.api.auth import Submitter
from gateway.api.bodies import StrictRoute
from gateway.api.callers import Caller
from gateway.api.common import scope_of, visible_job
from gateway.api.deps import Deps, DepsOf
from gateway.api.fitting import size_refusals
from gateway.api.problems import ProblemError, conflict, invalid, not_found
from gateway.ledger import wishes
from gateway.ledger.tables.work import JobRow
from gateway.operators import audit
from gateway.queries import jobs
from gateway.queries.config import Config
from gateway.queries.veil import veiled_one
from policies.vocabulary import CapacityWish, PriorityClass, Role
from tidegate.wire import job as wire
from tidegate.wire.problem import FieldProblem

router = APIRouter(tags=["jobs"], route_class=StrictRoute)
Message = Annotated[str, Query(max_length=500, description="Why, for the job's history.")]


@contextmanager
def _wish(deps: Deps, caller: Caller, job_id: UUID) -> Iterator[tuple[Session, str]]:
    """A transaction in which the job is visible; refusals of the ledger become problems."""
    try:
        with deps.transaction() as session:
            _, path = visible_job(session, caller, job_id)
            yield session, path
    except wishes.WishRefusedError as error:
        detail = str(error).removeprefix(f"{error.field}: ")
        if error.field in {"state", "checkpoint", "priority", "max_duration"}:
            raise conflict("wish-refused", detail, "see the job's state and spec", field=error.field) from error
        remedy = "see array.indexes in the spec" if error.field == "index" else "choose a size that the spec allows"
        raise invalid(error.field, detail, remedy, slug="wish-refused") from error
    except wishes.NoSuchJobError as error:
        raise not_found("job", job_id) from error


def _do(deps: Deps, caller: Caller, job_id: UUID, act: Callable[..., Any], *args: Any) -> wire.Job:
    with _wish(deps, caller, job_id) as (session, _):
        act(session, job_id, caller.principal, *args)
        _audited(session, caller, job_id, act.__name__, *args)
        session.expire_all()
        row, path = visible_job(session, caller, job_id)
        return veiled_one(session, scope_of(caller), jobs.view(row, path))


def _audited(session: Session, caller: Caller, job_id: UUID, verb: str, *args: Any) -> None:
    """What admins and operators do to jobs is audited; a submitter's wishes stand among the job's events, unless it
    has ended, after which there is none.
    """
    row, _ = visible_job(session, caller, job_id)
    if caller.role >= Role.TENANT_ADMIN or row.ended_at is not None:
        audit.record(
            session,
            principal=caller.principal,
            tenant_id=row.tenant_id,
            action=f"job.{verb}",
            target=str(job_id),
            after={"wished": list(args)} if args else None,
        )


@router.post("/jobs/{job_id}:cancel", status_code=202)
def cancel_job(
    deps: DepsOf, caller: Submitter, job_id: UUID, message: Message = "", what: wire.CancelRequest | None = None
) -> wire.Job:
    """End it. A queued job is CANCELLED at once, a live one when its attempts have ended; later nothing.

    With `index` in the body that index of an array alone: it counts as ended, not as failed, and the job goes on.
    """
    what = what or wire.CancelRequest()
    return _do(deps, caller, job_id, wishes.cancel, what.message or message, what.index)


@router.post("/jobs/{job_id}:hold", status_code=202)
def hold_job(deps: DepsOf, caller: Submitter, job_id: UUID) -> wire.Job:
    """Do not admit it until it is unheld."""
    return _do(deps, caller, job_id, wishes.hold)


@router.post("/jobs/{job_id}:unhold", status_code=202)
def unhold_job(deps: DepsOf, caller: Submitter, job_id: UUID) -> wire.Job:
    """It may be admitted again."""
    return _do(deps, caller, job_id, wishes.unhold)


@router.post("/jobs/{job_id}:checkpoint", status_code=202)
def checkpoint_job(deps: DepsOf, caller: Submitter, job_id: UUID) -> wire.Job:
    """Ask what runs to save once more and go on."""
    return _do(deps, caller, job_id, wishes.checkpoint)


@router.post("/jobs/{job_id}:requeue", status_code=202)
def requeue_job(deps: DepsOf, caller: Submitter, job_id: UUID) -> wire.Job:
    """Ask what runs to save and leave; the job is queued again."""
    return _do(deps, caller, job_id, wishes.requeue)


@router.post("/jobs/{job_id}:resize", status_code=202)
def resize_job(deps: DepsOf, caller: Submitter, job_id: UUID, size: wire.ResizeRequest) -> wire.Job:
    """Another target size for the elastic group of a job. A larger one waits for room; `pending` then says for what."""
    with deps.transaction() as session:
        row, path = visible_job(session, caller, job_id)
        elastic = row.request.get("elastic") or {}
        if elastic.get("group") == size.group and size.replicas <= elastic["max"]:  # else the wish says more
            facts = {**row.model_dump(), "path": path}
            for slug, found in size_refusals(facts, size.group, size.replicas, deps.configs.fresh(session)):
                raise ProblemError(422, slug, found.detail, field=found.field, remedy=found.remedy, errors=[found])
    return _do(deps, caller, job_id, wishes.resize, size.group, size.replicas)


@router.patch("/jobs/{job_id}")
def update_job(deps: DepsOf, caller: Submitter, job_id: UUID, change: wire.JobUpdate) -> wire.Job:
    """Labels always; priority and max_duration while it is queued."""
    with _wish(deps, caller, job_id) as (session, path):
        row, _ = visible_job(session, caller, job_id)
        for slug, problem in _not_so(change, row, path, deps.configs.fresh(session)):
            raise ProblemError(422, slug, problem.detail, field=problem.field, remedy=problem.remedy, errors=[problem])
        wishes.update(
            session,
            job_id,
            caller.principal,
            priority=PriorityClass(change.priority.value) if change.priority else None,
            labels=change.labels,
            max_duration_s=change.max_duration,
        )
        _audited(session, caller, job_id, "update", change.model_dump(mode="json", exclude_none=True))
        session.expire_all()
        return veiled_one(session, scope_of(caller), jobs.view(*visible_job(session, caller, job_id)))


def _not_so(change: wire.JobUpdate, row: JobRow, path: str, config: Config) -> Iterator[tuple[str, FieldProblem]]:
    """What a submit would refuse is refused of a change too."""
    if change.priority is not None:
        yield from class_refusals(change.priority, path, config)
    if change.max_duration is not None:
        wish = row.request
        found = loss_refusals(
            CapacityWish(wish["capacity"]),
            change.max_duration,
            saves="checkpoint" in wish,
            accept_loss=wish.get("accept_loss", False),
        )
        for slug, problem in found:
            remedy = "give at most 4h, or submit it anew with checkpoint.url or capacity.accept_loss: true"
            yield slug, problem.model_copy(update={"field": "max_duration", "remedy": remedy})
