"""Bring a database to the newest revision. Safe to run from several processes at once; needs no alembic.ini."""

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from gateway.ledger.engine import make_engine
from gateway.ledger.partitions import ensure_partitions
from gateway.ledger.roles import grant

_FOLDER: Final = Path(__file__).parent / "migrations"


def migrate(url: str) -> str:
    """Apply every revision that is missing, make the partitions of the coming months, and return the revision."""
    engine = make_engine(url, pool_size=1, app_role=False, application="tidegate-migrate")
    try:
        with engine.begin() as connection:
            # DDL is transactional here: a migration that fails half-way leaves the database as it was.
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('tidegate migrate'))"))
            config = configuration(connection)
            command.upgrade(config, "head")
            grant(connection)
            ensure_partitions(connection)
            return current(connection) or ""
    finally:
        engine.dispose()


def head() -> str:
    """The newest revision that this code knows."""
    return ScriptDirectory(str(_FOLDER)).get_current_head() or ""


def current(connection: Connection) -> str | None:
    """The revision that the database has; None when it is empty."""
    return MigrationContext.configure(connection).get_current_revision()


def configuration(connection: Connection) -> Config:
    """Alembic's settings for our folder, on this connection."""
    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    config.attributes["connection"] = connection
    return config
