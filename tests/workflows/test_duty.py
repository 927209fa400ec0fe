"""Standing loops on a real Temporal server: turn after turn, through their own failures, while their subject lives."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from workflows.flows.duty import GONE, DutyWorkflow
from workflows.messages import Duty
from workflows.worker import duty_id, start_duty


class Loop:
    """A duty's activity by script: one answer or error a turn."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)
        self.turns: list[int] = []

    @activity.defn(name="duty_follower")
    async def run(self, duty: Duty) -> str:
        self.turns.append(duty.turn)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def play(address: str, loop: Loop, scene: Callable[[Client, Duty, str], Awaitable[None]]) -> None:
    async def main() -> None:
        client = await Client.connect(address)
        queue = uuid.uuid4().hex
        worker = Worker(client, task_queue=queue, workflows=[DutyWorkflow], activities=[loop.run])
        async with worker, asyncio.timeout(30):
            await scene(client, Duty("follower", queue), queue)

    asyncio.run(main())


def test_a_duty_turns_until_its_subject_is_gone(temporal_address: str) -> None:
    loop = Loop("turn", "turn", GONE)

    async def scene(client: Client, duty: Duty, queue: str) -> None:
        await start_duty(client, duty, queue)
        assert await client.get_workflow_handle(duty_id(duty)).result() == GONE

    play(temporal_address, loop, scene)
    assert loop.turns == [0, 1, 2]


def test_a_loop_that_breaks_is_started_again(temporal_address: str) -> None:
    loop = Loop(RuntimeError("a defect"), GONE)

    async def scene(client: Client, duty: Duty, queue: str) -> None:
        await start_duty(client, duty, queue)
        assert await client.get_workflow_handle(duty_id(duty)).result() == GONE

    play(temporal_address, loop, scene)
    assert loop.turns == [0, 0]


def test_there_is_one_of_each_however_many_workers_ask_for_it(temporal_address: str) -> None:
    loop = Loop(GONE)

    async def scene(client: Client, duty: Duty, queue: str) -> None:
        elsewhere = f"{queue}-nobody"  # a queue without a worker keeps it open
        await asyncio.gather(*(start_duty(client, duty, elsewhere) for _ in range(5)))
        described = await client.get_workflow_handle(duty_id(duty)).describe()
        await asyncio.gather(*(start_duty(client, duty, elsewhere) for _ in range(5)))
        again = await client.get_workflow_handle(duty_id(duty)).describe()
        assert again.run_id == described.run_id
        await client.get_workflow_handle(duty_id(duty)).terminate()

    play(temporal_address, loop, scene)
    assert loop.turns == []
