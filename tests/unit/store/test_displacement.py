"""A P0 in the middle of a P1's preemption, over the real ledger: one savepoint, one promise, the shorter grace."""

from dataclasses import replace

import pytest

from gateway.ledger import wishes
from gateway.ledger.check import check
from policies.decisions import Act
from policies.plan import plan
from policies.settings import PolicySettings
from policies.vocabulary import Reason, StopCause
from tests.unit.store.world import Gate, rows, scalar, write
from workflows.decide import next_step
from workflows.messages import AttemptView, EndRequest
from workflows.steps import AbortAll, SendStop
from workflows.store import CommitReport

WHOLE = {"resources": {"accelerators": "H100:8"}}


class Scene:
    """A victim that has been told to go with 300 s, a P1 that waits for it, and a P0 that comes."""

    def __init__(self, gate: Gate, *, max_gpus: int | None = None) -> None:
        self.gate = gate
        write(gate.engine, "UPDATE pools SET place_first = true, places_nodes = true")
        write(gate.engine, "UPDATE nodes SET schedulable = false WHERE name = 'n2'")
        gate.tenant("org", **({} if max_gpus is None else {"max_gpus": max_gpus}))
        for name, klass in (("low", None), ("mid", "P1"), ("high", "P0")):
            tenant = gate.tenant(f"org/{name}")
            if klass is not None:
                gate.world.allowance(tenant, klass, 1000)
        self.epoch = gate.store.take_epoch("me")
        self.low = gate.submit("org/low", checkpoint={"url": "file:///c/1"}, **WHOLE)
        assert self.turn().admitted == (self.low,)
        self.victim = gate.attempt(self.low)
        gate.runs(self.victim)
        self.mid = gate.submit("org/mid", priority="P1", **WHOLE)
        assert self.turn().preempted == (self.victim,)
        self.waiter = gate.attempt(self.mid)
        gate.is_placed(self.waiter)
        assert self.view(self.victim).stop_grace_s == 300

    def turn(self) -> CommitReport:
        cycle = self.gate.store.cycle()
        return self.gate.store.commit(self.epoch, cycle, plan(cycle.snapshot, PolicySettings(), cycle.now_ms))

    def view(self, attempt: str) -> AttemptView:
        found = self.gate.store.load_attempt(attempt)
        assert found is not None
        return found

    def comes(self) -> str:
        return self.gate.submit("org/high", priority="P0", **WHOLE)

    def takes_over(self) -> str:
        """A P0 comes, is given the waiter's victims, and is placed; its job."""
        urgent = self.comes()
        report = self.turn()
        assert (report.admitted, set(report.preempted)) == ((urgent,), {self.victim, self.waiter})
        self.gate.is_placed(self.gate.attempt(urgent))
        return urgent

    def whole(self) -> None:
        assert check(self.gate.engine) == []


@pytest.mark.parametrize("max_gpus", [None, 8])
def test_a_p0_gets_the_room_and_the_p1_is_queued_again(gate: Gate, max_gpus: int | None) -> None:
    scene = Scene(gate, max_gpus=max_gpus)
    gate.store.stop_sent(scene.victim, 300)
    urgent = scene.takes_over()
    scene.whole()
    assert gate.world.held(gate.tenants["org/mid"]) == 0
    view = scene.view(scene.victim)
    assert (view.stop_cause, view.stop_grace_s, view.stop_sent, view.state) == ("preempt", 0, False, "STOPPING")
    step = next_step(view)
    assert isinstance(step, SendStop)
    assert (step.mode, step.grace_s) == ("kill", 0)
    gate.store.stop_sent(scene.victim, 0)
    assert scene.view(scene.victim).stop_sent

    gave_up = next_step(scene.view(scene.waiter))
    assert isinstance(gave_up, AbortAll)
    settled = gate.store.settle(gave_up.end)
    assert (settled.attempt_state, settled.job_state) == ("PREEMPTED", "QUEUED")
    scene.whole()
    assert scene.turn().admitted == ()

    assert scene.view(gate.attempt(urgent)).lease_state == "contingent"
    assert gate.ends(scene.victim, Reason.PREEMPTED, 137).job_state == "QUEUED"
    assert scene.view(gate.attempt(urgent)).lease_state == "held"
    assert gate.world.held(gate.tenants["org"]) == 8
    (credit,) = rows(gate.engine, "SELECT victim_attempt, preemption FROM credits")
    assert (credit.victim_attempt, credit.preemption) == (scene.victim, gate.attempt(urgent))
    scene.whole()
    gate.runs(gate.attempt(urgent))
    gate.ends(gate.attempt(urgent))
    assert gate.world.held(gate.tenants["org"]) == 0
    scene.whole()


