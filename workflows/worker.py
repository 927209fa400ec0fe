"""One worker process: workflows, activities and the standing duties, bound to a store and backends given from outside.

Any number may run; Temporal gives each duty to one of them. Builds no store, no backend and no settings.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Final, Protocol

from temporalio.client import Client, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from backends.port import Backend
from workflows.activities.arbiter import ArbiterActivity, Planner
from workflows.activities.attempt import AttemptActivities
from workflows.activities.bulk import BulkLauncher
from workflows.activities.follower import FollowerActivity
from workflows.activities.reconciler import ReconcilerActivity
from workflows.activities.relay import Deliver, RelayActivity
from workflows.activities.webhooks import Send, WebhookActivity
from workflows.flows.attempt import AttemptWorkflow
from workflows.flows.duty import DutyWorkflow
from workflows.messages import MAX_EVENTS, TASK_QUEUE, Duty
from workflows.store import Store

log = logging.getLogger(__name__)
DUTIES: Final = (Duty("arbiter"), Duty("relay"), Duty("reconciler"), Duty("accrual"), Duty("webhooks"))
LOOK_EVERY_S: Final = 2.0
GRACE_S: Final = 5
BEATS_S: Final = 2
_SPARE_THREADS: Final = 16


class WorkerSettings(Protocol):
    """What a worker needs of `gateway.settings.Settings`."""

    @property
    def cycle_idle_s(self) -> float: ...
    @property
    def cycle_debounce_ms(self) -> int: ...
    @property
    def capacity_every_s(self) -> float: ...
    @property
    def reconcile_every_s(self) -> float: ...
    @property
    def accrue_every_s(self) -> float: ...
    @property
    def webhook_tries(self) -> int: ...
    @property
    def worker_threads(self) -> int: ...


async def connect(address: str, namespace: str, *, api_key: str | None = None, tls: bool = False) -> Client:
    """A client of the Temporal frontend at `host:port`; raises RuntimeError when nobody answers."""
    return await Client.connect(address, namespace=namespace, api_key=api_key, tls=tls or api_key is not None)


def build_worker(
    client: Client,
    store: Store,
    backends: Mapping[str, Backend],
    settings: WorkerSettings,
    *,
    plan: Planner,
    deliver: Mapping[str, Deliver] | None = None,
    webhooks: Send | None = None,
    task_queue: str = TASK_QUEUE,
    max_events: int = MAX_EVENTS,
) -> Worker:
    """A worker that is not running yet. `plan(snapshot, now_ms)` is the arbiter's decision; `deliver`: outbox kinds
    beside start and nudge; `max_events`: the threshold given to the attempts that are started from now on.
    """
    holder = f"{socket.gethostname()}:{os.getpid()}"
    attempts = AttemptActivities(store, backends)
    arbiter = ArbiterActivity(
        store, plan, holder=holder, idle_s=settings.cycle_idle_s, debounce_s=settings.cycle_debounce_ms / 1000
    )
    relay = RelayActivity(
        store,
        client,
        task_queue=task_queue,
        more=deliver,
        max_events=max_events,
        launcher=BulkLauncher(store, backends),
    )
    hooks = WebhookActivity(store, webhooks, tries=settings.webhook_tries)
    follower = FollowerActivity(store, backends, capacity_every_s=settings.capacity_every_s)
    reconciler = ReconcilerActivity(
        store, backends, client, every_s=settings.reconcile_every_s, accrue_every_s=settings.accrue_every_s
    )
    # The standing loops keep their threads for good: an attempt's step must never wait for one of them.
    threads = settings.worker_threads + _SPARE_THREADS
    return Worker(
        client,
        task_queue=task_queue,
        workflows=[AttemptWorkflow, DutyWorkflow],
        activities=[
            *attempts.all(),
            arbiter.run,
            relay.run,
            hooks.run,
            follower.run,
            reconciler.reconcile,
            reconciler.accrue,
        ],
        activity_executor=ThreadPoolExecutor(threads, thread_name_prefix="activity"),
        max_concurrent_activities=threads,
        max_concurrent_local_activities=threads,
        # The flows are thin and replayed under the sandbox in tests; without it a worker does half as much again.
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_cached_workflows=2_000,
        # Left alone, the SDK holds beats back until four fifths of their timeout are over.
        max_heartbeat_throttle_interval=timedelta(seconds=BEATS_S),
        default_heartbeat_throttle_interval=timedelta(seconds=BEATS_S),
        graceful_shutdown_timeout=timedelta(seconds=GRACE_S),
    )


async def keep_duties(client: Client, backends: Mapping[str, Backend], *, task_queue: str = TASK_QUEUE) -> None:
    """Start every duty that is not open, and a follower for each backend that appears; until cancelled.

    Nothing that fails here ends the worker: it would take its running steps along, for an outage that will pass.
    """
    while True:
        try:
            # In a thread: the mapping is live, and a database that hangs must not stop every workflow of this worker.
            names = await asyncio.to_thread(list, backends)
        except Exception:
            log.exception("the backends could not be read; their followers are looked after later")
            names = []
        for duty in (*DUTIES, *(Duty("follower", name) for name in names)):
            try:
                await start_duty(client, duty, task_queue)
            except RPCError as error:
                log.warning("duty %s could not be started: %s", duty_id(duty), error)
        await asyncio.sleep(LOOK_EVERY_S)


def duty_id(duty: Duty) -> str:
    """The workflow id of a duty: one open run of each in a namespace."""
    return f"duty-{duty.name}-{duty.subject}" if duty.subject else f"duty-{duty.name}"


async def start_duty(client: Client, duty: Duty, task_queue: str = TASK_QUEUE) -> None:
    """Start it unless it is open."""
    try:
        await client.start_workflow(
            "duty",
            duty,
            id=duty_id(duty),
            task_queue=task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
    except (WorkflowAlreadyStartedError, WorkflowFailureError):
        return


async def serve(
    client: Client,
    store: Store,
    backends: Mapping[str, Backend],
    settings: WorkerSettings,
    *,
    plan: Planner,
    stop: asyncio.Event,
    deliver: Mapping[str, Deliver] | None = None,
    webhooks: Send | None = None,
    task_queue: str = TASK_QUEUE,
    max_events: int = MAX_EVENTS,
) -> None:
    """Work until `stop` is set: then no new tasks, GRACE_S for running steps, and the rest goes on elsewhere."""
    worker = build_worker(
        client,
        store,
        backends,
        settings,
        plan=plan,
        deliver=deliver,
        webhooks=webhooks,
        task_queue=task_queue,
        max_events=max_events,
    )
    async with worker:
        duties = asyncio.create_task(keep_duties(client, backends, task_queue=task_queue))
        waiting = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([duties, waiting], return_when=asyncio.FIRST_COMPLETED)
            if duties.done():
                duties.result()
        finally:
            for task in (duties, waiting):
                task.cancel()
            await asyncio.gather(duties, waiting, return_exceptions=True)
