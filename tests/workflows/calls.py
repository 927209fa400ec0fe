"""Every call that an attempt's activities make of the store and of a backend, seen; and the worker's death at one of
them: before it, or after it and before anybody has its answer.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


class WorkerDiedError(BaseException):
    """The process is gone: nothing of ours may catch it. Temporal alone hears of it, and gives the step to another."""


@dataclass(frozen=True)
class Call:
    """One call: which of "store" or a backend's name, the method, and its arguments."""

    at_ms: int
    of: str
    name: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Death:
    """At which call of an activity (counted from 0), and whether its effect happened."""

    call: int
    after: bool


@dataclass
class Calls:
    """What was called, in order. `before` and `after` run around each outermost call, outside of what dies."""

    before: Callable[[], int]
    after: Callable[[Call], None]
    death: Death | None = None
    made: list[Call] = field(default_factory=list)
    _held: threading.local = field(default_factory=threading.local)

    def watch(self, target: Any, of: str, names: Iterable[str]) -> None:
        """Put these methods of an object under watch, as far as it has them."""
        for name in [name for name in names if hasattr(target, name)]:
            setattr(target, name, self._watched(getattr(target, name), of, name))

    def unseen(self, act: Callable[[], T]) -> T:
        """Run something that is no activity of an attempt: a follower, or the world."""
        depth = self._depth()
        self._held.depth = depth + 1
        try:
            return act()
        finally:
            self._held.depth = depth

    def of(self, name: str) -> list[Call]:
        """The calls of one method."""
        return [call for call in self.made if call.name == name]

    def _depth(self) -> int:
        return int(getattr(self._held, "depth", 0))

    def _watched(self, method: Callable[..., Any], of: str, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._depth():
                return method(*args, **kwargs)
            number = len(self.made)
            made = Call(self.unseen(self.before), of, name, args)
            self.made.append(made)
            try:
                self._die(number, after=False)
                answer = self.unseen(lambda: method(*args, **kwargs))
                self._die(number, after=True)
                return answer
            finally:
                self.unseen(lambda: self.after(made))

        return call

    def _die(self, number: int, *, after: bool) -> None:
        if self.death == Death(number, after):
            raise WorkerDiedError(f"at {self.made[number].of}.{self.made[number].name}")


def methods_of(protocol: type) -> list[str]:
    """The methods that a Protocol names, so that a new one cannot be forgotten."""
    return [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")]
