"""A store on a fresh database."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tests.unit.store.world import Gate


@pytest.fixture
def gate(engine: Engine, database_url: str) -> Iterator[Gate]:
    made = Gate(engine, database_url)
    yield made
    made.store.close()
