"""What the first revision adds to the bare tables: the guard of balances and the arbiter's row."""

from alembic import op


def guard() -> None:
    """A tenant's account is never negative, whoever writes it."""
    op.execute(
        "ALTER TABLE accounts ADD CONSTRAINT accounts_tenant_not_negative"
        " CHECK (tenant_id IS NULL OR (posted >= 0 AND pending >= 0))"
    )
    op.execute("ALTER TABLE leases ADD CONSTRAINT leases_not_negative CHECK (used_ms >= 0 AND held_ms >= 0)")


def seed() -> None:
    """The arbiter's one row. System accounts are made when they are first needed."""
    op.execute("INSERT INTO arbiter (id, epoch, holder) VALUES (1, 0, '') ON CONFLICT DO NOTHING")
