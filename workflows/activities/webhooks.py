"""The loop that delivers webhooks: at least once, in any order, again with growing pauses, and with an end.

A receiver has few deliveries at a time, and one that just failed is left alone for a while, so that it holds up no
other. Never shows a URL: it may hold what is secret to its owner.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from temporalio import activity

from workflows.activities.turns import BEAT_EVERY_S, Turn
from workflows.messages import Duty
from workflows.store import OutboxItem, Store

log = logging.getLogger(__name__)
BATCH: Final = 200
AT_ONCE: Final = 64
AT_ONCE_EACH: Final = 4
REST_S: Final = 15.0
FIRST_DELAY_S: Final = 10
LONGEST_DELAY_S: Final = 3600
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Deliver {"url", "tenant", "body"} or raise UndeliveredError. Bounded in time by itself."""


class UndeliveredError(Exception):
    """The receiver did not take it. `final`: it will never."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class WebhookActivity:
    """`send=None`: this worker delivers none; another may. `tries`: after so many it is given up."""

    def __init__(
        self,
        store: Store,
        send: Send | None,
        *,
        tries: int,
        idle_s: float = 1.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._store = store
        self._send = send
        self._tries = tries
        self._idle_s = idle_s
        self._clock = clock or time.monotonic
        self._resting: dict[str, float] = {}  # receiver -> until when

    @activity.defn(name="duty_webhooks")
    async def run(self, _duty: Duty) -> str:
        """One turn."""
        turn = Turn()
        beats = asyncio.create_task(_beat())
        try:
            while turn.goes_on():
                try:
                    delivered = self._send is not None and await self.some()
                except Exception:
                    log.exception("webhooks could not be read; again in a second")
                    delivered = False
                if not delivered:
                    await asyncio.sleep(self._idle_s)
        finally:
            beats.cancel()
        return "turn"

    async def some(self) -> bool:
        """Deliver what is due, once each; False when nothing was."""
        items = await asyncio.to_thread(self._store.claim_webhooks, BATCH)
        await self.deliver(items)
        return bool(items)

    async def deliver(self, items: Sequence[OutboxItem]) -> None:
        """All of them; the store hears of each as soon as it is known."""
        every, each = (
            asyncio.Semaphore(AT_ONCE),
            defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(AT_ONCE_EACH)),
        )

        async def one(item: OutboxItem) -> None:
            receiver = _receiver(item)
            async with each[receiver], every:
                problem = await self._try(item, receiver)
            if problem is None:
                await asyncio.to_thread(self._store.outbox_done, [item.id])
            else:
                await self._failed(item, problem)

        answers = await asyncio.gather(*(one(item) for item in items), return_exceptions=True)
        for item, answer in zip(items, answers, strict=True):
            if isinstance(answer, BaseException):
                log.error("webhook %d: %s; it comes again", item.id, type(answer).__name__)

    async def _try(self, item: OutboxItem, receiver: str) -> UndeliveredError | None:
        if self._resting.get(receiver, 0.0) > self._clock():
            return UndeliveredError("the receiver has just failed; it is left alone for a while")
        assert self._send is not None
        try:
            await self._send(item.data)
        except UndeliveredError as error:
            if not error.final:
                self._resting[receiver] = self._clock() + REST_S
            return error
        except Exception as error:  # noqa: BLE001  (one bad row never stops the others; its text may hold the URL)
            return UndeliveredError(f"a defect of the gate: {type(error).__name__}")
        self._resting.pop(receiver, None)
        return None

    async def _failed(self, item: OutboxItem, problem: UndeliveredError) -> None:
        over = problem.final or item.tries >= self._tries
        delay_s = None if over else min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** min(item.tries - 1, 20))
        log.warning(
            "webhook %d of job %s, try %d: %s%s",
            item.id,
            item.target,
            item.tries,
            problem,
            "; given up" if over else "",
        )
        await asyncio.to_thread(self._store.webhook_failed, item.id, str(problem), delay_s)


def _receiver(item: OutboxItem) -> str:
    return urlsplit(str(item.data.get("url", ""))).netloc


async def _beat() -> None:
    while activity.in_activity():
        activity.heartbeat()
        await asyncio.sleep(BEAT_EVERY_S)
