"""Order policies by name: a literal table with lazy imports. A new one is its module and one line here."""

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from policies.order.standing import Key, Order

ORDERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "default": "policies.order.default",
        "fifo": "policies.order.fifo",
    }
)


def order_named(name: str) -> Order:
    """The order of that name; ValueError names the setting and those there are."""
    if name not in ORDERS:
        raise ValueError(f"order: there is no policy called {name!r}; choose one of {', '.join(sorted(ORDERS))}")
    found: Order = importlib.import_module(ORDERS[name]).order
    return found


def rank_factor(name: str, mine: Key, rivals: Key) -> str:
    """The name of the first element in which two keys of one order differ, "" if none does."""
    elements: tuple[str, ...] = importlib.import_module(ORDERS[name]).ELEMENTS
    return next((word for word, a, b in zip(elements, mine, rivals, strict=False) if a != b), "")
