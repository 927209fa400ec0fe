"""TP-01: a harmless edit must not break workflows that sleep. Histories of earlier runs replay on today's code."""

import asyncio
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner
from temporalio.workflow import NondeterminismError

from tests.workflows.scenarios import ALL, histories_of
from workflows.flows.attempt import AttemptWorkflow
from workflows.messages import NUDGE, AttemptRef
from workflows.steps import Step

HISTORIES = Path(__file__).parent / "histories"
NAMES = sorted(name for scenario in ALL for name in histories_of(scenario))
drawn: list[float] = []  # by retry delays of the version in which they have a jitter


@workflow.defn(name="attempt")
class DrawsAtRandom(AttemptWorkflow):
    """Version 2 of the case: more draws from the workflow's random source, and a retry delay that has a jitter."""

    @workflow.signal(name=NUDGE)
    def nudge(self) -> None:
        super().nudge()

    @workflow.run
    async def run(self, ref: AttemptRef) -> str:
        workflow.random().random()
        return await super().run(ref)

    async def _pause(self, seconds: float, heard: int, deaf_s: float = 0.0) -> None:
        workflow.random().random()
        await super()._pause(seconds, heard, deaf_s)

    async def _slow_down(self, at_least_s: float, heard: int) -> None:
        drawn.append(workflow.random().random())
        await super()._slow_down(at_least_s + drawn[-1], heard)


@workflow.defn(name="attempt")
class ForgetsToLook(AttemptWorkflow):
    """A change that is not harmless: it does a step less than the recorded runs did."""

    @workflow.signal(name=NUDGE)
    def nudge(self) -> None:
        super().nudge()

    @workflow.run
    async def run(self, ref: AttemptRef) -> str:
        return ref.attempt_id

    async def _settle(self, step: Step) -> str:
        return str(step)


def replay(flow: type, name: str, runner: WorkflowRunner | None = None) -> None:
    history = WorkflowHistory.from_json(f"replay-{name}", (HISTORIES / f"{name}.json").read_text())
    replayer = Replayer(workflows=[flow], workflow_runner=runner or SandboxedWorkflowRunner())
    asyncio.run(replayer.replay_workflow(history))


@pytest.mark.parametrize("name", NAMES)
def test_tp_01_recorded_histories_replay_on_this_version(name: str) -> None:
    replay(AttemptWorkflow, name)


@pytest.mark.parametrize("name", NAMES)
def test_tp_01_they_replay_with_one_more_random_draw(name: str) -> None:
    drawn.clear()
    replay(DrawsAtRandom, name, UnsandboxedWorkflowRunner())  # a sandbox would keep `drawn` to itself
    assert bool(drawn) == (name == "tried_again"), "one history has a retry delay in which the new draw happens"


def test_tp_01_a_change_of_the_steps_is_caught() -> None:
    with pytest.raises(NondeterminismError):
        replay(ForgetsToLook, "straight_run")


def test_every_scenario_is_recorded_and_nothing_else() -> None:
    assert sorted(path.stem for path in HISTORIES.glob("*.json")) == NAMES


def test_no_id_in_a_history_comes_from_a_random_draw() -> None:
    for path in HISTORIES.glob("*.json"):
        history = WorkflowHistory.from_json("any", path.read_text())
        scheduled = [
            event.activity_task_scheduled_event_attributes
            for event in history.events
            if event.HasField("activity_task_scheduled_event_attributes")
        ]
        # Activity ids are counters of this run; the input is the attempt's own id, made of job and number.
        assert all(attributes.activity_id.isdecimal() for attributes in scheduled), path
