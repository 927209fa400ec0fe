"""A ledger with one flavor and one pool."""

import pytest
from sqlalchemy import Engine

from tests.builders.ledger import World


@pytest.fixture
def world(engine: Engine) -> World:
    return World(engine)
