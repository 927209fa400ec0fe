"""CASES QL-02: a restart, backends that replay their past, and two arbiters at once of which one has slept."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.orm import Session

from backends.types import Handle, Observation, Phase
from gateway.ledger import estate
from gateway.ledger.check import check
from gateway.ledger.config import PlainSettings
from gateway.ledger.store import PostgresStore
from policies.decisions import Act
from policies.plan import plan
from policies.settings import PolicySettings
from policies.snapshot import Node, Resources
from policies.vocabulary import AttemptState, Reason, Resource
from tests.builders.ledger import GPU, POOL
from tests.fakes.backend import FakeBackend
from tests.fakes.cluster import FakeCluster
from tests.harness.waiting import eventually
from tests.unit.store.world import AT_ONCE, Gate, an_admit, rows, scalar
from workflows.activities.reconciler import compare
from workflows.messages import EndRequest
from workflows.store import FencedError

NUMBERS = PolicySettings()


def held(engine: Engine, tenant: str = "acme") -> int:
    """What the tenant's account says, in GPUs."""
    milli = scalar(
        engine,
        "SELECT coalesce(sum(posted + pending), 0)::bigint FROM accounts JOIN tenants ON tenants.id = tenant_id"
        " WHERE path = :path AND accounts.kind = 'concurrency' AND unit = 'accelerators'",
        path=tenant,
    )
    return int(milli) // GPU


