"""Waiting with a deadline, never by luck."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(fn: Callable[[], T], *, timeout_s: float = 10, every_s: float = 0.02, what: str = "") -> T:
    """Call `fn` until it answers something true, and return that; else AssertionError with its last answer.

    An AssertionError of `fn` counts as "not yet" and is what the caller sees in the end.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        failure: AssertionError | None = None
        answer: T | None = None
        try:
            answer = fn()
        except AssertionError as error:
            failure = error
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise failure or AssertionError(f"{what or fn!r} was {answer!r} after {timeout_s} s")
        time.sleep(every_s)
