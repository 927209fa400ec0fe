"""The database is what the models say, and what is written once stays."""

from datetime import UTC, datetime

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, text
from sqlalchemy.exc import ProgrammingError

from gateway.ledger.engine import make_engine
from gateway.ledger.migrate import current, head, migrate
from gateway.ledger.migrations.compare import include_object
from gateway.ledger.partitions import ensure_partitions
from gateway.ledger.tables import APPEND_ONLY, metadata


def test_models_and_migrated_database_agree(engine: Engine) -> None:
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"include_object": include_object, "compare_type": True, "compare_server_default": False}
        )
        difference = compare_metadata(context, metadata)
    assert difference == [], "write the revision that is missing: python -m tests.harness.revision 'what changes'"


def test_migrating_again_changes_nothing(database_url: str, engine: Engine) -> None:
    assert migrate(database_url) == head()
    with engine.connect() as connection:
        assert current(connection) == head()


@pytest.mark.parametrize("table", APPEND_ONLY)
def test_the_application_cannot_change_what_was_written(engine: Engine, table: str) -> None:
    for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET at = now()"):
        with engine.connect() as connection, pytest.raises(ProgrammingError, match="permission denied"):
            connection.execute(text(statement))


def test_no_partition_lets_the_application_reach_around_its_parent(database_url: str, engine: Engine) -> None:
    migrate(database_url)  # grants anew, with the partitions there
    with engine.connect() as connection:
        names = connection.execute(
            text("SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r'")
        ).scalars()
        reachable = [
            name
            for name in list(names)
            if connection.execute(text(f"SELECT has_table_privilege('{name}', 'UPDATE, DELETE, TRUNCATE')")).scalar()
        ]
    assert reachable == []


def test_a_month_without_a_partition_loses_nothing_and_moves_home_later(database_url: str) -> None:
    owner = make_engine(database_url, app_role=False, pool_size=1)
    later = datetime(2099, 5, 6, tzinfo=UTC)
    try:
        with owner.begin() as connection:
            connection.execute(
                text("INSERT INTO observations (at, attempt_id, backend, phase) VALUES (:at, 'a', 'b', 'Running')"),
                {"at": later},
            )
            assert connection.execute(text("SELECT count(*) FROM observations_default")).scalar_one() == 1
        with owner.begin() as connection:
            assert "observations_2099_05" in ensure_partitions(connection, later)
            assert connection.execute(text("SELECT count(*) FROM observations_2099_05")).scalar_one() == 1
            assert connection.execute(text("SELECT count(*) FROM observations_default")).scalar_one() == 0
    finally:
        owner.dispose()
