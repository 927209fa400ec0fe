"""What both clients do alike around one request: build it, judge the answer, decide on another try. No I/O."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx

from tidegate.client.calls import Call, query_of
from tidegate.client.errors import GATEWAY_STATUSES, ProblemError, ProtocolError, UnreachableError, problem_of
from tidegate.client.retry import RETRIED, Retry, retry_after_s
from tidegate.client.settings import Access

T = TypeVar("T")
TIMEOUT: Final = httpx.Timeout(30.0, connect=5.0)
_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
_PROCESSED: Final = frozenset({502, 504})
"""Statuses after which the act may have been done all the same."""


class TokenAuth(httpx.Auth):
    """Puts the token into each request, and nowhere else."""

    def __init__(self, access: Access) -> None:
        self._token = access.token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """As httpx wants it."""
        if self._token is not None:
            request.headers["Authorization"] = f"Bearer {self._token.get_secret_value()}"
        yield request

    def __repr__(self) -> str:
        return "TokenAuth()"


@dataclass(slots=True)
class Tries:
    """The tries of one call. Ask `again` after each: seconds to wait, or the error is raised."""

    call: Call[Any]
    retry: Retry
    where: str
    failures: int = 0
    draw: Callable[[], float] = field(default=random.random)

    def after_answer(self, response: httpx.Response) -> float | None:
        """None: the answer counts. Otherwise seconds until the next try. Needs no body."""
        status = response.status_code
        if status not in RETRIED or (not self.call.repeatable and status in _PROCESSED):
            return None
        self.failures += 1
        asked = retry_after_s(response.headers.get("Retry-After"), datetime.now(UTC))
        return self.retry.pause_s(self.failures, asked, self.draw)

    def after_error(self, error: httpx.TransportError) -> float:
        """Seconds until the next try. UnreachableError when there is none."""
        self.failures += 1
        pause = None
        if self.call.repeatable or isinstance(error, _NEVER_SENT):
            pause = self.retry.pause_s(self.failures, None, self.draw)
        if pause is None:
            raise unreachable(self.where, error, self.failures) from error
        return pause


def unreachable(where: str, error: httpx.TransportError, tries: int) -> UnreachableError:
    """The error for a gate that does not answer."""
    tried = f"{tries} tries" if tries > 1 else "one try"
    return UnreachableError(f"{where} does not answer ({type(error).__name__} after {tried}); is TIDEGATE_URL right?")


def request_of(
    client: httpx.Client | httpx.AsyncClient, call: Call[Any], content: Any, timeout: httpx.Timeout
) -> httpx.Request:
    """The HTTP request of a call; `content` is the body, opened."""
    return client.build_request(
        call.method,
        call.path,
        params=query_of(call.params),
        headers=dict(call.headers),
        content=content,
        timeout=timeout,
    )


def answer_of(call: Call[T], response: httpx.Response, body: bytes) -> T:
    """The result in an answer that was read, or its error."""
    if response.is_success:
        return call.read(body, response.headers)
    raise error_of(response, body)


def error_of(response: httpx.Response, body: bytes) -> ProblemError | ProtocolError:
    """What an answer that is no success means."""
    if response.is_redirect:
        return ProtocolError("the gate answered with a redirect; set TIDEGATE_URL to where it leads")
    return problem_of(response.status_code, response.headers.get("Content-Type", ""), body)


def check_stream(response: httpx.Response) -> None:
    """ProtocolError when a good answer is no stream of events."""
    if response.headers.get("Content-Type", "").partition(";")[0].strip() != "text/event-stream":
        raise ProtocolError("the answer is no stream of events; is the URL that of a Tidegate?")


def stream_may_go_on(error: ProblemError | ProtocolError) -> bool:
    """Whether a refused connection of a stream is worth another try."""
    return isinstance(error, ProblemError) and (error.status in GATEWAY_STATUSES or error.status in RETRIED)


def options(access: Access) -> dict[str, Any]:
    """Settings of the HTTP client. No redirects: one could lead the token elsewhere."""
    return {
        "base_url": access.url,
        "auth": TokenAuth(access),
        "timeout": TIMEOUT,
        "follow_redirects": False,
        "headers": {"User-Agent": "tidegate-client", "Accept": "application/json"},
    }


def chunks(path: Path) -> Iterator[bytes]:
    """A file in pieces."""
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            yield piece


async def async_chunks(path: Path) -> AsyncIterator[bytes]:
    """The same without holding up the loop."""
    pieces = chunks(path)
    while piece := await asyncio.to_thread(next, pieces, b""):
        yield piece
