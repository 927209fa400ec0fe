"""How a wait for a job's end is paced and bounded. Pure but for the monotonic clock that it is given."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidegate.client.errors import ProblemError, UnreachableError, WaitTimeoutError
from tidegate.client.retry import RETRIED, Retry

ONCE: Final = Retry(tries=1)
"""For the single looks: the watch itself has the patience."""
_FIRST_S: Final = 0.1
_LONGEST_S: Final = 2.0
_GROWTH: Final = 1.5
_LOOK_S: Final = 30.0


@dataclass(slots=True)
class Watch:
    """Pauses grow from 0.1 s to 2 s, so that a short job's end is seen soon and a long one costs little.

    `patience_s` bounds how long a gate that does not answer is waited for.
    """

    job: str
    timeout_s: float | None = None
    patience_s: float = 300.0
    clock: Callable[[], float] = time.monotonic
    _until: float | None = None
    _pause_s: float = _FIRST_S
    _dark_since: float | None = None

    def __post_init__(self) -> None:
        if self.timeout_s is not None:
            self._until = self.clock() + self.timeout_s

    def look_s(self) -> float:
        """How long one look may take, so that a hanging answer does not outlast the bound."""
        return _LOOK_S if self._until is None else max(0.5, min(_LOOK_S, self._until - self.clock()))

    def pause_s(self) -> float:
        """After a look: seconds until the next one. WaitTimeoutError when the time is up."""
        self._dark_since = None
        return self._next()

    def after_error(self, error: UnreachableError | ProblemError) -> float:
        """After a look that failed: the same, or the error when it will not pass by itself."""
        if isinstance(error, ProblemError) and error.status not in RETRIED:
            raise error
        now = self.clock()
        self._dark_since = now if self._dark_since is None else self._dark_since
        if now - self._dark_since > self.patience_s:
            raise error
        return self._next()

    def _next(self) -> float:
        pause = self._pause_s
        self._pause_s = min(_LONGEST_S, pause * _GROWTH)
        if self._until is None:
            return pause
        left = self._until - self.clock()
        if left <= 0:
            raise WaitTimeoutError(f"job {self.job} has not ended within {self.timeout_s:g} s; it goes on")
        return min(pause, left)
