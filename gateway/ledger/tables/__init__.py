"""The tables, by what they hold. Importing this package fills `metadata` and opens nothing."""

from sqlmodel import SQLModel

from gateway.ledger.tables import access, accounts, capacity, control, work  # noqa: F401  (fills the metadata)

metadata = SQLModel.metadata
