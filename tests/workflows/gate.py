"""A small gate for tests: a real Temporal server, the real workflows and activities, fake backends, rows in memory."""

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from typing import Any, cast

from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError
from temporalio.worker import Worker, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from backends.naming import attempt_id
from backends.port import Backend
from tests.fakes.backend import FakeBackend
from tests.fakes.cluster import FakeCluster, equal_nodes
from tests.workflows.memory import MemoryStore
from workflows.activities.attempt import AttemptActivities
from workflows.activities.follower import FollowerActivity
from workflows.activities.relay import start_attempt
from workflows.flows.attempt import AttemptWorkflow
from workflows.messages import MAX_EVENTS, NUDGE, Duty
from workflows.store import Store

DEADLINE_S = 20


class Gate:
    """What a scenario plays with."""

    def __init__(
        self,
        client: Client,
        clusters: dict[str, FakeCluster],
        threads: ThreadPoolExecutor,
        runner: WorkflowRunner | None = None,
    ) -> None:
        self.client = client
        self.queue = f"test-{uuid.uuid4().hex[:8]}"
        self.threads = threads
        self.runner = runner or SandboxedWorkflowRunner()
        self.clusters = clusters
        self.backends: dict[str, Backend] = {name: FakeBackend(each, name=name) for name, each in clusters.items()}
        self.loop = asyncio.get_running_loop()
        self.store = MemoryStore(self.nudge)

    def nudge(self, key: str) -> None:
        """From any thread; a workflow that is not there (any more) needs none."""
        asyncio.run_coroutine_threadsafe(self._signal(key), self.loop)

    async def _signal(self, key: str) -> None:
        try:
            await self.client.get_workflow_handle(key).signal(NUDGE)
        except RPCError:
            return

    async def run(
        self,
        *backends: str,
        state: str = "RESERVED",
        job: uuid.UUID | None = None,
        number: int = 1,
        max_events: int = MAX_EVENTS,
        **fields: object,
    ) -> "Attempt":
        """An attempt (of a new job, unless one is named) at these backends, its workflow started."""
        key = self.store.add(attempt_id(job or uuid.uuid4(), number), backends or ("one",), state, **fields)
        await start_attempt(self.client, key, self.queue, max_events=max_events)
        return Attempt(self, key)

    def worker(self) -> Worker:
        """One more worker of this gate's queue."""
        return Worker(
            self.client,
            task_queue=self.queue,
            workflows=[AttemptWorkflow],
            activities=AttemptActivities(cast("Store", self.store), self.backends).all(),
            activity_executor=self.threads,
            workflow_runner=self.runner,
        )


class Attempt:
    """One attempt under test."""

    def __init__(self, gate: Gate, key: str) -> None:
        self.gate = gate
        self.key = key
        self.before: Attempt | None = None  # of the same job
        self.workflow: WorkflowHandle[AttemptWorkflow, str] = gate.client.get_workflow_handle(key)

    @property
    def row(self) -> object:
        return self.gate.store.rows[self.key]

    @property
    def state(self) -> str:
        return self.gate.store.rows[self.key].state

    async def ended(self) -> str:
        """Its reason, once the workflow has closed."""
        await asyncio.wait_for(self.workflow.result(), DEADLINE_S)
        return self.gate.store.ends[self.key].reason

    async def until(self, state: str) -> None:
        await self.gate_until(lambda: self.state == state, state)

    async def phase(self, phase: str, backend: str = "one") -> None:
        """Until the backend's launch is in this phase."""
        launches = self.gate.clusters[backend].launches
        await self.gate_until(lambda: self.key in launches and launches[self.key].phase == phase, phase)

    async def gate_until(self, true: Callable[[], bool], what: str) -> None:
        deadline = self.gate.loop.time() + DEADLINE_S
        while not true():
            assert self.gate.loop.time() < deadline, f"not {what} but {self.row}"
            await asyncio.sleep(0.01)


def a_cluster(name: str, *, nodes: int = 4, pending: bool = False, stop_code: int | None = 143) -> FakeCluster:
    return FakeCluster({f"pool-{name}": equal_nodes(f"pool-{name}", nodes)}, pending=pending, stop_code=stop_code)


@asynccontextmanager
async def gate(
    address: str, *names: str, runner: WorkflowRunner | None = None, working: bool = True, **cluster: Any
) -> AsyncIterator[Gate]:
    """A worker on a queue of its own (unless not `working`: the test says when one does) and a follower per backend;
    all of it ends with the block.
    """
    client = await Client.connect(address)
    clusters = {name: a_cluster(name, **cluster) for name in names or ("one",)}
    threads_of_activities = ThreadPoolExecutor(16)
    made = Gate(client, clusters, threads_of_activities, runner)
    following = dict(made.backends)
    follower = FollowerActivity(cast("Store", made.store), following, capacity_every_s=0.2)
    threads = [
        threading.Thread(target=follower.run, args=(Duty("follower", name),), name=f"follower-{name}")
        for name in clusters
    ]
    with threads_of_activities:
        for thread in threads:
            thread.start()
        try:
            async with made.worker() if working else nullcontext():
                yield made
        finally:
            following.clear()  # a follower whose backend is gone leaves
            for thread in threads:
                await asyncio.to_thread(thread.join, 10)
