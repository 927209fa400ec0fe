"""Faults that a fake backend can be told to have: what the caller hears, and whether the act took effect."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from threading import Lock

from backends.errors import (
    BackendError,
    Misconfigured,
    NoCapacity,
    OutcomeUnknown,
    Refused,
    Throttled,
    Unreachable,
)


class Fault(StrEnum):
    LOST_ANSWER = "lost_answer"  # it happened, the answer got lost: OutcomeUnknown
    LOST_REQUEST = "lost_request"  # it did not happen, but the caller cannot know: OutcomeUnknown
    DARK = "dark"  # nothing was asked: Unreachable
    REFUSED = "refused"
    REFUSED_FOR_GOOD = "refused_for_good"
    NO_CAPACITY = "no_capacity"
    THROTTLED = "throttled"
    MISCONFIGURED = "misconfigured"
    SLOW = "slow"  # happens and answers, 0.3 s later
    BROKEN = "broken"  # a defect of an adapter: an exception that is no BackendError


SLOW_S = 0.3


class BrokenAdapterError(Exception):
    """Stands for any exception that an adapter forgot to map."""


class Faults:
    """Queues of faults per operation of the port; `dark` makes every operation unreachable until it is cleared."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._queues: dict[str, deque[Fault]] = {}
        self._lock = Lock()
        self.dark = False

    def inject(self, operation: str, fault: Fault, times: int = 1) -> None:
        """Let the next `times` calls of `operation` (a method of the port) have this fault."""
        with self._lock:
            self._queues.setdefault(operation, deque()).extend([fault] * times)

    @contextmanager
    def around(self, operation: str) -> Iterator[None]:
        """Run the operation's effect inside; raises before or after it, as the fault says."""
        fault = self._next(operation)
        if fault is Fault.SLOW:
            time.sleep(SLOW_S)
        elif fault is not None and fault is not Fault.LOST_ANSWER:
            raise self._error(operation, fault)
        yield
        if fault is Fault.LOST_ANSWER:
            raise self._error(operation, fault)

    def _next(self, operation: str) -> Fault | None:
        with self._lock:
            if self.dark:
                return Fault.DARK
            queue = self._queues.get(operation)
            return queue.popleft() if queue else None

    def _error(self, operation: str, fault: Fault) -> BackendError | BrokenAdapterError:
        text = f"{self._backend}: {operation}: {fault}"
        errors: dict[Fault, BackendError | BrokenAdapterError] = {
            Fault.LOST_ANSWER: OutcomeUnknown(text),
            Fault.LOST_REQUEST: OutcomeUnknown(text),
            Fault.DARK: Unreachable(text),
            Fault.REFUSED: Refused(text, reason="RefusedByFake"),
            Fault.REFUSED_FOR_GOOD: Refused(text, reason="InvalidParameter", permanent=True),
            Fault.NO_CAPACITY: NoCapacity(text),
            Fault.THROTTLED: Throttled(text, retry_after_s=0.05),
            Fault.MISCONFIGURED: Misconfigured(text),
            Fault.BROKEN: BrokenAdapterError(text),
        }
        return errors[fault]
