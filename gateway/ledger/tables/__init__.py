"""The tables, by what they hold. Importing this package fills `metadata` and opens nothing."""

from sqlalchemy import ColumnDefault, DefaultClause, literal
from sqlalchemy.dialects import postgresql
from sqlmodel import SQLModel

from gateway.ledger.tables import access, accounts, capacity, control, work  # noqa: F401  (fills the metadata)

metadata = SQLModel.metadata

APPEND_ONLY = ("entries", "events", "observations", "audit", "transactions", "decisions")
"""Tables that the application's role may only add to."""

PARTITIONED = ("entries", "events", "observations")
"""Tables with one partition per month of `at`."""


def _defaults_in_the_database() -> None:
    """Every plain default of a model holds in the database too, so that an INSERT by hand need not repeat it."""
    for table in metadata.tables.values():
        for column in table.columns:
            default = column.default
            if column.server_default is None and isinstance(default, ColumnDefault) and default.is_scalar:
                text = str(
                    literal(default.arg, column.type).compile(
                        dialect=postgresql.dialect(),  # type: ignore[no-untyped-call]
                        compile_kwargs={"literal_binds": True},
                    )
                )
                column.server_default = DefaultClause(text.replace("%%", "%"))
                column.server_default._set_parent(column)  # noqa: SLF001


_defaults_in_the_database()
