"""A job's output, asked of the backend that has it. Text is stripped of control sequences."""

from collections.abc import AsyncIterator, Generator, Iterator
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import PlainTextResponse, Response
from fastapi.sse import EventSourceResponse
from sqlalchemy import select, text
from sqlmodel import col

from backends.errors import BackendError
from backends.port import Backend
from backends.types import Handle, LogChunk
from gateway.api import streams
from gateway.api.auth import Viewer
from gateway.api.bodies import StrictRoute
from gateway.api.callers import Caller
from gateway.api.common import HubOf, visible_job
from gateway.api.deps import Deps, DepsOf
from gateway.api.hub import Hub
from gateway.api.problems import ProblemError, not_found
from gateway.ledger.tables.capacity import Pool
from gateway.ledger.tables.work import AttemptRow
from tidegate.wire.job import LogEvent

router = APIRouter(tags=["jobs"], route_class=StrictRoute)
MAX_PAGE_BYTES: Final = 4 << 20
_HELD_BACK: Final = 256  # an escape sequence cut by a chunk's end is completed by the next one


@router.get(
    "/jobs/{job_id}/logs",
    response_model=None,
    responses={200: {"content": {"text/plain": {}, "text/event-stream": {}}, "description": "Output of one member"}},
)
def get_logs(
    request: Request,
    deps: DepsOf,
    hub: HubOf,
    caller: Viewer,
    job_id: UUID,
    rank: Annotated[int, Query(ge=0, le=100_000)] = 0,
    attempt: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    index: Annotated[int | None, Query(ge=0, le=1_000_000, description="Of an array: the task.")] = None,
    offset: Annotated[int, Query(ge=0, le=2**62)] = 0,
    *,
    follow: bool = False,
    accept: Annotated[str, Header()] = "",
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Text from a byte offset; `Tidegate-Offset` says where to go on. A stream with `follow` lasts to the end."""
    backend, handle = _source(deps, caller, job_id, rank, attempt, index)
    if "text/event-stream" in accept:
        offset = streams.resume_from(last_event_id, offset)
        chunks = backend.logs(handle, rank, offset, follow=follow)
        return EventSourceResponse(_stream(request, hub, chunks), headers=streams.HEADERS)
    output, after = _page(backend, handle, rank, offset)
    return PlainTextResponse(output, headers={"Tidegate-Offset": str(after), "Cache-Control": "no-store"})


def _source(
    deps: Deps, caller: Caller, job_id: UUID, rank: int, attempt: int | None, index: int | None
) -> tuple[Backend, Handle]:
    """The backend and handle of the newest attempt that was launched (or of the one asked for)."""
    with deps.transaction() as session:
        visible_job(session, caller, job_id)
        launched = col(AttemptRow.handles) != text("'{}'::jsonb")
        query = select(AttemptRow).where(col(AttemptRow.job_id) == job_id, launched)
        if attempt is not None:
            query = query.where(col(AttemptRow.number) == attempt)
        if index is not None:
            query = query.where(col(AttemptRow.first_index) <= index, col(AttemptRow.last_index) >= index)
        newest = query.order_by(col(AttemptRow.created_at).desc(), col(AttemptRow.number).desc()).limit(1)
        row = session.execute(newest).scalar_one_or_none()
        where = dict(session.execute(select(col(Pool.name), col(Pool.backend))).all())
    if row is None:
        if attempt is not None or index is not None:
            raise not_found("attempt", attempt if attempt is not None else f"index {index}")
        raise ProblemError(
            409, "no-output-yet", "the job has not been launched yet", remedy="wait for its first attempt"
        )
    at = _backend_of(row, rank, where)
    for name, native in sorted(row.handles.items()):
        backend = deps.backends.get(name) if at in {None, name} else None
        if backend is not None and backend.capabilities.logs:
            return backend, Handle(name, row.id, native)
    raise ProblemError(
        409, "no-output-yet", "no backend that this process reaches has output of it", remedy="try again shortly"
    )


def _backend_of(row: AttemptRow, rank: int, where: dict[str, str]) -> str | None:
    """Ranks run through the placed parts in order. None: not known, so any backend that has a handle is asked."""
    first = 0
    for part in row.placed or ():
        first += part["replicas"]
        if rank < first:
            return where.get(part["pool"])
    if first:
        raise not_found("rank", rank)
    return None


def _unavailable(error: BackendError) -> ProblemError:
    return ProblemError(
        503,
        "backend-unreachable",
        f"the backend does not give the output just now ({type(error).__name__})",
        remedy="try again",
        headers={"Retry-After": "2"},
    )


def _page(backend: Backend, handle: Handle, rank: int, offset: int) -> tuple[str, int]:
    parts: list[bytes] = []
    size = 0
    try:
        for chunk in backend.logs(handle, rank, offset, follow=False):
            parts.append(chunk.data)
            size += len(chunk.data)
            offset = chunk.offset
            if size >= MAX_PAGE_BYTES:
                break
    except BackendError as error:
        raise _unavailable(error) from error
    return streams.shown(b"".join(parts).decode(errors="replace")), offset


def _next(chunks: Iterator[LogChunk]) -> LogChunk | None:
    return next(chunks, None)


async def _stream(request: Request, hub: Hub, chunks: Iterator[LogChunk]) -> AsyncIterator[bytes]:
    """Whole lines, or what is there when it goes quiet; the id of an event is the byte behind it."""
    quiet = streams.Quiet()
    pending, last, over = b"", None, False
    try:
        while not hub.closing and not await request.is_disconnected():
            chunk = await hub.follow(_next, chunks)
            if chunk is None:
                over = True
                break
            last = chunk
            pending += chunk.data
            cut = pending.rfind(b"\n") + 1 if chunk.data else len(pending)
            if len(pending) - cut > MAX_PAGE_BYTES:
                cut = len(pending) - _HELD_BACK
            ready, pending = pending[:cut], pending[cut:]
            if ready:
                yield _message(chunk, ready, chunk.offset - len(pending))
                quiet.reset()
            elif quiet.over():
                yield streams.PING
        if pending and last is not None:
            yield _message(last, pending, last.offset)
        if over:  # not because this process leaves: then the reader comes again
            yield streams.message("{}", event="end", event_id=last.offset if last else 0)
    except BackendError as error:
        problem = _unavailable(error)
        yield streams.message(
            LogEvent(rank=0, text=problem.detail, offset=0).model_dump_json(), event="error", event_id=0
        )
    finally:
        if isinstance(chunks, Generator):
            chunks.close()


def _message(chunk: LogChunk, data: bytes, offset: int) -> bytes:
    event = LogEvent(
        rank=chunk.rank, group=chunk.group, text=streams.shown(data.decode(errors="replace")), offset=offset
    )
    return streams.message(event.model_dump_json(), event="log", event_id=offset)
