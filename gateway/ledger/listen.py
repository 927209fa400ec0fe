"""Waiting for NOTIFY on a connection of its own. A hint only: whoever waits looks again after its timeout as well."""

import contextlib
import threading
import time

import psycopg
from psycopg import sql

from gateway.ledger.engine import NOTICED

RETRY_S = 0.2


def libpq_dsn(url: str) -> str:
    """The URL without SQLAlchemy's driver name, as libpq reads it."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme.partition('+')[0]}{separator}{rest}" if separator else url


class Listener:
    """One LISTEN connection to one channel, opened at the first wait and again after each loss of the server."""

    def __init__(self, dsn: str, channel: str) -> None:
        self._dsn = libpq_dsn(dsn)
        self._channel = channel
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Listener({self._channel!r})"

    def wait(self, timeout_s: float) -> bool:
        """True when notified, or when the connection is new and a NOTIFY may have been missed; False after the timeout.

        Several notifications that have come are one answer. A server that is away is tried until the timeout.
        """
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while True:
                try:
                    if self._connection is None:
                        self._open(timeout_s)
                        return True
                    return self._heard(deadline)
                except psycopg.OperationalError:
                    self._drop()
                    left = deadline - time.monotonic()
                    if left <= 0:
                        return False
                    time.sleep(min(RETRY_S, left))

    def close(self) -> None:
        """Let the connection go; a later wait opens another."""
        with self._lock:
            self._drop()

    def _heard(self, deadline: float) -> bool:
        assert self._connection is not None
        left = max(0.0, deadline - time.monotonic())
        first = any(True for _ in self._connection.notifies(timeout=left, stop_after=1))
        if first:
            for _ in self._connection.notifies(timeout=0):
                pass
        return first

    def _open(self, timeout_s: float) -> None:
        connection = psycopg.connect(
            self._dsn,
            autocommit=True,
            application_name="tidegate-listen",
            **{**NOTICED, "connect_timeout": max(2, min(10, int(timeout_s) or 2))},
        )
        try:
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _drop(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
            self._connection = None
