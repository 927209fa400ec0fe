"""Pools and backends with what they last reported."""

from collections.abc import Iterator

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from sqlmodel import col

from gateway.ledger.tables.capacity import BackendRow, NodeRow, Pool
from tidegate.wire.enums import Tenure
from tidegate.wire.operator import BackendView, PoolView
from tidegate.wire.units import format_bytes, format_milli


def backends(session: Session, *, with_config: bool, name: str | None = None) -> Iterator[BackendView]:
    """By name. Their configuration is for operators."""
    query = select(BackendRow).order_by(col(BackendRow.name))
    if name is not None:
        query = query.where(col(BackendRow.name) == name)
    for row in session.execute(query).scalars():
        yield BackendView(
            name=row.name,
            type=row.kind,
            draining=row.draining,
            dark_since=row.dark_since,
            seen_at=row.seen_at,
            problem=(row.misconfigured or row.problem) if with_config else "",
            config=row.config if with_config else None,
        )


def pools(session: Session, *, with_config: bool, name: str | None = None) -> Iterator[PoolView]:
    """By name, with the sum of their nodes."""
    count = col(NodeRow.count)
    query = (
        select(
            Pool,
            func.coalesce(func.sum(count), 0),
            func.coalesce(func.sum(col(NodeRow.accelerators) * count), 0),
            func.coalesce(func.sum(col(NodeRow.cpus) * count), 0),
            func.coalesce(func.sum(col(NodeRow.memory) * count), 0),
        )
        .outerjoin(NodeRow, col(NodeRow.pool) == col(Pool.name))
        .group_by(col(Pool.name))
        .order_by(col(Pool.name))
    )
    if name is not None:
        query = query.where(col(Pool.name) == name)
    for row, nodes, accelerators, cpus, memory in session.execute(query):
        yield PoolView(
            name=row.name,
            backend=row.backend,
            flavor=row.flavor,
            tenure=Tenure(row.tenure),
            nodes=int(nodes),
            capacity={
                "accelerators": format_milli(int(accelerators)),
                "cpus": format_milli(int(cpus)),
                "memory": format_bytes(int(memory)),
            },
            rested_until=row.rested_until,
            rest_reason=row.rest_reason,
            as_of=row.as_of,
            problem=row.misconfigured if with_config else "",
            config=row.config if with_config else None,
        )
