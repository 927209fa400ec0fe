"""A stream of server-sent events that outlives its connections: where to go on, what is new, when it is over.

A stream may close because nothing follows or because a server went away, which look alike. So it is over only when a
connection that was opened after the end of the job closes in the regular way without anything new.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import httpx
from httpx_sse import ServerSentEvent
from pydantic import BaseModel, ValidationError

from tidegate.client.calls import Params, query_of
from tidegate.client.errors import ProtocolError, TidegateError, UnreachableError
from tidegate.client.retry import Retry

T = TypeVar("T", bound=BaseModel)
END: Final = "end"
ERROR: Final = "error"
# A stream may be silent for long, but it sends a comment at least every 15 s.
READ_TIMEOUT: Final = httpx.Timeout(10.0, read=60.0)
PATIENCE: Final = Retry(tries=40, first_s=0.2, longest_s=10.0)
_CLOSED_PAUSE_S: Final = 0.25


@dataclass(slots=True)
class Follow(Generic[T]):
    """State of one stream. A client connects, hands every event to `take`, and asks `over` after each connection.

    `endless`: the stream goes on until the job's end; otherwise it is over when it closes in the regular way.
    """

    job: str
    path: str
    item: type[T]
    params: Params = field(default_factory=dict)
    endless: bool = True
    last_id: str = ""
    failures: int = 0
    _error: Exception | None = None
    _end_seen: bool = False
    _job_had_ended: bool = False
    _new: int = 0

    def query(self) -> httpx.QueryParams:
        """Parameters of the next connection."""
        return query_of(self.params)

    def headers(self) -> dict[str, str]:
        """Headers of the next connection: with where to go on after a lost one."""
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        return {**headers, "Last-Event-ID": self.last_id} if self.last_id else headers

    def connecting(self) -> None:
        """A connection is about to be opened."""
        self._new = 0
        self._error = None

    def take(self, event: ServerSentEvent) -> T | None:
        """What the event carries; None for one without anything to show."""
        if event.event == END:
            self._end_seen = True
            return None
        if event.event == ERROR:
            self.failed(UnreachableError(f"{self.path}: the backend does not answer the gate just now"))
            return None
        if not event.data:
            return None
        try:
            found = self.item.model_validate_json(event.data)
        except ValidationError as error:
            raise ProtocolError(f"{self.path} sent an event that this client does not know; upgrade it") from error
        self.last_id = event.id or self.last_id
        self.failures = 0
        self._new += 1
        return found

    def failed(self, error: Exception) -> None:
        """The connection broke or was refused for now."""
        self.failures += 1
        self._error = error

    @property
    def broken(self) -> bool:
        """Whether the last connection did not close in the regular way."""
        return self._error is not None

    def over(self) -> bool:
        """After a connection: nothing follows."""
        if self._end_seen:
            return True
        return not self.broken and (not self.endless or (self._new == 0 and self._job_had_ended))

    def learned(self, *, job_ended: bool) -> None:
        """What the job's row says, asked after a connection and before the next."""
        self._job_had_ended = job_ended

    def pause_s(self, where: str, draw: Callable[[], float] = random.random) -> float:
        """Seconds until the next connection. The last error is raised when patience is over."""
        if self._error is None:
            return 0.0 if self._new or self._job_had_ended else _CLOSED_PAUSE_S
        pause = PATIENCE.pause_s(self.failures, None, draw)
        if pause is not None:
            return pause
        if isinstance(self._error, TidegateError):
            raise self._error
        raise UnreachableError(f"{where} does not answer ({type(self._error).__name__})") from self._error
