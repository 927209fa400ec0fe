"""What Alembic runs: online, on the connection that `gateway.ledger.migrate` hands over in its transaction."""

from alembic import context

from gateway.ledger.migrations.compare import include_object
from gateway.ledger.migrations.write import render
from gateway.ledger.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    include_object=include_object,
    render_item=render,
    compare_type=True,
)
context.run_migrations()
