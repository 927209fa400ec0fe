"""A move over the real ledger: one savepoint, a place that nobody else gets, one quota, and the job goes on there."""

from datetime import UTC, datetime
from typing import Any

import pytest

from backends.types import PoolCapacity
from gateway.ledger import progress, wishes
from gateway.ledger.check import check
from gateway.ledger.engine import in_transaction
from policies.snapshot import Node, Resources
from policies.vocabulary import Reason
from tests.builders.ledger import FLAVOR, GPU
from tests.unit.store.test_place_first import WHOLE
from tests.unit.store.test_place_first import Scene as Preempting
from tests.unit.store.world import Gate, live, rows, scalar, write
from workflows.decide import next_step
from workflows.messages import EndRequest
from workflows.steps import AbortAll, Launch, SendStop, Wait

HERE: dict[str, Any] = {**WHOLE, "placement": {"pools": ["pool"]}}
SAVED = "file:///c/1/attempt-1/step-7"


class Scene(Preempting):
    """A job on the only node, one of a higher class that may run nowhere else, and a free pool for the first."""

    def prepare(self) -> None:
        gate = self.gate
        write(gate.engine, "INSERT INTO backends (name, kind, config) VALUES ('c', 'local', '{}')")
        write(
            gate.engine,
            "INSERT INTO pools (name, backend, flavor, config, place_first, places_nodes)"
            " VALUES ('other', 'c', :flavor, '{}', true, true)",
            flavor=FLAVOR,
        )
        node = Resources(8 * GPU, 64_000, 512 << 30, 1 << 40)
        gate.store.capacity("c", [PoolCapacity("other", (Node("m1", node),), datetime.now(UTC))])

    @property
    def next(self) -> str:
        return self.gate.attempt(self.low)

    def whole(self) -> None:
        assert check(self.gate.engine) == []

    def is_told(self) -> None:
        self.gate.is_placed(self.waiter)
        self.gate.store.stop_sent(self.victim, 300)


def scene_of(gate: Gate, **more: Any) -> Scene:
    return Scene(gate, wish=HERE, **more)


def test_the_job_goes_on_at_the_other_place_from_its_last_checkpoint(gate: Gate) -> None:
    scene = scene_of(gate, max_gpus=16)
    follows = scene.next
    assert follows != scene.victim
    row = rows(gate.engine, "SELECT state, number, placed FROM attempts WHERE id = :id", id=follows)[0]
    assert (row.state, row.number, row.placed[0]["pool"], row.placed[0]["nodes"]) == (
        "RESERVED",
        2,
        "other",
        [["m1", 1]],
    )
    assert (scene.view(follows).lease_state, scene.view(follows).follows) == ("contingent", "going")
    assert follows in gate.outbox("start")
    assert isinstance(next_step(scene.view(follows)), Wait)
    assert not scene.heard()
    scene.whole()

    rival = gate.submit("org/high", **WHOLE)
    assert scene.turn().admitted == ()  # the other place is taken from the commit on
    gate.wish(wishes.cancel, rival)

    gate.is_placed(scene.waiter)
    step = next_step(scene.view(scene.victim))
    assert isinstance(step, SendStop)
    assert (step.grace_s, step.kind, scene.view(scene.victim).stop_cause) == (300, "preempt", "move")
    gate.store.stop_sent(scene.victim, 300)
    write(gate.engine, "UPDATE attempts SET started_at = now() - interval '1 hour' WHERE id = :id", id=scene.victim)
    in_transaction(
        gate.engine,
        lambda session: progress.checkpoint(
            session, scene.victim, step=7, url=SAVED, verified=1, reshardable=False, size=1, save_ms=10, parts=[]
        ),
    )
    settled = gate.store.settle(EndRequest(scene.victim, Reason.MOVED.value, exit_code=75))
    assert (settled.attempt_state, settled.job_state) == ("PREEMPTED", "ADMITTED")
    assert {scene.view(one).lease_state for one in (scene.waiter, follows)} == {"held"}
    assert {scene.waiter, follows} <= set(gate.outbox("nudge"))
    assert next_step(scene.view(follows)) == Launch(follows, "c")
    request = gate.store.launch_request(follows, "c")
    assert (request.resume_from, request.attempt) == (SAVED, 2)
    assert live(gate.store.cycle(), follows).preemptions_today == 1  # it counts against the job's daily limit
    (credit,) = rows(gate.engine, "SELECT victim_attempt, preemption FROM credits")
    assert (credit.victim_attempt, credit.preemption) == (scene.victim, scene.waiter)
    scene.whole()

    gate.runs(follows, "c")
    assert gate.ends(follows).job_state == "SUCCEEDED"
    gate.runs(scene.waiter)
    gate.ends(scene.waiter)
    assert gate.world.held(gate.tenants["org"]) == 0
    scene.whole()


def test_at_its_max_a_tenant_is_moved_all_the_same(gate: Gate) -> None:
    scene = scene_of(gate, max_gpus=16, low_gpus=8)
    assert scene.view(scene.next).follows == "going"
    gate.store.settle(EndRequest(scene.victim, Reason.NODE_LOST.value))
    assert gate.world.held(gate.tenants["org/low"]) == 8
    assert gate.job(scene.low).state == "ADMITTED"  # what ended it does not matter to where it goes on
    scene.whole()


