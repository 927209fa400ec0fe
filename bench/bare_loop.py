"""The peer of the engine row: the least that a durable life on Temporal costs, on the same servers.

One workflow a job: launch (an activity that writes a row), a signal that the job has ended, settle (an activity that
closes the row). `python -m bench.bare_loop`, with the gate's settings in the environment.
"""

import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Final

from sqlalchemy import Engine, text
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from gateway.bootstrap import read_settings
from gateway.ledger.engine import make_engine

QUEUE: Final = "bare"
THREADS: Final = 32
MAKE: Final = "CREATE TABLE IF NOT EXISTS bare_lives (id text PRIMARY KEY, launched timestamptz, settled timestamptz)"
_LAUNCH: Final = text("INSERT INTO bare_lives VALUES (:id, now(), NULL) ON CONFLICT DO NOTHING")
_SETTLE: Final = text("UPDATE bare_lives SET settled = now() WHERE id = :id")
_TIMEOUT: Final = timedelta(seconds=60)


@workflow.defn(name="bare")
class BareWorkflow:
    """Launch, signal, settle."""

    def __init__(self) -> None:
        self._ended = False

    @workflow.signal(name="ended")
    def ended(self) -> None:
        """The job is over."""
        self._ended = True

    @workflow.run
    async def run(self, job: str) -> None:
        """One life."""
        await workflow.execute_activity("bare_launch", job, start_to_close_timeout=_TIMEOUT)
        await workflow.wait_condition(lambda: self._ended)
        await workflow.execute_activity("bare_settle", job, start_to_close_timeout=_TIMEOUT)


class BareActivities:
    """One transaction each; what is launched ends at once and says so by a signal."""

    def __init__(self, engine: Engine, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._client = client
        self._loop = loop

    @activity.defn(name="bare_launch")
    def launch(self, job: str) -> None:
        """The job's row; then it ends."""
        with self._engine.begin() as connection:
            connection.execute(_LAUNCH, {"id": job})
        asyncio.run_coroutine_threadsafe(self._client.get_workflow_handle(job).signal("ended"), self._loop)

    @activity.defn(name="bare_settle")
    def settle(self, job: str) -> None:
        """The row is closed."""
        with self._engine.begin() as connection:
            connection.execute(_SETTLE, {"id": job})


async def work() -> None:
    """Until SIGTERM."""
    settings = read_settings()
    leave = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, leave.set)
    engine = make_engine(settings.database_url.get_secret_value(), pool_size=THREADS, app_role=False)
    client = await Client.connect(settings.temporal_address, namespace=settings.temporal_namespace)
    activities = BareActivities(engine, client, loop)
    worker = Worker(
        client,
        task_queue=QUEUE,
        workflows=[BareWorkflow],
        activities=[activities.launch, activities.settle],
        activity_executor=ThreadPoolExecutor(THREADS),
        max_concurrent_activities=THREADS,
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_cached_workflows=2_000,
    )
    async with worker:
        await leave.wait()
    engine.dispose()


if __name__ == "__main__":
    asyncio.run(work())
