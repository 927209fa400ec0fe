"""One LISTEN connection per process that wakes the open streams. A lost notification costs a stream half a second."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg
from anyio import CapacityLimiter, to_thread
from sqlalchemy import Engine

from gateway.ledger.engine import NOTICED
from gateway.ledger.listen import libpq_dsn

logger = logging.getLogger("tidegate.api")
CHANNEL: Final = "tidegate_events"
POLL_S: Final = 0.5
_RECONNECT_S: Final = 1.0
_T = TypeVar("_T")


class Hub:
    """Lives on the event loop of the app; `listen` is its one task, `wait` is what streams do between two looks."""

    def __init__(self, engine: Engine) -> None:
        self._url = engine.url
        self._waiting: dict[asyncio.Event, str] = {}
        self.closing = False
        # Threads of their own: a hundred quiet followers must not keep a submit waiting, nor each other.
        self._readers = CapacityLimiter(8)
        self._followers = CapacityLimiter(128)

    async def read(self, query: Callable[..., _T], *args: Any) -> _T:
        """Run a short query of a stream in a thread."""
        return await to_thread.run_sync(query, *args, limiter=self._readers)

    async def follow(self, step: Callable[..., _T], *args: Any) -> _T:
        """Run one step of a backend's output, which may block for a second."""
        return await to_thread.run_sync(step, *args, limiter=self._followers)

    def close(self) -> None:
        """Wake every stream and have it end."""
        self.closing = True
        self._wake()

    async def wait(self, subject: str, timeout_s: float = POLL_S) -> None:
        """Until something happened to `subject` (a job's id), or the timeout."""
        woken = asyncio.Event()
        self._waiting[woken] = subject
        try:
            await asyncio.wait_for(woken.wait(), timeout_s)
        except TimeoutError:
            pass
        finally:
            del self._waiting[woken]

    async def listen(self) -> None:
        """Until cancelled; a lost connection is opened again, and the streams poll meanwhile."""
        dsn = libpq_dsn(self._url.render_as_string(hide_password=False))
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    dsn, autocommit=True, application_name="tidegate-events", **NOTICED
                ) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    async for notified in connection.notifies():
                        self._wake(notified.payload)
            except psycopg.Error as error:
                logger.warning("event listener lost its connection: %s", type(error).__name__)
            await asyncio.sleep(_RECONNECT_S)

    def _wake(self, subject: str = "") -> None:
        """A notification without a payload is for everybody."""
        for woken, waits_for in tuple(self._waiting.items()):
            if subject in {"", waits_for}:
                woken.set()
