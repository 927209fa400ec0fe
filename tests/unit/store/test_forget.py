"""`backends forget`: the one way out of a dark backend."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from backends.port import Backend
from backends.types import Handle, Observation, Phase, PoolCapacity
from gateway.ledger import forget, settlement
from gateway.ledger.check import check
from gateway.ledger.engine import in_transaction
from policies.decisions import Act
from policies.settings import PolicySettings
from policies.snapshot import Node, Placed, Resources
from policies.vocabulary import AttemptState, Reason
from tests.builders.ledger import FLAVOR, GPU, POOL
from tests.fakes.backend import FakeBackend
from tests.fakes.cluster import FakeCluster, equal_nodes
from tests.unit.store.world import Gate, an_admit, rows, scalar, write
from workflows.activities.reconciler import ZOMBIE_AFTER_S, ReconcilerActivity
from workflows.decide import next_step
from workflows.messages import EndRequest
from workflows.steps import SendStop, Settle


def forgotten(gate: Gate, name: str = "b", *, force: bool = False) -> forget.Forgotten:
    found = in_transaction(gate.engine, lambda session: forget.begin(session, name, force=force))
    return forget.finish(gate.engine, name, found, PolicySettings())


def a_running_job(gate: Gate) -> tuple[str, str]:
    gate.tenant("acme")
    gate.store.take_epoch("me")
    job = gate.submit("acme")
    attempt = gate.admit(job)
    gate.runs(attempt)
    return job, attempt


def a_gang_over_two_backends(gate: Gate) -> tuple[str, str]:
    gate.tenant("acme")
    write(gate.engine, "INSERT INTO backends (name, kind) VALUES ('a', 'local')")
    write(
        gate.engine, "INSERT INTO pools (name, backend, flavor, tenure) VALUES ('shared', 'a', :f, 'shared')", f=FLAVOR
    )
    groups = [{"name": name, "replicas": 1, "command": ["./run"]} for name in ("head", "work")]
    job = gate.submit("acme", groups=groups)
    gate.store.take_epoch("me")
    cycle = gate.store.cycle()
    member = Resources(GPU, 1000, 1 << 30)
    placed = (Placed("head", POOL, FLAVOR, 1, member), Placed("work", "shared", FLAVOR, 1, member))
    assert gate.commit(cycle, Act(admits=(replace(an_admit(cycle, job), placed=placed),))).admitted == (job,)
    attempt = gate.attempt(job)
    gate.store.mark(attempt, AttemptState.PENDING)
    for backend in ("a", "b"):
        gate.store.prepared(attempt, backend, f"native/{backend}")
        gate.store.started(attempt, backend)
    gate.store.mark(attempt, AttemptState.RUNNING)
    return job, attempt


def seen(attempt: str, phase: Phase, native: str) -> Observation:
    now = datetime.now(UTC)
    ended = now if phase is Phase.ENDED else None
    return Observation(Handle(native, attempt, f"native/{native}"), phase, now, started_at=now, ended_at=ended)


def test_a_backend_that_answers_is_not_forgotten_and_nothing_changes(gate: Gate) -> None:
    _, attempt = a_running_job(gate)
    gate.store.answered("b")
    with pytest.raises(forget.StillAnswersError):
        forgotten(gate)
    with pytest.raises(forget.NoSuchBackendError):
        forgotten(gate, "c")
    assert [one.attempt_id for one in gate.store.live_attempts("b")] == [attempt]
    assert scalar(gate.engine, "SELECT count(*) FROM nodes") == 2


def test_what_lives_at_a_dark_backend_is_lost_and_its_lease_goes_back_once(gate: Gate) -> None:
    job, attempt = a_running_job(gate)
    gate.store.dark("b", "no route to host")
    done = forgotten(gate)
    assert (done.settled, done.stopped, done.left, done.pools) == ([attempt], [], [], [POOL])
    row = rows(gate.engine, "SELECT state, reason, message FROM attempts")[0]
    assert (row.state, row.reason) == ("LOST", "Lost")
    assert "b was forgotten" in row.message
    assert gate.world.held(gate.tenants["acme"]) == 0
    assert gate.job(job).state in {"QUEUED", "FAILED"}
    assert gate.outbox("nudge") == [attempt]  # its workflow reads the row and leaves
    assert scalar(gate.engine, "SELECT count(*) FROM nodes") == 0
    again = forgotten(gate)
    assert (again.settled, again.stopped) == ([], [])
    assert check(gate.engine) == []


def test_by_force_it_drains_so_that_nothing_new_is_placed_there(gate: Gate) -> None:
    _, attempt = a_running_job(gate)
    assert forgotten(gate, force=True).settled == [attempt]
    assert scalar(gate.engine, "SELECT draining FROM backends WHERE name = 'b'")


def test_the_parts_of_a_gang_elsewhere_are_stopped_before_the_lease_goes_back(gate: Gate) -> None:
    _, attempt = a_gang_over_two_backends(gate)
    gate.store.observe("a", [seen(attempt, Phase.RUNNING, "a")])
    gate.store.dark("b", "no route to host")
    done = forgotten(gate)
    assert (done.settled, done.stopped) == ([], [attempt])
    assert gate.world.held(gate.tenants["acme"]) > 0
    view = gate.store.load_attempt(attempt)
    assert view is not None
    # Nothing that its workflow does from here on asks the dark backend.
    assert (view.backends, view.started, view.dark, sorted(view.handles)) == (["a"], ["a"], [], ["a"])
    step = next_step(view)
    assert isinstance(step, SendStop)
    gate.store.stop_sent(attempt)
    gate.store.observe("a", [seen(attempt, Phase.ENDED, "a")])
    view = gate.store.load_attempt(attempt)
    assert view is not None
    last = next_step(view)
    assert isinstance(last, Settle)
    assert last.end.reason == Reason.NODE_LOST  # as of any gang that lost a member
    assert gate.store.settle(last.end).attempt_state == "REVOKED"
    assert gate.world.held(gate.tenants["acme"]) == 0
    assert check(gate.engine) == []


def test_one_attempt_that_cannot_be_settled_stops_no_other(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    _, first = a_running_job(gate)
    second_job = gate.submit("acme")
    second = gate.admit(second_job, node="n2")
    gate.store.dark("b", "no route to host")
    whole = settlement.settle

    def broken(session: object, end: EndRequest, **more: object) -> object:
        if end.attempt_id == first:
            raise RuntimeError("a bad row")
        return whole(session, end, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(settlement, "settle", broken)
    done = forgotten(gate)
    assert (done.settled, done.left) == ([second], [first])
    monkeypatch.undo()
    assert forgotten(gate).settled == [first]


def test_an_object_that_comes_back_later_is_ended_by_the_reconciler(gate: Gate) -> None:
    cluster = FakeCluster({POOL: [replace(node, name=f"n{n}") for n, node in enumerate(equal_nodes(POOL, 2), 1)]})
    backend: Backend = FakeBackend(cluster, name="b", gateway="tidegate")
    gate.tenant("acme")
    gate.store.take_epoch("me")
    attempt = gate.admit(gate.submit("acme"))
    handle = backend.prepare(gate.store.launch_request(attempt, "b"))
    gate.store.mark(attempt, AttemptState.PENDING)
    gate.store.prepared(attempt, "b", handle.native)
    backend.start(handle)
    gate.store.started(attempt, "b")
    gate.store.dark("b", "no route to host")
    assert forgotten(gate).settled == [attempt]
    # It is there again, with its capacity and with what had been running all the while.
    gate.store.answered("b")
    node = Resources(8 * GPU, 64_000, 512 << 30, 1 << 40)
    gate.store.capacity("b", [PoolCapacity(POOL, (Node("n1", node),), datetime.now(UTC))])
    launch = cluster.launches[attempt]
    launch.created_at -= timedelta(seconds=2 * ZOMBIE_AFTER_S)
    orders = ReconcilerActivity(gate.store, {"b": backend}, None).reconcile_backend("b")  # type: ignore[arg-type]
    assert [one.handle.key for one in orders.end] == [attempt]
    left = [one for one in backend.list_owned() if one.phase not in {Phase.ENDED, Phase.ABSENT}]
    assert left == []
    assert scalar(gate.engine, "SELECT count(*) FROM nodes") == 1
