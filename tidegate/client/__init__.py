"""The SDK: `Client` blocks, `AsyncClient` awaits; both offer the same methods and raise the same errors."""

from tidegate.client.aio import AsyncClient
from tidegate.client.errors import (
    ConfigError,
    ProblemError,
    ProtocolError,
    TidegateError,
    UnreachableError,
    UsageError,
    WaitTimeoutError,
)
from tidegate.client.retry import Retry
from tidegate.client.sync import Client

__all__ = [
    "AsyncClient",
    "Client",
    "ConfigError",
    "ProblemError",
    "ProtocolError",
    "Retry",
    "TidegateError",
    "UnreachableError",
    "UsageError",
    "WaitTimeoutError",
]
