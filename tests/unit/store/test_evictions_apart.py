"""CASES QL-04 with its exact inputs and seconds: victims that end at 10 s and at 40 s, a round each second."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from gateway.ledger import wishes
from gateway.ledger.check import check
from gateway.ledger.engine import make_engine
from policies.plan import plan
from policies.settings import PolicySettings
from policies.vocabulary import Reason
from tests.harness.clock import Clock
from tests.unit.store.world import Gate, rows, scalar, write
from workflows.store import CommitReport

NUMBERS = PolicySettings()


class Scene:
    """8 GPUs; q1 is guaranteed 8 and lends them, q2 has none and may borrow 8: two jobs of 4 run there. P = 8 comes."""

    def __init__(self, url: str) -> None:
        self.clock = Clock(url)
        self.engine = make_engine(url, pool_size=5)
        self.gate = gate = Gate(self.engine, url)
        write(self.engine, "UPDATE pools SET place_first = true, places_nodes = true")
        write(self.engine, "UPDATE nodes SET schedulable = false WHERE name = 'n2'")
        gate.tenant("org", min_gpus=8, max_gpus=8, lendable=8)
        gate.tenant("org/q1", min_gpus=8, max_gpus=8, lendable=8)
        gate.tenant("org/q2", max_gpus=8)
        self.epoch = gate.store.take_epoch("arbiter")
        self.a, self.b = (gate.submit("org/q2", resources={"accelerators": "H100:4"}) for _ in range(2))
        assert set(self.round().admitted) == {self.a, self.b}
        for job in (self.a, self.b):
            gate.runs(gate.attempt(job))
        self.clock.move(timedelta(hours=2))
        self.p = gate.submit("org/q1", resources={"accelerators": "H100:8"})
        self.first = {job: gate.attempt(job) for job in (self.a, self.b)}
        report = self.round()
        assert report.admitted == (self.p,)
        assert set(report.preempted) == set(self.first.values())
        self.waiter = gate.attempt(self.p)
        gate.is_placed(self.waiter)

    def round(self) -> CommitReport:
        cycle = self.gate.store.cycle()
        return self.gate.store.commit(self.epoch, cycle, plan(cycle.snapshot, NUMBERS, cycle.now_ms))

    def second(self) -> CommitReport:
        self.clock.move(timedelta(seconds=1))
        return self.round()

    def told(self, job: str) -> None:
        grace = scalar(self.engine, "SELECT stop_grace_s FROM attempts WHERE id = :id", id=self.first[job])
        self.gate.store.stop_sent(self.first[job], grace)

    def gone(self, job: str) -> None:
        assert self.gate.ends(self.first[job], Reason.RECLAIMED, 75).job_state == "QUEUED"

    def lease(self, attempt: str) -> Any:
        return scalar(self.engine, "SELECT state FROM leases WHERE attempt_id = :id", id=attempt)

    def held(self, tenant: str) -> tuple[int, int]:
        return self.gate.world.balance("concurrency", self.gate.tenants[tenant], "accelerators")

    def evictions(self) -> int:
        return len(rows(self.engine, "SELECT id FROM attempts WHERE state = 'PREEMPTED'"))


@pytest.fixture
def scene(database_url: str) -> Iterator[Scene]:
    made = Scene(database_url)
    yield made
    made.gate.store.close()
    made.engine.dispose()
    made.clock.close()


def test_ql_04_what_the_first_frees_is_kept_and_there_are_exactly_two_evictions(scene: Scene) -> None:
    scene.told(scene.a)
    scene.told(scene.b)
    for second in range(1, 61):
        if second == 10:
            scene.gone(scene.a)
        if second == 40:
            scene.gone(scene.b)
        report = scene.second()
        assert (report.admitted, report.preempted) == ((), ()), second
        assert scene.lease(scene.waiter) == ("contingent" if second < 40 else "held"), second
        assert scene.held("org/q1")[0] == (0 if second < 10 else 4000 if second < 40 else 8000), second
        assert scene.gate.job(scene.a).state == ("STOPPING" if second < 10 else "QUEUED"), second
        if second == 40:
            scene.gate.runs(scene.waiter)
            assert scene.gate.job(scene.p).state == "RUNNING"
    assert scene.evictions() == 2
    assert scalar(scene.engine, "SELECT count(*) FROM attempts") == 3
    assert check(scene.engine) == []


@pytest.mark.parametrize("told", [True, False], ids=["told already", "not told yet"])
def test_ql_04_the_waiter_is_cancelled_at_20_s(scene: Scene, told: bool) -> None:  # noqa: FBT001
    scene.told(scene.a)
    if told:
        scene.told(scene.b)
    for second in range(1, 61):
        if second == 10:
            scene.gone(scene.a)
        if second == 20:
            scene.gate.wish(wishes.cancel, scene.p)
            assert scene.gate.ends(scene.waiter, Reason.USER_CANCELLED, None).job_state == "CANCELLED"
        if second == 40 and told:
            scene.gone(scene.b)
        report = scene.second()
        expected = {20: (scene.a,), 40: (scene.b,) if told else ()}.get(second, ())
        assert (report.admitted, report.preempted) == (expected, ()), second
        if second >= 20:
            assert scene.held("org/q1") == (0, 0)
    spared = scalar(scene.engine, "SELECT stop_cause FROM attempts WHERE id = :id", id=scene.first[scene.b])
    assert spared == ("reclaim" if told else None)
    assert scene.evictions() == (2 if told else 1)
    assert check(scene.engine) == []
