"""What a running attempt says of itself and is told, with the token that dies with it. Nothing else is open to it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from sqlalchemy.orm import Session

from gateway.api.auth import OfAttempt
from gateway.api.bodies import StrictRoute
from gateway.api.common import HubOf
from gateway.api.deps import Deps, DepsOf
from gateway.api.problems import ProblemError, conflict, invalid
from gateway.ledger import events, outbox, progress
from tidegate.wire.job import BrokenCheckpoint, CheckpointReport, NoticeReport, NoticeView, ProgressReport

router = APIRouter(tags=["attempt"], route_class=StrictRoute)


def _fenced(error: Exception) -> ProblemError:
    return conflict("fenced", str(error), "leave: nothing that this attempt says is stored any more")


@contextmanager
def _heard(deps: Deps) -> Iterator[Session]:
    try:
        with deps.transaction() as session:
            yield session
    except progress.FencedAttemptError as error:
        raise _fenced(error) from error
    except progress.OutsideError as error:
        raise invalid("url", str(error).removeprefix("url: "), "save below TIDEGATE_CHECKPOINT_URL") from error


@router.post("/attempt/progress", status_code=204)
def report_progress(deps: DepsOf, caller: OfAttempt, report: ProgressReport) -> Response:
    """Its newest step; the latest wins."""
    with _heard(deps) as session:
        progress.report(session, caller.attempt_id, step=report.step, samples=report.samples)
    return Response(status_code=204)


@router.post("/attempt/checkpoints", status_code=201)
def report_checkpoint(deps: DepsOf, caller: OfAttempt, report: CheckpointReport) -> CheckpointReport:
    """A manifest that is complete; the same step again changes nothing but its level of verification."""
    with _heard(deps) as session:
        progress.checkpoint(session, caller.attempt_id, **report.model_dump())
    return report


@router.post("/attempt/checkpoints:broken", status_code=204)
def report_broken(deps: DepsOf, caller: OfAttempt, broken: BrokenCheckpoint) -> Response:
    """Digests that did not hold at a resume: the checkpoint before is the newest valid one from now on."""
    with _heard(deps) as session:
        progress.checkpoint_broken(session, caller.attempt_id, broken.url)
    return Response(status_code=204)


@router.post("/attempt/notices", status_code=204)
def report_notice(deps: DepsOf, caller: OfAttempt, notice: NoticeReport) -> Response:
    """What the provider told the instance. Kept as an event, and the attempt is looked at; the backend is believed."""
    deadline = None if notice.deadline is None else int(notice.deadline * 1000)
    data = {"kind": notice.kind, "deadline_ms": deadline, "instance": notice.instance}
    with _heard(deps) as session:
        if events.append(session, caller.job_id, "Notice", attempt_id=caller.attempt_id, data=data):
            outbox.add(session, outbox.NUDGE, [caller.attempt_id])
    return Response(status_code=204)


@router.get("/attempt/notice")
async def wait_for_notice(
    request: Request,
    deps: DepsOf,
    hub: HubOf,
    caller: OfAttempt,
    wait_s: Annotated[int, Query(ge=0, le=60, description="How long to wait for something new.")] = 30,
    seen: Annotated[str, Query(max_length=64, description="`kind/number` of the last answer.")] = "/0",
) -> NoticeView:
    """What it is to do. Answers when that differs from `seen`, or with the same after `wait_s`."""
    deadline = time.monotonic() + wait_s
    while True:
        told = await hub.read(_told, deps, caller.attempt_id)
        left = deadline - time.monotonic()
        news = f"{told.kind}/{told.number}" != seen and (told.kind or seen != "/0")
        if news or left <= 0 or hub.closing or await request.is_disconnected():
            return told
        await hub.wait(str(caller.job_id), min(left, 1.0))


def _told(deps: Deps, attempt_id: str) -> NoticeView:
    with _heard(deps) as session:
        told = progress.told(session, attempt_id)
    return NoticeView(kind=told.kind, number=told.number, deadline=told.deadline)
