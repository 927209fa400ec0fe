"""For developers: write the next revision from the difference between the models and a migrated database.

    python -m gateway.ledger.migrations.write URL "what changes"

Read what it wrote before you commit it; a comparison sees no CHECK constraints, grants or data.
"""

import sys
from typing import Any, Literal

from alembic import command
from alembic.autogenerate.api import AutogenContext
from sqlmodel.sql.sqltypes import AutoString

from gateway.ledger.engine import make_engine
from gateway.ledger.migrate import configuration


def render(kind: str, thing: Any, _context: AutogenContext) -> str | Literal[False]:
    """SQLModel's own text type is plain String to everybody else."""
    if kind == "type" and isinstance(thing, AutoString):
        return "sa.String()" if thing.length is None else f"sa.String(length={thing.length})"
    return False


def write(url: str, message: str, revision: str | None = None) -> None:
    """Write the revision file into `versions/`."""
    engine = make_engine(url, pool_size=1, app_role=False)
    try:
        with engine.begin() as connection:
            command.revision(configuration(connection), message=message, autogenerate=True, rev_id=revision)
    finally:
        engine.dispose()


if __name__ == "__main__":
    write(*sys.argv[1:4])
