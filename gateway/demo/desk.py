"""A user's desk in the demo: submits through the SDK, prints what happens as it happens, waits with deadlines."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus

from rich.console import Console

from tidegate.client import Client, ProblemError
from tidegate.wire.job import Attempt, Event, JobDetail
from tidegate.wire.spec import JobSpec

POLL_S = 0.15


class DemoFailedError(AssertionError):
    """The story did not come true; the message says what was seen instead."""


@dataclass(slots=True)
class Desk:
    """Watches every job that was submitted here; `began` is the zero of the printed clock."""

    operator: Client
    console: Console
    began: float = field(default_factory=time.monotonic)
    names: dict[str, str] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)

    def say(self, text: str) -> None:
        """One line with the time since the beginning."""
        self.console.print(f"[dim]{time.monotonic() - self.began:6.1f} s[/]  {text}", highlight=False)

    def submit(self, client: Client, spec: JobSpec) -> str:
        """Submit and begin to watch."""
        job = client.submit(spec).id
        self.names[job] = spec.name
        self.say(f"[bold]{spec.name}[/] submitted as {spec.priority}")
        return job

    def follow(self) -> None:
        """Print the events that came since the last look."""
        for job, name in self.names.items():
            for event in self._new_events(job):
                self.seen[job] = event.id
                line = told(event)
                if line:
                    self.say(f"[bold]{name}[/] {line}")

    def _new_events(self, job: str) -> Iterator[Event]:
        last = self.seen.get(job, 0)
        return (event for event in self.operator.past_events(job) if event.id > last)

    def until(self, true: Callable[[], bool], what: str, timeout_s: float = 120) -> None:
        """Poll, printing events, until `true`; DemoFailedError after the timeout."""
        deadline = time.monotonic() + timeout_s
        while not true():
            self.follow()
            if time.monotonic() > deadline:
                raise DemoFailedError(f"{what} did not happen within {timeout_s:.0f} s")
            time.sleep(POLL_S)
        self.follow()

    def state(self, job: str) -> str:
        """The job's state now."""
        return str(self.operator.get(job).state)

    def finished(self, job: str, timeout_s: float = 150) -> JobDetail:
        """The job once it has SUCCEEDED; any other end fails the demo."""

        def over() -> bool:
            return self.operator.get(job).state.ended

        self.until(over, f"the end of {self.names[job]}", timeout_s)
        detail = self.operator.get(job)
        if detail.state != "SUCCEEDED":
            raise DemoFailedError(
                f"{detail.name} ended {detail.state} ({detail.reason}): {detail.message}\n{self.log(job)[-1500:]}"
            )
        return detail

    def attempts(self, job: str) -> list[Attempt]:
        """All attempts, the first first."""
        return sorted(self.operator.attempts(job), key=lambda attempt: attempt.number)

    def log(self, job: str, rank: int = 0) -> str:
        """What one member of the newest attempt has printed so far; "" before it was launched."""
        try:
            return "".join(piece.text for piece in self.operator.logs(job, rank=rank))
        except ProblemError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            return ""


def told(event: Event) -> str:
    """One line for people; "" for what would only be noise."""
    who = f"attempt {event.attempt.rpartition('-')[2]} " if event.attempt else ""
    why = f" ({event.reason})" if event.reason else ""
    return f"{who}{event.kind}{why}" if event.kind.isupper() or event.attempt else ""
