"""Builders for the store's tests: a small estate, specs and plans made by hand."""

from typing import Any

from sqlalchemy import Engine, text

from tidegate.wire.spec import JobSpec


def a_spec(**changes: Any) -> JobSpec:
    fields: dict[str, Any] = {
        "name": "train",
        "run": "python train.py",
        "resources": {"accelerators": "H100:4", "cpus": 4, "memory": "8Gi"},
        **changes,
    }
    return JobSpec.model_validate(fields)


def scalar(engine: Engine, query: str, **values: Any) -> Any:
    with engine.connect() as connection:
        return connection.execute(text(query), values).scalar_one()


def rows(engine: Engine, query: str, **values: Any) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(text(query), values).all())


def write(engine: Engine, query: str, **values: Any) -> None:
    with engine.begin() as connection:
        connection.execute(text(query), values)


def add_tenant(engine: Engine, path: str) -> int:
    """A tenant whose parents are there."""
    parent = path.rpartition("/")[0]
    with engine.begin() as connection:
        return int(
            connection.execute(
                text(
                    "INSERT INTO tenants (path, parent_id, weight, active, contact, version)"
                    " VALUES (:path, (SELECT id FROM tenants WHERE path = :parent), 1, true, '', 1) RETURNING id"
                ),
                {"path": path, "parent": parent},
            ).scalar_one()
        )
