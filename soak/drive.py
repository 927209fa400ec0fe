"""The users of a soak: they submit, cancel and look, again and again while nobody answers, and give up on no job."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from soak.load import CANCELLED, Load, Wanted
from soak.records import Records
from tidegate.client import Client, TidegateError
from tidegate.client.retry import Retry
from tidegate.wire.job import Job

ONE_TRY = Retry(tries=1)
LOOK_EVERY_S = 2.0


@dataclass(slots=True)
class Sent:
    """A job that the gate has accepted. `ended`: as the gate shows it, once it has."""

    wanted: Wanted
    id: str
    ended: Job | None = None
    cancelled: bool = False


@dataclass
class Users:
    """Keep `in_flight` jobs in the gate until `enough()`; every call is made again until it is answered."""

    client: Client
    load: Load
    records: Records
    in_flight: int
    jobs: dict[str, Sent] = field(default_factory=dict)
    unanswered: int = 0

    def open(self) -> list[Sent]:
        """Accepted and not ended."""
        return [sent for sent in self.jobs.values() if sent.ended is None]

    def run(self, enough: Callable[[], bool], timeout_s: float, tick: Callable[[], None]) -> None:
        """Until enough were submitted and all have ended, or the timeout."""
        deadline = time.monotonic() + timeout_s
        looked_at = 0.0
        while time.monotonic() < deadline:
            full = enough()
            if full and not self.open():
                return
            if not full and len(self.open()) < self.in_flight:
                self._submit()
            if time.monotonic() - looked_at > LOOK_EVERY_S:
                self._look()
                looked_at = time.monotonic()
                tick()
            elif full or len(self.open()) >= self.in_flight:
                time.sleep(0.05)

    def _submit(self) -> None:
        wanted = self.load.job(len(self.jobs))
        try:
            answer = self.client.submit(wanted.spec, key=wanted.key)
        except TidegateError:
            self._unanswered()
            return
        self.jobs[answer.id] = Sent(wanted, answer.id)

    def _look(self) -> None:
        try:
            for job in self._listed():
                sent = self.jobs.get(job.id)
                if sent is not None and sent.ended is None and job.state.ended:
                    sent.ended = job
            for sent in self.open():
                if sent.wanted.shape == CANCELLED and not sent.cancelled and self.records.started(sent.id):
                    self.client.cancel(sent.id)
                    sent.cancelled = True
        except TidegateError:
            self._unanswered()

    def _listed(self) -> Iterator[Job]:
        """Whole when few are open; job by job would be as many calls as jobs."""
        for sent in self.open():
            yield self.client.get(sent.id)

    def _unanswered(self) -> None:
        self.unanswered += 1
        time.sleep(0.1)