@pytest.mark.parametrize("limit", ["above", "budget"])
def test_a_place_that_the_ledger_does_not_grant_leaves_a_preemption(gate: Gate, limit: str) -> None:
    hour = 8 * 3_600_000
    more = {"max_gpus": 15} if limit == "above" else {"max_gpus": 16, "budget": hour + 1}
    scene = scene_of(gate, **more)
    assert scene.next == scene.victim
    gate.is_placed(scene.waiter)
    assert scene.view(scene.victim).stop_cause == "preempt"
    assert gate.store.settle(EndRequest(scene.victim, Reason.PREEMPTED.value)).job_state == "QUEUED"
    scene.whole()


def test_the_waiter_gives_up_and_the_job_stays_where_it_is(gate: Gate) -> None:
    scene = scene_of(gate, max_gpus=16)
    follows = scene.next
    gate.store.give_up_placing(scene.waiter)
    assert follows in gate.outbox("nudge")
    assert scene.view(follows).follows == "stays"
    step = next_step(scene.view(follows))
    assert isinstance(step, AbortAll)
    assert gate.store.settle(step.end).job_state == "RUNNING"
    gate.ends(scene.waiter, Reason.BACKEND_WAIT_TIMEOUT, None)
    assert not scene.heard()
    assert gate.world.held(gate.tenants["org"]) == 8
    assert gate.ends(scene.victim).job_state == "SUCCEEDED"
    scene.whole()


@pytest.mark.parametrize("told", [False, True])
def test_a_job_that_is_done_before_it_is_moved_is_done(gate: Gate, told: bool) -> None:  # noqa: FBT001
    scene = scene_of(gate, max_gpus=16)
    if told:
        scene.is_told()
    assert gate.ends(scene.victim).job_state == "SUCCEEDED"
    (row,) = rows(gate.engine, "SELECT state, message FROM attempts WHERE id = :id", id=scene.next)
    assert (row.state, row.message) == ("STOPPED", "the move was called off")
    assert gate.world.held(gate.tenants["org"]) == 8  # the waiter's
    scene.whole()


@pytest.mark.parametrize("first", ["victim", "next"])
def test_a_cancel_ends_both_whichever_ends_first(gate: Gate, first: str) -> None:
    scene = scene_of(gate, max_gpus=16)
    scene.is_told()
    follows = scene.next
    gate.wish(wishes.cancel, scene.low)
    step = next_step(scene.view(follows))
    assert isinstance(step, AbortAll)
    if first == "next":
        assert gate.store.settle(step.end).job_state == "STOPPING"
    assert gate.ends(scene.victim, Reason.USER_CANCELLED, None).job_state == "CANCELLED"
    assert not gate.store.settle(step.end).first
    assert gate.world.held(gate.tenants["org"]) == 8
    scene.whole()


def test_a_p0_takes_the_new_place_and_the_job_is_queued(gate: Gate) -> None:
    scene = scene_of(gate, max_gpus=16)
    scene.is_told()
    follows = scene.next
    urgent = gate.submit("org/high", priority="P0", **{**WHOLE, "placement": {"pools": ["other"]}})
    report = scene.turn()
    assert (report.admitted, report.preempted) == ((urgent,), (follows,))
    assert scene.view(gate.attempt(urgent)).lease_state == "held"
    assert gate.store.settle(EndRequest(scene.victim, Reason.MOVED.value)).job_state == "QUEUED"
    assert scalar(gate.engine, "SELECT state FROM attempts WHERE id = :id", id=follows) == "STOPPED"
    assert gate.world.held(gate.tenants["org"]) == 16  # the two waiters'
    scene.whole()


def test_another_p0_takes_the_waiters_place_and_the_move_goes_on(gate: Gate) -> None:
    scene = scene_of(gate, max_gpus=16)
    urgent = gate.submit("org/high", priority="P0", **HERE)
    report = scene.turn()
    assert (report.admitted, set(report.preempted)) == ((urgent,), {scene.victim, scene.waiter})
    gate.store.settle(EndRequest(scene.waiter, Reason.PREEMPTED.value))
    assert scene.view(scene.next).follows == "going"
    gate.is_placed(gate.attempt(urgent))
    view = scene.view(scene.victim)
    assert (view.stop_cause, view.stop_grace_s) == ("move", 0)
    assert gate.store.settle(EndRequest(scene.victim, Reason.MOVED.value)).job_state == "ADMITTED"
    assert scene.view(scene.next).lease_state == "held"
    scene.whole()


def test_a_user_sends_the_job_back_and_it_goes_on_at_its_new_place(gate: Gate) -> None:
    scene = scene_of(gate, max_gpus=16)
    gate.wish(wishes.requeue, scene.low)
    assert isinstance(next_step(scene.view(scene.next)), AbortAll)
    gate.store.settle(EndRequest(scene.victim, Reason.REQUEUED.value))
    assert gate.job(scene.low).state in {"QUEUED", "ADMITTED"}
    scene.whole()
