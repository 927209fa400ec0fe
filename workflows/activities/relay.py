"""The relay's loop: outbox rows become workflow starts and nudges. At least once, in any order, as late as it may be.

A row that cannot be delivered is tried again later by the store's delay and never stops the others. Never decides
whether an attempt should live: its workflow reads that from the row.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from temporalio import activity
from temporalio.client import Client
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from workflows.activities.bulk import BulkLauncher
from workflows.activities.turns import BEAT_EVERY_S, Turn
from workflows.messages import MAX_EVENTS, NUDGE, TASK_QUEUE, AttemptRef, Duty
from workflows.store import OutboxItem, Store

log = logging.getLogger(__name__)
BATCH: Final = 200
AT_ONCE: Final = 32
STARTS_AT_ONCE: Final = 4  # batches of starts under way; nudges never wait for them
_DELIVERY_S: Final = 10
Deliver = Callable[[OutboxItem], Awaitable[None]]


async def start_attempt(
    client: Client, attempt_id: str, task_queue: str = TASK_QUEUE, *, max_events: int = MAX_EVENTS
) -> bool:
    """Start the workflow of an attempt; False if it runs already. A closed id may be started again."""
    try:
        await client.start_workflow(
            "attempt",
            AttemptRef(attempt_id, max_events=max_events),
            id=attempt_id,
            task_queue=task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            request_eager_start=True,  # where the worker has room it gets the first task with the answer
        )
    except WorkflowAlreadyStartedError:
        return False
    return True


async def nudge_attempt(
    client: Client, attempt_id: str, task_queue: str = TASK_QUEUE, *, max_events: int = MAX_EVENTS
) -> None:
    """Signal the workflow of an attempt; one that is not there is started and reads the row by itself."""
    try:
        await client.get_workflow_handle(attempt_id).signal(NUDGE)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        await start_attempt(client, attempt_id, task_queue, max_events=max_events)


class RelayActivity:
    """`more`: deliveries of other kinds (webhooks), by kind. `max_events`: see AttemptRef.

    launcher: launches what is due before its workflows begin; None leaves every launch to them.
    """

    def __init__(
        self,
        store: Store,
        client: Client,
        *,
        task_queue: str = TASK_QUEUE,
        more: Mapping[str, Deliver] | None = None,
        idle_s: float = 1.0,
        max_events: int = MAX_EVENTS,
        launcher: BulkLauncher | None = None,
    ) -> None:
        self._store = store
        self._client = client
        self._queue = task_queue
        self._more = dict(more or {})
        self._idle_s = idle_s
        self._max_events = max_events
        self._launcher = launcher

    @activity.defn(name="duty_relay")
    async def run(self, _duty: Duty) -> str:
        """One turn."""
        turn = Turn()
        beats = asyncio.create_task(_beat())  # a slow Temporal must not look like a dead relay
        try:
            await self._loop(turn)
        finally:
            beats.cancel()
        return "turn"

    async def _loop(self, turn: Turn) -> None:
        room = asyncio.Semaphore(STARTS_AT_ONCE)
        starting: set[asyncio.Task[None]] = set()
        try:
            while turn.goes_on():
                try:
                    items = await asyncio.to_thread(self._store.claim_outbox, BATCH)
                    if not items:
                        await asyncio.to_thread(self._store.wait_for_outbox, self._idle_s)
                        continue
                    if starts := [item for item in items if item.kind == "start"]:
                        await room.acquire()
                        task = asyncio.create_task(self._start(starts, room))
                        starting.add(task)
                        task.add_done_callback(starting.discard)
                    if others := [item for item in items if item.kind != "start"]:
                        await self.deliver(others)
                except Exception:
                    log.exception("the outbox could not be read; again in a second")
                    await asyncio.sleep(1)
        finally:
            await asyncio.gather(*starting)

    async def _start(self, items: Sequence[OutboxItem], room: asyncio.Semaphore) -> None:
        """What can be launched in bulk is; then each has its workflow, which takes over from wherever it stands."""
        try:
            if self._launcher is not None:
                await asyncio.to_thread(self._launcher.launch, [item.target for item in items])
            await self.deliver(items)
        except Exception:
            log.exception("a batch of starts could not be delivered; its rows come again")
        finally:
            room.release()

    async def deliver(self, items: Sequence[OutboxItem]) -> None:
        """Deliver all of them, at most AT_ONCE at a time; the store hears of each which it was."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(item: OutboxItem) -> str | None:
            async with gate:
                try:
                    await asyncio.wait_for(self._deliver(item), _DELIVERY_S)
                except Exception as error:  # noqa: BLE001  (one bad row never stops the others)
                    return f"{type(error).__name__}: {error}"
                return None

        problems = await asyncio.gather(*(one(item) for item in items))
        done = [item.id for item, problem in zip(items, problems, strict=True) if problem is None]
        if done:
            await asyncio.to_thread(self._store.outbox_done, done)
        for item, problem in zip(items, problems, strict=True):
            if problem is not None:
                log.warning("outbox row %d (%s %s), try %d: %s", item.id, item.kind, item.target, item.tries, problem)
                await asyncio.to_thread(self._store.outbox_failed, item.id, problem)

    async def _deliver(self, item: OutboxItem) -> None:
        if item.kind == "start":
            await start_attempt(self._client, item.target, self._queue, max_events=self._max_events)
        elif item.kind == "nudge":
            await nudge_attempt(self._client, item.target, self._queue, max_events=self._max_events)
        elif item.kind in self._more:
            await self._more[item.kind](item)
        else:
            raise LookupError(f"nobody delivers outbox rows of kind {item.kind!r}")


async def _beat() -> None:
    while activity.in_activity():
        activity.heartbeat()
        await asyncio.sleep(BEAT_EVERY_S)
