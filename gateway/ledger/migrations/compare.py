"""What a comparison of models and database leaves out: the partitions, which `gateway.ledger.partitions` makes."""

from typing import Any

from gateway.ledger.tables import PARTITIONED


def include_object(thing: Any, name: str | None, kind: str, _reflected: bool, _compare_to: Any) -> bool:  # noqa: FBT001
    """False for a monthly or default partition and for what hangs on one."""
    table = name if kind == "table" else getattr(getattr(thing, "table", None), "name", None)
    return not any((table or "").startswith(f"{parent}_") for parent in PARTITIONED)
