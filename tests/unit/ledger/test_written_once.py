"""DESIGN §6: what is written once stays, for the application's role and on every way to it; and every month has a home.

Asked of the metadata and the catalogue, so that a new table or partition cannot be forgotten.
"""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import ProgrammingError

from gateway.ledger.accrual import accrue
from gateway.ledger.engine import APP_ROLE, make_engine
from gateway.ledger.migrate import migrate
from gateway.ledger.partitions import ensure_partitions
from gateway.ledger.tables import APPEND_ONLY, PARTITIONED, metadata
from tests.harness.clock import START, Clock

# Whoever adds a table says here or in APPEND_ONLY what it is. These have rows whose columns move on.
CHANGING = {
    "accounts",
    "arbiter",
    "attempts",
    "backends",
    "borrowings",
    "budgets",
    "checkpoints",
    "class_allowances",
    "credits",
    "flavors",
    "foreign_use",
    "grants",
    "idempotency_keys",
    "jobs",
    "leases",
    "nodes",
    "outbox",
    "overrides",
    "owners",
    "pools",
    "quotas",
    "snapshots",  # named by their own digest, so that a changed one is found out
    "storages",
    "tasks",
    "tenants",
    "tokens",
}
RIGHTS = ("UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")


def test_every_table_is_either_written_once_or_named_as_changing() -> None:
    tables = set(metadata.tables)
    assert tables == set(APPEND_ONLY) | CHANGING, "say of the new table whether its rows are ever changed"
    assert not set(APPEND_ONLY) & CHANGING
    assert set(PARTITIONED) <= set(APPEND_ONLY)
    assert {"entries", "events", "observations", "transactions", "audit", "decisions"} == set(APPEND_ONLY)


@pytest.mark.parametrize("table", APPEND_ONLY)
def test_every_statement_that_would_change_a_row_is_refused(engine: Engine, table: str) -> None:
    column = next(iter(metadata.tables[table].primary_key.columns)).name
    statements = [
        f"DELETE FROM {table}",
        f"TRUNCATE {table}",
        *(f'UPDATE {table} SET "{one.name}" = "{one.name}"' for one in metadata.tables[table].columns),
        f"MERGE INTO {table} AS t USING (SELECT 1 AS n) AS s ON t.{column} = s.n WHEN MATCHED THEN DELETE",
        f"SELECT 1 FROM {table} FOR UPDATE",
    ]
    for statement in statements:
        with engine.connect() as connection, pytest.raises(ProgrammingError, match="permission denied"):
            connection.execute(text(statement))


def test_the_role_has_no_such_right_on_any_table_or_partition_of_them(database_url: str, engine: Engine) -> None:
    migrate(database_url)  # grants anew, with the partitions there
    with engine.connect() as connection:
        assert connection.execute(text("SELECT current_user")).scalar_one() == APP_ROLE
        names = set(connection.execute(_FAMILY, {"roots": list(APPEND_ONLY)}).scalars())
        assert names > set(APPEND_ONLY)
        for name in names:
            for right in RIGHTS:
                held = connection.execute(text(f"SELECT has_table_privilege('{name}', '{right}')")).scalar_one()
                assert not held, f"{right} on {name}"
            assert not connection.execute(text(f"SELECT has_any_column_privilege('{name}', 'UPDATE')")).scalar_one()
        assert connection.execute(_OWNED).scalar_one() == 0


def test_migrating_takes_away_what_an_earlier_version_had_given(database_url: str, engine: Engine) -> None:
    owner = make_engine(database_url, app_role=False, pool_size=1)
    with owner.begin() as connection:
        connection.execute(text(f"GRANT UPDATE, DELETE ON {', '.join(APPEND_ONLY)} TO {APP_ROLE}"))
    owner.dispose()
    migrate(database_url)
    with engine.connect() as connection:
        for name in APPEND_ONLY:
            rights = text(f"SELECT has_table_privilege('{name}', 'UPDATE, DELETE, TRUNCATE')")
            assert not connection.execute(rights).scalar_one(), name


def test_a_partition_cannot_be_written_around_its_parent(engine: Engine) -> None:
    with engine.connect() as connection:
        names = connection.execute(text("SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r'"))
        partitions = list(names.scalars())
    assert partitions
    for name in partitions:
        with engine.connect() as connection, pytest.raises(ProgrammingError, match="permission denied"):
            connection.execute(text(f"INSERT INTO {name} DEFAULT VALUES"))


def test_every_instant_has_a_month_of_its_own_long_before_it_comes(database_url: str, engine: Engine) -> None:
    """Walked through two years in steps of a week, as a worker that accrues would: never a row in the DEFAULT one."""
    owner = make_engine(database_url, app_role=False, pool_size=1)
    at = datetime(2031, 11, 3, tzinfo=UTC)
    try:
        for _ in range(104):
            with owner.begin() as connection:
                ensure_partitions(connection, at)
                there = set(connection.execute(text("SELECT relname FROM pg_class WHERE relispartition")).scalars())
            for ahead in (0, 7, 31, 62):
                month = at + timedelta(days=ahead)
                assert {f"{table}_{month:%Y_%m}" for table in PARTITIONED} <= there, f"{month} seen from {at}"
            at += timedelta(days=7)
    finally:
        owner.dispose()


def homes(engine: Engine) -> set[str]:
    """The partitions in which observations lie, with one more made now."""
    with engine.begin() as connection:
        connection.execute(_OBSERVED)
        return set(connection.execute(text("SELECT DISTINCT tableoid::regclass::text FROM observations")).scalars())


def test_accrual_makes_the_next_months_without_a_migration(database_url: str) -> None:
    """Who makes next month's: every round of accrual, as the login that owns the tables; `migrate` where none does."""
    clock = Clock(database_url, START)
    engine = make_engine(database_url, pool_size=2)
    try:
        clock.move(timedelta(days=400))
        assert homes(engine) == {"observations_default"}
        accrue(engine)
        assert homes(engine) == {f"observations_{clock.at:%Y_%m}"}  # the row that had none has moved as well
        clock.move(timedelta(days=80))  # nobody accrued for as long
        assert "observations_default" not in homes(engine)
    finally:
        engine.dispose()
        clock.close()


def test_the_months_that_accrual_made_are_no_way_around(database_url: str) -> None:
    clock = Clock(database_url, START + timedelta(days=400))
    engine = make_engine(database_url, pool_size=2)
    try:
        accrue(engine)
        for table in PARTITIONED:
            name = f"{table}_{clock.at:%Y_%m}"
            for statement in (f"DELETE FROM {name}", f"UPDATE {name} SET at = at"):
                with engine.connect() as connection, pytest.raises(ProgrammingError, match="permission denied"):
                    connection.execute(text(statement))
    finally:
        engine.dispose()
        clock.close()


_OBSERVED = text("INSERT INTO observations (attempt_id, backend, phase) VALUES ('a', 'b', 'Running')")
_FAMILY = text(
    """
    SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'public' AND relkind IN ('r', 'p') AND (relname = ANY(:roots) OR c.oid IN (
        SELECT inhrelid FROM pg_inherits JOIN pg_class parent ON parent.oid = inhparent
        WHERE parent.relname = ANY(:roots)))
    """
)
_OWNED = text("SELECT count(*) FROM pg_class WHERE relowner = (SELECT oid FROM pg_roles WHERE rolname = current_user)")
