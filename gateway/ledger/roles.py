"""The application's role: everything on the tables that change, SELECT and INSERT on those that are written once.

Granted anew after every migration, table by table: a partition gets nothing, so nobody reaches around its parent.
"""

from sqlalchemy import Connection, text

from gateway.ledger.engine import APP_ROLE
from gateway.ledger.tables import APPEND_ONLY, metadata


def grant(connection: Connection) -> None:
    """Make the role where we may, and give it what it needs. Idempotent."""
    connection.execute(text(_MAKE))
    if connection.execute(text("SELECT 1 FROM pg_roles WHERE rolname = :role"), {"role": APP_ROLE}).first() is None:
        return
    schema = connection.execute(text("SELECT quote_ident(current_schema())")).scalar_one()
    changing = ", ".join(sorted(set(metadata.tables) - set(APPEND_ONLY)))
    for statement in (
        f"GRANT USAGE ON SCHEMA {schema} TO {APP_ROLE}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON {changing} TO {APP_ROLE}",
        f"REVOKE ALL ON {', '.join(APPEND_ONLY)} FROM {APP_ROLE}",  # what an earlier version may have given
        f"GRANT SELECT, INSERT ON {', '.join(APPEND_ONLY)} TO {APP_ROLE}",
        f"GRANT SELECT ON alembic_version TO {APP_ROLE}",
        _TAKE_ON,
    ):
        connection.execute(text(statement))


_MAKE = f"""
DO $$ BEGIN
    CREATE ROLE {APP_ROLE} NOLOGIN;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN RAISE NOTICE 'role {APP_ROLE} must be made by an administrator';
END $$
"""
_TAKE_ON = f"""
DO $$ BEGIN
    IF NOT pg_has_role(current_user, '{APP_ROLE}', 'SET') THEN
        EXECUTE format('GRANT {APP_ROLE} TO %I', current_user);
    END IF;
END $$
"""
