"""A gate with its engine on: real Temporal, real PostgreSQL, the live policy, the production worker; fake backend."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from backends.port import Backend
from gateway.embedded import temporal
from gateway.ledger.check import check
from gateway.settings import Settings
from policies.plan import plan
from policies.settings import PolicySettings
from tests.builders.ledger import POOL
from tests.fakes.backend import FakeBackend
from tests.fakes.cluster import FakeCluster, equal_nodes
from tests.unit.store.world import Gate, rows, write
from workflows.messages import MAX_EVENTS
from workflows.store import Store
from workflows.worker import connect, serve

PATIENCE_S = 30
SETTINGS = Settings(cycle_idle_s=0.2, capacity_every_s=0.2, reconcile_every_s=0.5)


class Running:
    """A gate with its engine on."""

    def __init__(self, gate: Gate, cluster: FakeCluster, address: str) -> None:
        self.gate = gate
        self.cluster = cluster
        self.address = address
        self.queue = f"whole-{uuid.uuid4().hex[:8]}"

    @property
    def backends(self) -> dict[str, Backend]:
        return {"b": FakeBackend(self.cluster, name="b", gateway="tidegate")}

    @contextlib.asynccontextmanager
    async def worker(self, *, store: Store | None = None, max_events: int = MAX_EVENTS) -> AsyncIterator[None]:
        """One worker process's life, as `tidegate worker` has it."""
        stop = asyncio.Event()
        client = await connect(self.address, "default")
        policy = PolicySettings()
        work = asyncio.create_task(
            serve(
                client,
                store or self.gate.store,
                self.backends,
                SETTINGS,
                plan=lambda snapshot, now_ms: plan(snapshot, policy, now_ms),
                stop=stop,
                task_queue=self.queue,
                max_events=max_events,
            )
        )
        try:
            yield
        finally:
            stop.set()
            await work

    async def until(self, true: Callable[[], Any], what: str) -> Any:
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while not (answer := await asyncio.to_thread(true)):
            jobs = rows(self.gate.engine, "SELECT state, reason, pending FROM jobs")
            attempts = rows(self.gate.engine, "SELECT id, state, stop_cause, message, observed FROM attempts")
            assert asyncio.get_running_loop().time() < deadline, f"not {what}: {jobs} {attempts}"
            await asyncio.sleep(0.02)
        return answer

    async def job_is(self, job: str, state: str) -> None:
        await self.until(lambda: self.gate.job(job).state == state, f"{job} {state}")

    async def attempt_runs(self, job: str, number: int = 1) -> str:
        """The id of the job's attempt, once it runs."""
        query = "SELECT id FROM attempts WHERE job_id = :job AND number = :number AND state = 'RUNNING'"
        found = await self.until(
            lambda: rows(self.gate.engine, query, job=uuid.UUID(job), number=number), f"attempt {number} of {job}"
        )
        return str(found[0].id)


Scene = Callable[[Running], Awaitable[None]]


def play(scene: Scene, engine: Engine, database_url: str, folder: Path) -> None:
    """Play a scene on a Temporal server of its own, for duties are one per namespace; then the books must be right."""
    gate = Gate(engine, database_url)
    write(engine, "UPDATE pools SET place_first = true, places_nodes = true")
    server = temporal.start(folder, durable=False)
    try:
        cluster = FakeCluster({POOL: [replace(node, name=f"n{n}") for n, node in enumerate(equal_nodes(POOL, 2), 1)]})
        asyncio.run(_timed(scene, Running(gate, cluster, server.address)))
        assert check(engine) == []
    finally:
        server.stop()
        gate.store.close()


async def _timed(scene: Scene, running: Running) -> None:
    async with asyncio.timeout(100):
        await scene(running)
