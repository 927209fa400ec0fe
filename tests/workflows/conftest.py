"""One Temporal server in memory for the tests of workflows alone, and one each for those of the whole engine."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from gateway.embedded import temporal
from tests.workflows.books import Books, LedgerBooks, MemoryBooks
from tests.workflows.skipping import Skipping, skipping_server
from tests.workflows.whole import Scene, play


@pytest.fixture(scope="session")
def temporal_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("temporal")
    server = temporal.start(folder, durable=False)
    try:
        yield server.address
    finally:
        server.stop()


@pytest.fixture
def whole(engine: Engine, database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Scene], None]:
    """Play a scene with the engine on."""
    return lambda scene: play(scene, engine, database_url, tmp_path_factory.mktemp("temporal"))


@pytest.fixture(scope="session")
def skipping() -> Iterator[Skipping]:
    with skipping_server() as server:
        yield server


@pytest.fixture(params=["memory", "postgres"])
def books(request: pytest.FixtureRequest) -> Iterator[Books]:
    """The rows, in memory and in PostgreSQL: a scene that asks for them is played on both."""
    if request.param == "memory":
        yield MemoryBooks()
        return
    made = LedgerBooks(request.getfixturevalue("engine"), request.getfixturevalue("database_url"))
    yield made
    made.close()
