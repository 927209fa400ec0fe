"""The ledger: all tables, the guard of tenants' balances, and the application's role."""

from alembic import op

from gateway.ledger.migrations.first import grant, guard, seed
from gateway.ledger.tables import metadata

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    metadata.create_all(op.get_bind())
    guard()
    grant()
    seed()