def test_the_victim_may_be_settled_before_the_waiter_has_left(gate: Gate) -> None:
    scene = Scene(gate)
    urgent = scene.takes_over()
    gate.store.stop_sent(scene.victim, 0)
    gate.ends(scene.victim, Reason.PREEMPTED, 137)
    assert scene.view(gate.attempt(urgent)).lease_state == "held"
    assert scene.view(scene.waiter).lease_state == "voided"
    assert isinstance(next_step(scene.view(scene.waiter)), AbortAll)
    scene.whole()


def test_a_notice_that_went_out_as_the_grace_was_cut_is_followed_by_another(gate: Gate) -> None:
    scene = Scene(gate)
    scene.takes_over()
    gate.store.stop_sent(scene.victim, 300)  # it had been read before the P0 came
    view = scene.view(scene.victim)
    assert (view.state, view.stop_sent, view.stop_grace_s) == ("STOPPING", False, 0)
    step = next_step(view)
    assert isinstance(step, SendStop)
    assert step.grace_s == 0


def test_the_p0_is_cancelled_and_the_displaced_waiter_is_not_spared_into_a_life_without_a_lease(gate: Gate) -> None:
    scene = Scene(gate)
    urgent = scene.takes_over()
    gate.wish(wishes.cancel, urgent)
    assert scene.view(scene.victim).stop_cause == ""  # nobody had told it
    assert scene.view(scene.waiter).stop_cause == "preempt"
    gate.ends(gate.attempt(urgent), Reason.USER_CANCELLED, None)
    gate.store.settle(EndRequest(scene.waiter, Reason.PREEMPTED.value))
    scene.whole()
    assert gate.job(scene.mid).state == "QUEUED"


def test_a_waiter_whose_lease_is_held_by_now_is_not_displaced(gate: Gate) -> None:
    scene = Scene(gate)
    urgent = scene.comes()
    cycle = gate.store.cycle()
    gate.store.stop_sent(scene.victim, 300)
    gate.ends(scene.victim, Reason.PREEMPTED, 75)
    report = gate.store.commit(scene.epoch, cycle, plan(cycle.snapshot, PolicySettings(), cycle.now_ms))
    assert report.dropped[urgent] == "Stale"
    assert scene.view(scene.waiter).lease_state == "held"
    assert scene.view(scene.waiter).stop_cause == ""
    scene.whole()


def test_a_second_stop_never_lengthens_the_grace(gate: Gate) -> None:
    scene = Scene(gate)
    urgent = scene.comes()
    cycle = gate.store.cycle()
    act = plan(cycle.snapshot, PolicySettings(), cycle.now_ms).acts[0]
    longer = tuple(replace(one, grace_ms=900_000) for one in act.preempts)
    report = gate.commit(cycle, Act(act.admits, longer), epoch=scene.epoch)
    assert report.preempted
    gate.is_placed(gate.attempt(urgent))
    assert scene.view(scene.victim).stop_grace_s == 300
    assert not gate.store.ask_stop(scene.victim, StopCause.STALL, 5)
    assert gate.store.ask_stop(scene.victim, StopCause.CANCEL, 900)
    assert scene.view(scene.victim).stop_grace_s == 300


def test_a_lost_node_is_avoided_by_the_next_attempt_and_used_where_nothing_else_fits(gate: Gate) -> None:
    write(gate.engine, "UPDATE pools SET places_nodes = true")
    gate.tenant("acme")
    epoch = gate.store.take_epoch("me")

    def nodes_of(job: str) -> set[str]:
        cycle = gate.store.cycle()
        gate.store.commit(epoch, cycle, plan(cycle.snapshot, PolicySettings(), cycle.now_ms))
        placed = scalar(gate.engine, "SELECT placed FROM attempts WHERE id = :id", id=gate.attempt(job))
        return {node for part in placed for node, _ in part["nodes"]}

    def lost(job: str, node: str) -> None:
        attempt = gate.attempt(job)
        gate.runs(attempt)
        end = EndRequest(attempt, Reason.NODE_LOST.value, bad_nodes=[node])
        assert gate.store.settle(end).job_state == "QUEUED"
        write(gate.engine, "UPDATE jobs SET not_before = NULL")

    one = gate.submit("acme", **WHOLE)
    (first,) = nodes_of(one)
    lost(one, first)
    (second,) = nodes_of(one)
    assert second != first
    lost(one, second)
    assert nodes_of(one) == {first}  # what the attempt before the last one lost is forgotten
    gate.runs(gate.attempt(one))
    gate.ends(gate.attempt(one))

    both = gate.submit("acme", num_nodes=2, **WHOLE)
    assert nodes_of(both) == {"n1", "n2"}
    lost(both, "n1")
    assert nodes_of(both) == {"n1", "n2"}
    assert check(gate.engine) == []
