"""Alembic's folder. `gateway.ledger.migrate` runs it with a connection of its own."""
