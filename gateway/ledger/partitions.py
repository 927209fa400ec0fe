"""Monthly partitions of what only grows. A DEFAULT partition takes what no month was made for, so nothing is lost."""

from datetime import UTC, datetime
from typing import Final

from sqlalchemy import Connection, text

from gateway.ledger.tables import PARTITIONED

_BEFORE: Final = 1
_AHEAD: Final = 3


def ensure_partitions(connection: Connection, now: datetime | None = None) -> list[str]:
    """Make the partitions of last month to three months ahead; the names of those that were new.

    Runs as the login itself, who must own the tables; call it daily. Rows that went into the DEFAULT partition in the
    meantime move to their month.
    """
    connection.execute(text("SET LOCAL ROLE NONE"))
    connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('tidegate partitions'))"))
    if now is None:
        now = connection.execute(text("SELECT now()")).scalar_one()
    there = set(connection.execute(text("SELECT relname FROM pg_class WHERE relispartition")).scalars())
    made = []
    for table in PARTITIONED:
        if f"{table}_default" not in there:
            connection.execute(text(f"CREATE TABLE {table}_default PARTITION OF {table} DEFAULT"))
        for offset in range(-_BEFORE, _AHEAD + 1):
            start, end = _month(now, offset), _month(now, offset + 1)
            name = f"{table}_{start:%Y_%m}"
            if name not in there:
                _make(connection, table, name, start, end)
                made.append(name)
    return made


def _month(now: datetime, offset: int) -> datetime:
    months = now.year * 12 + now.month - 1 + offset
    return datetime(months // 12, months % 12 + 1, 1, tzinfo=UTC)


def _make(connection: Connection, table: str, name: str, start: datetime, end: datetime) -> None:
    # A row of the month in the DEFAULT partition would forbid the attachment: move such rows first.
    connection.execute(text(f"CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"))
    connection.execute(
        text(
            f"WITH moved AS (DELETE FROM {table}_default WHERE at >= :start AND at < :end RETURNING *) "  # noqa: S608
            f"INSERT INTO {name} SELECT * FROM moved"
        ),
        {"start": start, "end": end},
    )
    connection.execute(
        text(f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ('{start:%Y-%m-%d}') TO ('{end:%Y-%m-%d}')")
    )
