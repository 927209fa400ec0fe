"""Column types that several tables share."""

from datetime import datetime
from typing import Any

from sqlalchemy import TIMESTAMP, BigInteger, Identity, Integer, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field


def Instant(*, default_now: bool = False, nullable: bool = False, index: bool = False) -> Any:  # noqa: N802
    """A timestamptz; row times are the database's `now()`."""
    kwargs: dict[str, Any] = {"server_default": text("now()")} if default_now else {}
    return Field(
        default=None,
        sa_type=TIMESTAMP(timezone=True),
        nullable=nullable,
        index=index,
        sa_column_kwargs=kwargs,
    )


def Json(*, nullable: bool = False) -> Any:  # noqa: N802
    """A jsonb column; {} by default where it must be there."""
    kwargs: dict[str, Any] = {} if nullable else {"server_default": text("'{}'::jsonb")}
    # none_as_null: an unset value is SQL NULL (or the default), never the JSON word null.
    return Field(default=None, sa_type=JSONB(none_as_null=True), nullable=nullable, sa_column_kwargs=kwargs)


def Big(default: int = 0, *, primary_key: bool = False) -> Any:  # noqa: N802
    """A 64-bit integer."""
    return Field(default=default, sa_type=BigInteger, primary_key=primary_key)


def Number(*, big: bool = True) -> Any:  # noqa: N802
    """An id that the database numbers, also where it is only a part of the key (partitioned tables)."""
    kind = BigInteger if big else Integer
    return Field(default=None, primary_key=True, sa_type=kind, sa_column_args=(Identity(),))


__all__ = ["Big", "Instant", "Json", "Number", "datetime"]
