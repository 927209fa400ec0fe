"""What the first revision adds to the bare tables: the guard of balances, the application's role, the arbiter's row."""

from alembic import op

from gateway.ledger.engine import APP_ROLE
from gateway.ledger.tables import APPEND_ONLY


def guard() -> None:
    """A tenant's account is never negative, whoever writes it; nobody changes an entry, not even the owner."""
    op.execute(
        "ALTER TABLE accounts ADD CONSTRAINT accounts_tenant_not_negative"
        " CHECK (tenant_id IS NULL OR (posted >= 0 AND pending >= 0))"
    )
    op.execute("ALTER TABLE leases ADD CONSTRAINT leases_not_negative CHECK (used_ms >= 0 AND held_ms >= 0)")


def grant() -> None:
    """Make the role where we may; the append-only tables give it SELECT and INSERT, all others everything."""
    op.execute(
        f"""
        DO $$ BEGIN
            CREATE ROLE {APP_ROLE} NOLOGIN;
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL;
            WHEN insufficient_privilege THEN RAISE NOTICE 'role {APP_ROLE} must be made by an administrator';
        END $$
        """
    )
    only = ", ".join(APPEND_ONLY)
    op.execute(
        f"""
        DO $$ BEGIN
            IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{APP_ROLE}') THEN
                EXECUTE format('GRANT USAGE ON SCHEMA %I TO {APP_ROLE}', current_schema());
                EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %I TO {APP_ROLE}',
                    current_schema());
                REVOKE UPDATE, DELETE ON {only} FROM {APP_ROLE};
                REVOKE INSERT, UPDATE, DELETE ON alembic_version FROM {APP_ROLE};
                IF NOT pg_has_role(current_user, '{APP_ROLE}', 'SET') THEN
                    EXECUTE format('GRANT {APP_ROLE} TO %I', current_user);
                END IF;
            END IF;
        END $$
        """  # noqa: S608  (only names of ours)
    )


def seed() -> None:
    """The arbiter's one row. System accounts are made when they are first needed."""
    op.execute("INSERT INTO arbiter (id, epoch, holder) VALUES (1, 0, '') ON CONFLICT DO NOTHING")
