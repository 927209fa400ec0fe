"""The engine of the ledger and the one way to run a transaction that may have to be tried again.

Sessions run as the role `tidegate_app` wherever the login may take it on: that role cannot change what is written once.
"""

import random
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, DisconnectionError, OperationalError
from sqlalchemy.orm import Session

APP_ROLE: Final = "tidegate_app"
IDLE_S: Final = 5.0  # a connection that lay idle for longer is tried before it is used
# A server that vanished without a word (host down, network cut) is noticed in about half a minute, not in hours.
NOTICED: Final[dict[str, Any]] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,  # milliseconds that sent data may stay unacknowledged
}
_AGAIN: Final = {"40001", "40P01", "55P03"}  # serialization failure, deadlock, lock not available
_T = TypeVar("_T")


def make_engine(url: str, *, pool_size: int = 20, app_role: bool = True, application: str = "tidegate") -> Engine:
    """An engine in UTC with a bounded pool; opens nothing yet. app_role=False: as the owner, for migrations."""
    engine = create_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=30,
        connect_args={
            **NOTICED,
            "application_name": application,
            "options": "-c timezone=UTC -c lock_timeout=30s -c idle_in_transaction_session_timeout=60s",
        },
        hide_parameters=True,
    )
    event.listen(engine, "checkin", _note_return)
    event.listen(engine, "checkout", _ping_if_idle)
    if app_role:
        event.listen(engine, "connect", _take_role)
    return engine


def _note_return(_connection: Any, record: Any) -> None:
    record.info["returned_at"] = time.monotonic()


def _ping_if_idle(connection: Any, record: Any, _proxy: Any) -> None:
    """A ping at every checkout costs a busy submit a third of its time; one that was used just now is alive."""
    returned_at = record.info.get("returned_at")
    if returned_at is None or time.monotonic() - returned_at < IDLE_S:
        return
    try:
        connection.autocommit = True
        connection.execute("SELECT 1")
        connection.autocommit = False
    except psycopg.Error as error:
        raise DisconnectionError("the connection was lost while idle") from error  # the pool opens another


def _take_role(connection: Any, _record: Any) -> None:
    before = connection.autocommit
    connection.autocommit = True
    try:
        known = connection.execute(
            "SELECT pg_has_role(current_user, oid, 'SET') FROM pg_roles WHERE rolname = %s", (APP_ROLE,)
        ).fetchone()
        if known is not None and known[0]:
            connection.execute(f"SET ROLE {APP_ROLE}")
    finally:
        connection.autocommit = before


def in_transaction(engine: Engine, work: Callable[[Session], _T], *, tries: int = 5) -> _T:
    """Run `work` in one transaction and commit; again when the database ended it for the sake of another."""
    for turn in range(1, tries + 1):
        try:
            with Session(engine, expire_on_commit=False) as session, session.begin():
                return work(session)
        except OperationalError as error:
            if turn == tries or not _may_repeat(error):
                raise
            time.sleep(random.uniform(0, 0.02 * 2**turn))  # noqa: S311  (spreads rivals, guards nothing)
    raise AssertionError("unreachable")


def _may_repeat(error: DBAPIError) -> bool:
    return getattr(error.orig, "sqlstate", None) in _AGAIN