class Scene:
    """j1 succeeded, j2 failed, j3 runs with 4 GPUs, j4 with 2; all four were launched at a real port."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        node = Resources(8 * GPU, 64_000, 512 << 30)
        self.cluster = FakeCluster({POOL: (Node("n1", node), Node("n2", node))})
        self.backend = FakeBackend(self.cluster, name="b", gateway="tidegate")
        gate.tenant("acme")
        self.epoch = gate.store.take_epoch("old")
        self.j1, self.j2, self.j3, self.j4 = (
            self.launched(gpus, node) for gpus, node in ((4, "n1"), (4, "n2"), (4, "n1"), (2, "n2"))
        )
        for attempt, code, reason in ((self.j1, 0, Reason.COMPLETED), (self.j2, 3, Reason.NON_ZERO_EXIT)):
            self.cluster.finish(attempt, rank=0, code=code)
            gate.store.observe("b", self.backend.observe([self.handle(attempt)]))
            gate.ends(attempt, reason, code)

    def handle(self, attempt: str) -> Handle:
        found = self.backend.find(attempt)
        assert found is not None
        return found

    def launched(self, gpus: int, node: str) -> str:
        job = self.gate.submit("acme", resources={"accelerators": f"H100:{gpus}"})
        attempt = self.gate.admit(job, gpus, node)
        store = self.gate.store
        handle = self.backend.prepare(store.launch_request(attempt, "b"))
        store.mark(attempt, AttemptState.PENDING)
        store.prepared(attempt, "b", handle.native)
        self.backend.start(handle)
        store.started(attempt, "b")
        store.mark(attempt, AttemptState.RUNNING)
        store.observe("b", self.backend.observe([handle]))
        return attempt

    def rebuilt(self) -> int:
        """GPUs in use as the backends alone tell it: our living objects, by their tags."""
        owned = self.backend.list_owned()
        living = [one for one in owned if one.phase in {Phase.PREPARED, Phase.PENDING, Phase.RUNNING}]
        requests = [self.cluster.launches[one.handle.key].request for one in living]
        return sum(g.per_member.accelerators * g.replicas for r in requests for g in r.groups) // GPU

    def replay(self, store: PostgresStore) -> None:
        """The backend, asked from its beginning, tells of all of them as if they had just been created."""
        for phase, ago_s in ((Phase.PREPARED, 600), (Phase.PENDING, 0)):
            at = datetime.now(UTC) - timedelta(seconds=ago_s)
            store.observe("b", [Observation(self.handle(j), phase, at) for j in (self.j1, self.j2, self.j3)])


@contextmanager
def another(gate: Gate, url: str) -> Iterator[PostgresStore]:
    """The store of another process."""
    store = PostgresStore(gate.engine, url, PlainSettings(), policy=AT_ONCE)
    try:
        yield store
    finally:
        store.close()


def turn(store: PostgresStore, epoch: int) -> Any:
    cycle = store.cycle()
    return store.commit(epoch, cycle, plan(cycle.snapshot, NUMBERS, cycle.now_ms))


def test_ql_02_after_a_restart_nothing_is_admitted_again_and_use_is_4(gate: Gate, database_url: str) -> None:
    scene = Scene(gate)
    gate.ends(scene.j4)
    scene.cluster.finish(scene.j4, rank=0, code=0)
    before = rows(gate.engine, "SELECT id, state, version FROM jobs ORDER BY id")
    with another(gate, database_url) as store:
        scene.backend = FakeBackend(scene.cluster, name="b", gateway="tidegate")
        epoch = store.take_epoch("restarted")
        scene.replay(store)
        for _ in range(3):
            report = turn(store, epoch)
            assert (report.admitted, report.preempted, report.rejected) == ((), (), ())
        assert held(gate.engine) == 4
        orders = compare(scene.backend.list_owned(), store.live_attempts("b"), "b", datetime.now(UTC), 0)
        assert (orders.adopt, orders.end) == ((), ())
        assert [one.attempt_id for one in store.live_attempts("")] == [scene.j3]
        assert store.load_attempt(scene.j3).state == "RUNNING"  # type: ignore[union-attr]
        store.observe("b", scene.backend.observe([scene.handle(j) for j in (scene.j1, scene.j2, scene.j3)]))
    assert rows(gate.engine, "SELECT id, state, version FROM jobs ORDER BY id") == before
    assert scene.rebuilt() == held(gate.engine) == 4
    assert check(gate.engine) == []


def test_ql_02_the_old_owner_wakes_is_fenced_and_its_second_release_is_nothing(gate: Gate, database_url: str) -> None:
    scene = Scene(gate)
    with another(gate, database_url) as standby:
        late = gate.submit("acme", resources={"accelerators": "H100:2"})
        old_cycle = gate.store.cycle()  # the old one has read and planned, and falls asleep
        old_plan = Act(admits=(an_admit(old_cycle, late, 2),))
        epoch = standby.take_epoch("standby")
        assert held(gate.engine) == 6  # j3 once, j4 once
        assert scene.rebuilt() == 6
        assert turn(standby, epoch).admitted == (late,)
        scene.cluster.finish(scene.j3, rank=0, code=0)
        standby.observe("b", scene.backend.observe([scene.handle(scene.j3)]))
        end = EndRequest(scene.j3, Reason.COMPLETED.value, exit_code=0)
        assert standby.settle(end).first
        assert held(gate.engine) == 4  # j4 and the late one

        before = rows(gate.engine, "SELECT id, posted, pending, version FROM accounts ORDER BY id")
        for write in (
            lambda: gate.commit(old_cycle, old_plan, epoch=scene.epoch),
            lambda: gate.commit(gate.store.cycle(), epoch=scene.epoch),
            lambda: gate.store.beat(scene.epoch),
        ):
            with pytest.raises(FencedError):
                write()
        again = gate.store.settle(end)
        assert (again.first, again.attempt_state, again.job_state) == (False, "SUCCEEDED", "SUCCEEDED")
        assert not gate.store.settle(EndRequest(scene.j3, Reason.LOST.value)).first
        assert not gate.store.mark(scene.j3, AttemptState.RUNNING)
        assert rows(gate.engine, "SELECT id, posted, pending, version FROM accounts ORDER BY id") == before
        assert scalar(gate.engine, "SELECT count(*) FROM attempts WHERE job_id = :job", job=gate.job(late).id) == 1
        made = gate.attempt(late)
        handle = scene.backend.prepare(standby.launch_request(made, "b"))
        scene.backend.start(handle)
    assert scene.rebuilt() == held(gate.engine) == 4
    usages = [u.held for u in _usages(gate.engine) if u.tenant == "acme" and u.resource is Resource.ACCELERATORS]
    assert usages == [4 * GPU]
    assert check(gate.engine) == []


def _usages(engine: Engine) -> Any:
    with Session(engine) as session:
        return estate.usages(session)


@pytest.mark.parametrize("first", ["the old one proves", "the standby takes"])
def test_ql_02_whoever_comes_second_at_the_same_moment_waits_and_then_knows(
    gate: Gate, database_url: str, first: str
) -> None:
    """A take-over in the middle of a commit comes after it; a commit in the middle of a take-over is fenced by it."""
    gate.tenant("acme")
    job = gate.submit("acme")
    old_epoch = gate.store.take_epoch("old")
    cycle = gate.store.cycle()
    act = Act(admits=(an_admit(cycle, job),))
    words = "SET beat" if first == "the old one proves" else "SET epoch"
    inside, go = threading.Event(), threading.Event()

    def pause(_c: Any, _cur: Any, statement: str, *_: Any) -> None:
        if words in statement and not inside.is_set():
            inside.set()
            assert go.wait(30)

    event.listen(gate.engine, "after_cursor_execute", pause)
    with another(gate, database_url) as standby, ThreadPoolExecutor(2) as pool:
        commit: Callable[[], Any] = lambda: gate.commit(cycle, act, epoch=old_epoch)  # noqa: E731
        take: Callable[[], Any] = lambda: standby.take_epoch("standby")  # noqa: E731
        ahead, behind = (commit, take) if first == "the old one proves" else (take, commit)
        one = pool.submit(ahead)
        assert inside.wait(30)
        two = pool.submit(behind)
        _until_somebody_waits(gate.engine)
        assert not two.done()
        go.set()
        answer = one.result(30)
        if first == "the old one proves":
            assert answer.admitted == (job,)
            assert two.result(30) > old_epoch
            assert turn(standby, two.result()).admitted == ()
        else:
            with pytest.raises(FencedError):
                two.result(30)
            assert turn(standby, answer).admitted == (job,)
    assert scalar(gate.engine, "SELECT count(*) FROM attempts") == 1
    assert held(gate.engine) == 4
    assert check(gate.engine) == []


def _until_somebody_waits(engine: Engine) -> None:
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    eventually(lambda: scalar(engine, waiting) > 0, timeout_s=30, what="the second one to wait")


def test_ql_02_many_arbiters_in_turn_admit_each_job_once(gate: Gate, database_url: str) -> None:
    """Eight of them take the epoch from each other while they plan and commit: whoever is fenced takes it again."""
    gate.tenant("acme", max_gpus=12)
    jobs = [gate.submit("acme", resources={"accelerators": "H100:1"}) for _ in range(16)]
    fenced: list[int] = []

    def arbitrate(number: int) -> None:
        with another(gate, database_url) as store:
            epoch = store.take_epoch(f"arbiter {number}")
            for _ in range(4):
                try:
                    turn(store, epoch)
                except FencedError:
                    fenced.append(number)
                    epoch = store.take_epoch(f"arbiter {number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(arbitrate, range(8)))
    with another(gate, database_url) as store:
        turn(store, store.take_epoch("last"))
    assert fenced
    assert held(gate.engine) == 12
    made = rows(gate.engine, "SELECT job_id, count(*) AS n FROM attempts GROUP BY job_id")
    assert len(made) == 12
    assert {row.n for row in made} == {1}
    assert {str(row.job_id) for row in made} <= set(jobs)
    waiting = rows(gate.engine, "SELECT pending->>'token' AS token FROM jobs WHERE state = 'QUEUED'")
    assert [row.token for row in waiting] == ["TenantLimit"] * 4
    assert check(gate.engine) == []
