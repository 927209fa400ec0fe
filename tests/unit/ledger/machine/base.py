"""How the machine does an act: killed somewhere, tried again, said twice; and what it compares after each step."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant

from policies.vocabulary import Reason
from tests.harness.crashes import Crash
from tests.harness.postgres import Databases
from tests.unit.ledger.machine.compare import Ceilings, compare
from tests.unit.ledger.machine.estate import POLICY, QUOTAS, Estate
from tests.unit.ledger.machine.model import Attempt, Job, Model

T = TypeVar("T")
CRASH = st.one_of(
    st.none(),
    st.builds(Crash, st.one_of(st.integers(0, 8), st.integers(0, 30)), st.booleans()),
    st.just(Crash(answer_lost=True)),
)
PICK = st.integers(0, 1000)
VICTIMS = st.lists(PICK, min_size=1, max_size=2)
KLASS = st.sampled_from(["P2", "P2", "P1", "P0"])
REASONS = st.sampled_from(
    [
        Reason.COMPLETED,
        Reason.NON_ZERO_EXIT,
        Reason.PREEMPTED,
        Reason.USER_CANCELLED,
        Reason.NODE_LOST,
        Reason.SPOT_REVOKED,
        Reason.LOST,
        Reason.BACKEND_REFUSED,
        Reason.BUDGET_EXHAUSTED,
        Reason.TIME_LIMIT,
    ]
)


class Base(RuleBasedStateMachine):
    """One run on one database."""

    databases: ClassVar[Databases]
    totals: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.estate = Estate(self.databases)
        self.model = Model(QUOTAS, POLICY)
        self.ceilings = Ceilings()
        self.changed = True
        self.count("examples")

    def count(self, what: str, by: int = 1) -> None:
        self.totals[what] = self.totals.get(what, 0) + by

    def teardown(self) -> None:
        if progress := os.environ.get("TIDEGATE_LEDGER_PROGRESS"):
            Path(progress).write_text(words(self.totals) + "\n")
        for what, number in self.estate.crashes.counts.items():
            self.count(f"crashes_{what}", number)
        self.estate.close()

    @invariant()
    def holds(self) -> None:
        self.count("steps")
        if self.changed:
            compare(self.estate, self.model, self.ceilings)
            self.changed = False

    # -- how an act is done ---------------------------------------------------------------------------------------
    def act(self, work: Callable[[], T], crash: Crash | None, *, whole: bool = True, twice: bool = True) -> T:
        """The act's first answer. `whole`: killed in the middle it leaves nothing. `twice`: again it does nothing."""
        self.changed = True
        if crash is not None and not crash.answer_lost:
            before = self.estate.digest() if whole else {}
            killed, answer = self.estate.crashes.run(work, crash)
            if not killed:
                return answer  # type: ignore[return-value]
            if whole:
                assert self.estate.digest() == before, "a killed act has left something"
        answer = work()
        if crash is not None and crash.answer_lost and twice:
            self.count("replays")
            before = self.estate.digest()
            work()
            after = self.estate.digest()
            assert after == before, [name for name in after if after[name] != before[name]]
        return answer

    def pick(self, number: int, items: list[T]) -> T | None:
        return items[number % len(items)] if items else None

    def queued(self) -> list[Job]:
        return [job for job in self.model.jobs.values() if job.state == "QUEUED" and not job.want_cancel]

    def victims(self) -> list[Attempt]:
        """As policies choose them: they hold their lease and nobody stops them yet."""
        return [
            one
            for one in self.model.live()
            if one.lease.state == "held"
            and one.cause is None
            and not one.job.want_cancel
            and not self.model.promised(one)
        ]

    def waiters(self) -> list[Attempt]:
        return [
            one
            for one in self.model.live()
            if one.lease.state == "contingent" and one.cause is None and not one.job.want_cancel
        ]


def words(totals: dict[str, int]) -> str:
    """Counts by name, for people."""
    return ", ".join(f"{what} {number}" for what, number in sorted(totals.items()))


def instant(ms: int) -> datetime:
    """Of epoch milliseconds."""
    return datetime.fromtimestamp(ms / 1000, UTC)
