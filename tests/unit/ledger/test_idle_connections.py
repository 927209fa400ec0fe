"""A connection that the server closed while it lay idle is replaced before it is used."""

import psycopg
import pytest
from sqlalchemy import Engine, text

from gateway.ledger import engine as engines
from gateway.ledger.listen import libpq_dsn


def test_a_connection_lost_while_idle_is_replaced_unseen(
    engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.connect() as connection:
        backend = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
    with psycopg.connect(libpq_dsn(database_url), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (backend,))
    monkeypatch.setattr(engines, "IDLE_S", 0.0)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT pg_backend_pid()")).scalar_one() != backend
        assert not connection.connection.dbapi_connection.autocommit  # type: ignore[union-attr]
