"""Tidegate for users: `Client`, `AsyncClient` and `JobSpec`, loaded when first asked for.

Importing this package costs nothing and needs nothing but the standard library (Python 3.9): the helper inside jobs
(`tidegate.job`) and the node agent live below it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.client import AsyncClient, Client
    from tidegate.wire.spec import JobSpec

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "JobSpec", "__version__"]
_HOMES = {"AsyncClient": "tidegate.client", "Client": "tidegate.client", "JobSpec": "tidegate.wire.spec"}


def __getattr__(name: str) -> Any:
    """Load what is asked for from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tidegate' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
