"""Workers and `recover` keep out of each other's way, by one advisory lock of the database: shared by every worker that
is at work, exclusive to a recovery. Each holds it on a connection of its own, so that it goes with its process.

`recover` ends workflows and concludes from what it sees at the backends; a step that a worker does in between (a launch
between its two calls) would be concluded about wrongly, and run twice. Hence it refuses, and workers wait for its end.
"""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import psycopg

from gateway.ledger.engine import NOTICED
from gateway.ledger.listen import libpq_dsn

log = logging.getLogger(__name__)
KEY: Final = int.from_bytes(b"tidegate", "big")
LOOK_EVERY_S: Final = 1.0
BACK_S: Final = 5.0  # after a start of the database its workers have come back by then
_NAME: Final = "tidegate-worker"
_SHARED: Final = "SELECT pg_try_advisory_lock_shared(%s)"
_ALONE: Final = "SELECT pg_try_advisory_lock(%s)"
_UP_S: Final = "SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())"
_WHO: Final = """
    SELECT application_name FROM pg_stat_activity JOIN pg_locks USING (pid)
    WHERE locktype = 'advisory' AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (classid::bigint << 32 | objid::bigint) = %s ORDER BY 1
"""


class AtWorkError(Exception):
    """Somebody else is at work on this database; the message says who."""


class Presence:
    """A worker's half. `barred()` is called, from another thread, when a recovery began while the database was away."""

    def __init__(self, dsn: str, *, barred: Callable[[], None]) -> None:
        self._dsn = libpq_dsn(dsn)
        self._barred = barred
        self._leave = threading.Event()
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None
        self._thread: threading.Thread | None = None

    def enter(self, leave: Callable[[], bool]) -> bool:
        """Wait while a recovery runs; False when `leave()` came first. psycopg.OperationalError: no database."""
        told = False
        while not self._hold():
            if not told:
                log.info("tidegate recover is at work on this database; waiting for its end")
            told = True
            if leave() or self._leave.wait(LOOK_EVERY_S):
                return False
        self._thread = threading.Thread(target=self._keep, name="presence", daemon=True)
        self._thread.start()
        return True

    def close(self) -> None:
        """Not at work any more."""
        self._leave.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        self._drop()

    def _hold(self) -> bool:
        name = f"{_NAME} {socket.gethostname()}:{os.getpid()}"[:63]
        connection = psycopg.connect(self._dsn, autocommit=True, application_name=name, **NOTICED)
        row = connection.execute(_SHARED, (KEY,)).fetchone()
        if row is None or not row[0]:
            connection.close()
            return False
        self._connection = connection
        return True

    def _keep(self) -> None:
        while not self._leave.wait(LOOK_EVERY_S):
            try:
                if self._connection is None and not self._hold():
                    log.warning("tidegate recover has begun while the database was away; this worker leaves")
                    self._barred()
                    return
                if self._connection is not None:
                    self._connection.execute("SELECT 1")
            except psycopg.Error:
                self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
            self._connection = None


@contextlib.contextmanager
def alone(dsn: str) -> Iterator[None]:
    """A recovery's half: AtWorkError while anybody is at work, and nobody begins before the block ends."""
    with psycopg.connect(libpq_dsn(dsn), autocommit=True, application_name="tidegate-recover", **NOTICED) as connection:
        (up_s,) = connection.execute(_UP_S).fetchone() or (0,)
        time.sleep(
            max(0.0, BACK_S - float(str(up_s)))
        )  # workers that lost it with the database's restart take it again
        row = connection.execute(_ALONE, (KEY,)).fetchone()
        if row is None or not row[0]:
            names = [str(name).removeprefix(_NAME).strip() for (name,) in connection.execute(_WHO, (KEY,)).fetchall()]
            raise AtWorkError(f"at work on this database: {', '.join(names) or 'somebody'}")
        yield
