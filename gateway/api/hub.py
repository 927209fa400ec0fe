"""One LISTEN connection per process that wakes the open streams. A lost notification costs a stream half a second."""

import asyncio
import logging
import threading
from typing import Final

import psycopg
from sqlalchemy import Engine

logger = logging.getLogger("tidegate.api")
CHANNEL: Final = "tidegate_events"
POLL_S: Final = 0.5
_RECONNECT_S: Final = 1.0


class Hub:
    """Started and stopped with the app. Streams call `wait` on the event loop; the thread only sets their events."""

    def __init__(self, engine: Engine) -> None:
        self._url = engine.url
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Event] = set()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def closing(self) -> bool:
        """Whether the app is going down: streams end."""
        return self._closing.is_set()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen from now on."""
        self._loop = loop
        self._closing.clear()
        self._thread = threading.Thread(target=self._listen, name="tidegate-events", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wake and end every stream, and the thread."""
        self._closing.set()
        self._wake()
        if self._thread is not None:
            self._thread.join(timeout=5)

    async def wait(self, timeout_s: float = POLL_S) -> None:
        """Until something happened somewhere, or the timeout."""
        woken = asyncio.Event()
        self._waiting.add(woken)
        try:
            await asyncio.wait_for(woken.wait(), timeout_s)
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(woken)

    def _wake(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._set_all)

    def _set_all(self) -> None:
        for woken in tuple(self._waiting):
            woken.set()

    def _listen(self) -> None:
        url = self._url.set(drivername="postgresql").render_as_string(hide_password=False)
        while not self._closing.is_set():
            try:
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute(f"LISTEN {CHANNEL}")
                    while not self._closing.is_set():
                        for _ in connection.notifies(timeout=POLL_S, stop_after=1):
                            self._wake()
            except psycopg.Error as error:
                logger.warning("event listener lost its connection: %s", type(error).__name__)
                self._closing.wait(_RECONNECT_S)
