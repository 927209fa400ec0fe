"""What the demo proves from the outside: which save a resume came from, and what a credit has to be.

Computed from events, logs and instances alone. Never from what the ledger says that it computed from.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gateway.demo.desk import DemoFailedError, Desk
from tidegate.wire.job import Attempt, Event
from tidegate.wire.operator import CreditView

CARDS_PER_MEMBER = 2
_RESUMED = re.compile(r"resumed from step (\d+) of attempt (\d+)")
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Save:
    """A checkpoint as its event tells it. `at`: when the gateway heard that it was complete."""

    at: datetime
    step: int
    url: str
    save_ms: int

    @property
    def began(self) -> datetime:
        """At the latest."""
        return self.at - self.save_ms * _MS


def expect(true: bool, what: str) -> None:  # noqa: FBT001  (reads as a sentence)
    """Fail the demo with `what` was expected."""
    if not true:
        raise DemoFailedError(what)


def saves_of(events: Sequence[Event], attempt: Attempt) -> list[Save]:
    """What one attempt saved, in order."""
    return [
        Save(event.at, event.data["step"], event.data["url"], event.data["save_ms"])
        for event in events
        if event.kind == "Checkpoint" and event.attempt == attempt.id
    ]


def first(events: Sequence[Event], attempt: Attempt, kind: str) -> datetime:
    """When something was said of an attempt for the first time."""
    found = next((event.at for event in events if event.kind == kind and event.attempt == attempt.id), None)
    expect(found is not None, f"attempt {attempt.number} has no event {kind}")
    assert found is not None
    return found


def resumed(desk: Desk, job: str, attempts: Sequence[Attempt], save: Save) -> None:
    """The second attempt came back from exactly this save: the ledger says so, and so does the job."""
    name = desk.names[job]
    expect(attempts[1].resume_from == save.url, f"{name} resumed from {attempts[1].resume_from!r}, not {save.url}")
    found = _RESUMED.search(desk.log(job))
    expect(found is not None, f"{name} did not say that it resumed")
    assert found is not None
    told = (int(found[1]), int(found[2]))
    expect(told == (save.step, attempts[0].number), f"{name} resumed from step {told[0]} of attempt {told[1]}")


def saved_inside(events: Sequence[Event], attempt: Attempt, told: datetime, step: int) -> Save:
    """The last save of an attempt: it began after it was told, ended before it did, and lost no step seen by then."""
    saves = saves_of(events, attempt)
    expect(bool(saves), f"attempt {attempt.number} saved nothing")
    last = saves[-1]
    assert attempt.ended_at is not None
    # A report may take longer to us than the program then lives; the end is the backend's own time.
    heard_by = max(attempt.ended_at, first(events, attempt, attempt.state.value))
    expect(told <= last.began and last.at <= heard_by, f"the save of step {last.step} is not inside the notice")
    expect(last.step >= step, f"step {step} was done when the notice came, and step {last.step} was saved")
    return last


@dataclass(frozen=True, slots=True)
class Loss:
    """What a preemption cost a victim, in milliseconds of each of its cards."""

    gap_ms: int
    save_ms: int
    restart_ms: int
    cards: int

    @property
    def gpu_ms(self) -> int:
        """POLICIES: GPUs × (gap + save + restart)."""
        return self.cards * (self.gap_ms + self.save_ms + self.restart_ms)

    def __str__(self) -> str:
        return f"{self.cards} GPUs × (gap {self.gap_ms} + save {self.save_ms} + restart {self.restart_ms} ms)"


def loss_of(attempt: Attempt, last: Save, restart_ms: int, *, graceful: bool) -> Loss:
    """From the attempt's end and its last save alone."""
    assert attempt.ended_at is not None
    gap_ms = max(0, _floor_ms(attempt.ended_at) - _floor_ms(last.at))
    cards = sum(group.replicas for group in attempt.placed) * CARDS_PER_MEMBER
    return Loss(gap_ms, last.save_ms if graceful else 0, restart_ms, cards)


def paid(credit: CreditView, loss: Loss) -> None:
    """The credit is the loss to the millisecond, and says so in the same terms."""
    expect(credit.gpu_ms == loss.gpu_ms, f"credit {credit.gpu_ms} is not {loss.gpu_ms} = {loss}: {credit.terms}")
    terms = {name: credit.terms[name] for name in ("gap_ms", "save_ms", "restart_ms")}
    expected = {"gap_ms": loss.gap_ms, "save_ms": loss.save_ms, "restart_ms": loss.restart_ms}
    expect(terms == expected, f"terms {terms} are not {expected}")


def _floor_ms(at: datetime) -> int:
    """As the ledger counts: whole milliseconds since the epoch."""
    gap = at - datetime.fromtimestamp(0, at.tzinfo)
    return gap // _MS
