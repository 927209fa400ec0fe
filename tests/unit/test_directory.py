"""The live backends of a process: an outage of the database changes nothing about them."""

from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from sqlmodel import Session

from gateway.directory import BackendDirectory
from gateway.ledger.engine import make_engine
from gateway.ledger.tables.capacity import BackendRow, Flavor, Pool


@pytest.fixture
def away() -> Engine:
    """A database that nobody serves."""
    return make_engine("postgresql+psycopg://nobody@127.0.0.1:1/nothing")


def test_known_backends_serve_on_while_the_database_is_away(engine: Engine, away: Engine, tmp_path: Path) -> None:
    with Session(engine) as session, session.begin():
        session.add(Flavor(name="plain"))
        session.add(BackendRow(name="here", kind="local", config={"isolation": "none"}))
        session.flush()
        session.add(Pool(name="small", backend="here", flavor="plain", config={"nodes": 1}))
    directory = BackendDirectory(engine, "tidegate", tmp_path)
    before = directory["here"]
    directory._engine = away
    directory._looked_at = float("-inf")
    assert list(directory) == ["here"]
    assert directory["here"] is before
    directory.close()


def test_before_the_first_look_an_outage_is_an_error_and_not_an_empty_gate(away: Engine, tmp_path: Path) -> None:
    with pytest.raises(OperationalError):
        list(BackendDirectory(away, "tidegate", tmp_path))
