"""Whether the ledger's database answers, asked once before a verb begins. Never waits for it to come."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, OperationalError, ProgrammingError

TIMEOUT_S: Final = 5


class UnreachableDatabaseError(Exception):
    """It does not answer; the message names the place, never the password."""


@contextmanager
def answering() -> Iterator[None]:
    """For reads that conclude something from the ledger: a database that fails them has said nothing."""
    try:
        yield
    except ProgrammingError as error:
        said = "the database holds no ledger of this version; run `tidegate migrate`"
        raise UnreachableDatabaseError(said) from error
    except OperationalError as error:
        raise UnreachableDatabaseError("the database stopped answering; try again") from error


def probe(url: str) -> None:
    """Connect and leave again. UnreachableDatabaseError in one line."""
    try:
        parts = make_url(url)
    except ArgumentError as error:
        raise UnreachableDatabaseError("the database's URL cannot be read") from error
    where = f"{parts.host or parts.query.get('host', 'localhost')}:{parts.port or 5432}/{parts.database or ''}"
    dsn = parts.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        psycopg.connect(dsn, connect_timeout=TIMEOUT_S).close()
    except psycopg.Error as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UnreachableDatabaseError(f"the database at {where} does not answer: {first}") from error
