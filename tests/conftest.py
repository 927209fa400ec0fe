"""Fixtures that every folder may ask for: a migrated PostgreSQL database of one's own, and an engine on it."""

import os
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from gateway.ledger.engine import make_engine
from tests.harness.postgres import Databases, databases


@pytest.fixture(scope="session")
def database_server(worker_id: str, testrun_uid: str) -> Iterator[Databases]:
    """The run's server: one, however many workers there are."""
    with databases(str(os.getpid()) if worker_id == "master" else testrun_uid) as found:
        yield found


@pytest.fixture
def database_url(database_server: Databases) -> Iterator[str]:
    """A fresh, migrated database."""
    with database_server.fresh() as url:
        yield url


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """An engine on a fresh database, as the application sees it."""
    made = make_engine(database_url, pool_size=60)
    yield made
    made.dispose()
