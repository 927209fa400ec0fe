"""Turns the functions of `job_calls` and `operator_calls` into methods, so that each is written and documented once.

A method has the parameters of its function; what differs between the clients is only how the result arrives.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import wraps
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from pydantic import BaseModel

from tidegate.client.calls import Call, Listing
from tidegate.client.follow import Follow

P = ParamSpec("P")
T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)


class Carrier(Protocol):
    """A client: it can carry each of the three shapes."""

    def do(self, call: Any, /) -> Any:
        """Make a call."""

    def walk(self, listing: Any, /) -> Any:
        """Go through a list."""

    def stream(self, follow: Any, /) -> Any:
        """Follow a stream."""


class _Method(Generic[P]):
    def __init__(self, build: Callable[P, Any]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    def _carried(self, client: Carrier | None, verb: str) -> Callable[P, Any]:
        if client is None:
            return self._build  # on the class: the documented function itself
        carry = getattr(client, verb)

        @wraps(self._build)
        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return carry(self._build(*args, **kwargs))

        return method


class SyncCall(_Method[P], Generic[P, T]):
    """Makes the call and returns its result."""

    def __init__(self, build: Callable[P, Call[T]]) -> None:
        super().__init__(build)

    def __get__(self, client: Carrier | None, owner: object = None) -> Callable[P, T]:
        return self._carried(client, "do")


class SyncList(_Method[P], Generic[P, T]):
    """Iterates over all items; pages are fetched as they are needed."""

    def __init__(self, build: Callable[P, Listing[T]]) -> None:
        super().__init__(build)

    def __get__(self, client: Carrier | None, owner: object = None) -> Callable[P, Iterator[T]]:
        return self._carried(client, "walk")


class SyncStream(_Method[P], Generic[P, ModelT]):
    """Iterates over a stream, over lost connections."""

    def __init__(self, build: Callable[P, Follow[ModelT]]) -> None:
        super().__init__(build)

    def __get__(self, client: Carrier | None, owner: object = None) -> Callable[P, Iterator[ModelT]]:
        return self._carried(client, "stream")


class AsyncCall(_Method[P], Generic[P, T]):
    """Makes the call; await its result."""

    def __init__(self, build: Callable[P, Call[T]]) -> None:
        super().__init__(build)

    def __get__(self, client: Carrier | None, owner: object = None) -> Callable[P, Awaitable[T]]:
        return self._carried(client, "do")


class AsyncList(_Method[P], Generic[P, T]):
    """Iterates over all items with `async for`."""

    def __init__(self, build: Callable[P, Listing[T]]) -> None:
        super().__init__(build)

    def __get__(self, client: Carrier | None, owner: object = None) -> Callable[P, AsyncIterator[T]]:
        return self._carried(client, "walk")


class AsyncStream(_Method[P], Generic[P, ModelT]):
    """Iterates over a stream with `async for`, over lost connections."""

    def __init__(self, build: Callable[P, Follow[ModelT]]) -> None:
        super().__init__(build)

    def __get__(self, client: Carrier | None, owner: object = None) -> Callable[P, AsyncIterator[ModelT]]:
        return self._carried(client, "stream")
