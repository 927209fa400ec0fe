"""A cycle in which nothing is new reads one number and plans nothing."""

from typing import Any, cast

import pytest

from policies.decisions import Act, Plan
from policies.quiet import MOST_MS, quiet_ms
from policies.snapshot import Override, Pool, Snapshot
from policies.vocabulary import Tenure
from workflows.activities.arbiter import FENCED, ArbiterActivity
from workflows.messages import Duty
from workflows.store import CommitReport, Cycle, FencedError

NOW_MS = 1_000_000


class World:
    """A store whose fingerprints a test writes; the turn ends after so many cycles."""

    def __init__(self, marks: str, snapshot: Snapshot | None = None, *, woken: bool = False) -> None:
        self.marks = iter(marks)
        self.woken = woken
        self.left = len(marks)
        self.snapshot = snapshot or Snapshot()
        self.plans = 0
        self.asked = 0

    def take_epoch(self, _holder: str) -> int:
        return 1

    def wait_for_work(self, _timeout_s: float) -> bool:
        return self.woken

    def fingerprint(self) -> str:
        self.asked += 1
        return next(self.marks)

    def cycle(self) -> Cycle:
        return Cycle(self.snapshot, NOW_MS)

    def _over(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise FencedError

    def beat(self, _epoch: int) -> None:
        self._over()

    def commit(self, _epoch: int, _cycle: Cycle, _plan: Plan) -> CommitReport:
        self._over()
        return CommitReport(admitted=("job",))


def turn(world: World, plan: Plan) -> int:
    """How often it planned."""

    def planned(_snapshot: Snapshot, _now_ms: int) -> Plan:
        world.plans += 1
        return plan

    assert ArbiterActivity(cast("Any", world), planned, holder="me").run(Duty("arbiter")) == FENCED
    return world.plans


def test_an_unchanged_world_is_planned_once() -> None:
    assert turn(World("aaaaa"), Plan()) == 1


def test_who_was_woken_does_not_ask_whether_there_is_news() -> None:
    world = World("aaa", woken=True)
    assert (turn(world, Plan()), world.asked) == (3, 1)


def test_every_change_is_planned() -> None:
    assert turn(World("aabbac"), Plan()) == 4


def test_what_was_decided_is_looked_at_again_even_if_nothing_seems_changed() -> None:
    assert turn(World("aaa"), Plan(acts=(Act(),))) == 3


def test_an_instant_that_the_snapshot_names_ends_the_quiet() -> None:
    soon = Snapshot(
        overrides=(
            Override(
                "a",
                force=True,
                until_ms=NOW_MS,
                reason="",
            ),
        )
    )
    assert quiet_ms(soon, NOW_MS) == MOST_MS, "it is over, and was planned with"
    assert quiet_ms(soon, NOW_MS - 7) == 7


@pytest.mark.parametrize("field", ["rested_until_ms", "no_preemption_until_ms"])
def test_a_pool_that_comes_back_ends_the_quiet(field: str) -> None:
    fields: dict[str, Any] = {field: NOW_MS + 40}
    pool = Pool("p", "b", "f", Tenure.EXCLUSIVE, places_nodes=True, place_first=True, nodes=(), **fields)
    assert quiet_ms(Snapshot(pools=(pool,)), NOW_MS) == 40


def test_without_an_instant_it_looks_again_after_a_few_seconds() -> None:
    assert quiet_ms(Snapshot(), NOW_MS) == MOST_MS
