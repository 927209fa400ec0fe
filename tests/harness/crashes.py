"""A process that dies between two statements: from the n-th statement on nothing more reaches the database.

The socket is dropped as well, so that PostgreSQL rolls back as it does for a killed process.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Engine, event

T = TypeVar("T")


class Killed(BaseException):
    """The process is gone. No Exception: nothing that a program does about errors may catch it."""


@dataclass(frozen=True)
class Crash:
    """Where: before statement `statement` (0 is the first), behind it, or with `answer_lost` when all is committed."""

    statement: int = 0
    behind: bool = False
    answer_lost: bool = False


class Crashes:
    """Kills what runs on this engine when a test says so."""

    def __init__(self, engine: Engine) -> None:
        self._crash: Crash | None = None
        self._seen = 0
        self.dead = False
        self.counts = {"armed": 0, "killed": 0}
        event.listen(engine, "before_cursor_execute", self._before)
        event.listen(engine, "after_cursor_execute", self._after)
        event.listen(engine, "commit", self._commit)

    def run(self, work: Callable[[], T], crash: Crash) -> tuple[bool, T | None]:
        """(whether it was killed, its result). An answer that is lost counts as not killed: the effect is there."""
        self._crash, self._seen, self.dead = None if crash.answer_lost else crash, 0, False
        self.counts["armed"] += 1
        try:
            with contextlib.suppress(Killed):
                result = work()
                if not self.dead:
                    return False, result
        except Exception:
            if not self.dead:
                raise
        finally:
            died, self._crash, self.dead = self.dead, None, False
            self.counts["killed"] += died
        return True, None

    def _before(self, *_: Any) -> None:
        if self._crash is not None:
            if self.dead or (self._seen >= self._crash.statement and not self._crash.behind):
                self._die()
            self._seen += 1

    def _after(self, *_: Any) -> None:
        if self._crash is not None and self._crash.behind and self._seen > self._crash.statement:
            self._die()

    def _commit(self, *_: Any) -> None:
        if self._crash is not None and (self.dead or self._seen >= self._crash.statement):
            self._die()

    def _die(self) -> None:
        self.dead = True
        raise Killed
