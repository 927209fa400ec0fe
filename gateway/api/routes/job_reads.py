"""What became of a job: its explanation, events, attempts and tasks."""

from collections.abc import AsyncIterator
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response
from fastapi.sse import EventSourceResponse

from gateway.api import streams
from gateway.api.auth import Viewer
from gateway.api.bodies import StrictRoute
from gateway.api.common import HubOf, scope_of, visible_job
from gateway.api.deps import Deps, DepsOf
from gateway.api.hub import Hub
from gateway.api.pages import Cursor, Limit, make_cursor, read_cursor
from gateway.queries import explain, jobs
from gateway.queries.scope import Scope
from gateway.queries.veil import veiled, veiled_one
from tidegate.wire import job as wire

router = APIRouter(tags=["jobs"], route_class=StrictRoute)
_BATCH: Final = 500


@router.get("/jobs/{job_id}/explain")
def explain_job(deps: DepsOf, caller: Viewer, job_id: UUID) -> wire.Explanation:
    """Why it is where it is, what would change that and when it may start."""
    with deps.transaction() as session:
        row, _ = visible_job(session, caller, job_id)
        return veiled_one(session, scope_of(caller), explain.explanation(session, row))


@router.get("/jobs/{job_id}/attempts")
def list_attempts(
    deps: DepsOf, caller: Viewer, job_id: UUID, limit: Limit = 100, cursor: Cursor = None
) -> wire.AttemptPage:
    """Its attempts in order."""
    filters = {"list": "attempts", "job": str(job_id), "caller": scope_of(caller).path}
    last = read_cursor(deps.cursor_key, filters, cursor)
    seen = int(last[0]) if last else 0
    with deps.transaction() as session:
        visible_job(session, caller, job_id)
        rows = jobs.attempts(session, job_id, after=seen, limit=limit + 1)
        earned = jobs.credits_of(session, [row.id for row in rows])
        views = (jobs.attempt_view(row, earned.get(row.id, 0)) for row in rows[:limit])
        items = tuple(veiled(session, scope_of(caller), views))
    more = len(rows) > limit
    return wire.AttemptPage(
        items=items,
        next=make_cursor(deps.cursor_key, filters, [seen + limit]) if more else None,
    )


@router.get("/jobs/{job_id}/tasks")
def list_tasks(deps: DepsOf, caller: Viewer, job_id: UUID, limit: Limit = 100, cursor: Cursor = None) -> wire.TaskPage:
    """Indexes of an array to which something has happened."""
    filters = {"list": "tasks", "job": str(job_id), "caller": scope_of(caller).path}
    last = read_cursor(deps.cursor_key, filters, cursor)
    with deps.transaction() as session:
        visible_job(session, caller, job_id)
        rows = jobs.tasks(session, job_id, after=int(last[0]) if last else -1, limit=limit + 1)
    more = len(rows) > limit
    return wire.TaskPage(
        items=tuple(jobs.task_view(row) for row in rows[:limit]),
        next=make_cursor(deps.cursor_key, filters, [rows[limit - 1].index]) if more else None,
    )


@router.get(
    "/jobs/{job_id}/events",
    response_model=wire.EventPage,
    responses={200: {"content": {"text/event-stream": {}}, "description": "A page, or a stream of server-sent events"}},
)
def list_events(
    request: Request,
    deps: DepsOf,
    hub: HubOf,
    caller: Viewer,
    job_id: UUID,
    accept: Annotated[str, Header()] = "",
    last_event_id: Annotated[str | None, Header()] = None,
    after: Annotated[int, Query(ge=0, le=2**62)] = 0,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> wire.EventPage | Response:
    """A page as JSON; with `Accept: text/event-stream` a stream that ends after the job's end."""
    filters = {"list": "events", "job": str(job_id), "caller": scope_of(caller).path}
    last = read_cursor(deps.cursor_key, filters, cursor)
    start = int(last[0]) if last else after
    if "text/event-stream" in accept:
        with deps.transaction() as session:
            visible_job(session, caller, job_id)
        start = streams.resume_from(last_event_id, start)
        return EventSourceResponse(
            _event_stream(request, deps, hub, (job_id, scope_of(caller)), start), headers=streams.HEADERS
        )
    with deps.transaction() as session:
        visible_job(session, caller, job_id)
        found = veiled(session, scope_of(caller), jobs.events(session, job_id, after=start, limit=limit + 1))
    more = len(found) > limit
    return wire.EventPage(
        items=tuple(found[:limit]),
        next=make_cursor(deps.cursor_key, filters, [found[limit - 1].id]) if more else None,
    )


def _read(deps: Deps, job_id: UUID, scope: Scope, after: int) -> tuple[list[wire.Event], bool]:
    """Events after `after`, and whether none can follow. The state is read first: its event then is in the list."""
    with deps.transaction() as session:
        state = jobs.state_of(session, job_id)
        found = veiled(session, scope, jobs.events(session, job_id, after=after, limit=_BATCH))
        return found, state is None or state.ended


async def _event_stream(
    request: Request, deps: Deps, hub: Hub, of: tuple[UUID, Scope], after: int
) -> AsyncIterator[bytes]:
    job_id, scope = of
    quiet = streams.Quiet()
    while not hub.closing and not await request.is_disconnected():
        found, ended = await hub.read(_read, deps, job_id, scope, after)
        for event in found:
            after = event.id
            yield streams.message(event.model_dump_json(), event=event.kind, event_id=event.id)
        if ended and len(found) < _BATCH:
            return
        if found:
            quiet.reset()
            continue
        if quiet.over():
            yield streams.PING
        await hub.wait(str(job_id))
