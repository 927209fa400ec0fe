"""Place before evict, over the real ledger: a victim hears of its preemption once the waiter's objects exist."""

from typing import Any

import pytest
from sqlalchemy import text

from gateway.ledger import wishes
from gateway.ledger.check import check
from policies.plan import plan
from policies.settings import PolicySettings
from policies.vocabulary import AttemptState, Reason, StopCause
from tests.builders.ledger import FLAVOR
from tests.unit.store.world import Gate, rows, write
from workflows.messages import AttemptView
from workflows.store import CommitReport

WHOLE: dict[str, Any] = {"resources": {"accelerators": "H100:8"}}


class Scene:
    """A job on the only node, and one of a higher class to which the arbiter has given its room."""

    def __init__(
        self,
        gate: Gate,
        klass: str = "P1",
        *,
        wish: dict[str, Any] = WHOLE,
        max_gpus: int = 8,
        low_gpus: int | None = None,
        budget: int | None = None,
    ) -> None:
        self.gate = gate
        write(gate.engine, "UPDATE pools SET place_first = true, places_nodes = true")
        write(gate.engine, "UPDATE nodes SET schedulable = false WHERE name = 'n2'")
        gate.tenant("org", max_gpus=max_gpus)
        for name in ("low", "mid", "high"):
            tenant = gate.tenant(f"org/{name}", **({"max_gpus": low_gpus} if name == "low" and low_gpus else {}))
            if name == "low" and budget:
                gate.world.budget(tenant, "gpu_ms", budget)
            for allowed in ("P0", "P1"):
                gate.world.allowance(tenant, allowed, 1000)
        self.epoch = gate.store.take_epoch("me")
        self.low = gate.submit("org/low", checkpoint={"url": "file:///c/1"}, **WHOLE)
        assert self.turn().admitted == (self.low,)
        self.victim = gate.attempt(self.low)
        gate.runs(self.victim)
        self.prepare()
        self.mid = gate.submit("org/mid", priority=klass, **wish)
        report = self.turn()
        assert (report.admitted, report.preempted) == ((self.mid,), (self.victim,))
        self.waiter = gate.attempt(self.mid)

    def prepare(self) -> None:
        """Before the other one comes."""

    def turn(self) -> CommitReport:
        cycle = self.gate.store.cycle()
        return self.gate.store.commit(self.epoch, cycle, plan(cycle.snapshot, PolicySettings(), cycle.now_ms))

    def view(self, attempt: str) -> AttemptView:
        found = self.gate.store.load_attempt(attempt)
        assert found is not None
        return found

    def heard(self) -> bool:
        """Whether the victim has been told anything."""
        kinds = rows(self.gate.engine, "SELECT kind FROM events WHERE attempt_id = :id", id=self.victim)
        told = "StopAsked" in {row.kind for row in kinds}
        assert told == bool(self.view(self.victim).stop_cause)
        return told

    def is_queued_again(self) -> None:
        assert self.gate.job(self.mid).state == "QUEUED"
        assert not self.heard()
        assert self.view(self.victim).state == "RUNNING"
        assert self.gate.world.held(self.gate.tenants["org"]) == 8
        assert check(self.gate.engine) == []


def test_the_victim_hears_nothing_before_the_waiter_is_placed(gate: Gate) -> None:
    scene = Scene(gate)
    assert not scene.heard()
    assert scene.victim not in gate.outbox("nudge")
    assert scene.turn().preempted == ()  # and it is nobody else's victim meanwhile
    gate.store.mark(scene.waiter, AttemptState.PENDING)
    assert not scene.heard()
    gate.store.prepared(scene.waiter, "b", "native/1")
    assert scene.heard()
    assert scene.victim in gate.outbox("nudge")
    view = scene.view(scene.victim)
    assert (view.stop_cause, view.stop_grace_s, view.stop_sent) == ("preempt", 300, False)
    assert view.stop_asked_ms is not None
    gate.store.stop_sent(scene.victim, 300)
    gate.ends(scene.victim, Reason.PREEMPTED, 75)
    assert scene.view(scene.waiter).lease_state == "held"
    assert check(gate.engine) == []


def test_a_p0s_victim_has_no_grace_once_it_is_told(gate: Gate) -> None:
    scene = Scene(gate, "P0")
    gate.is_placed(scene.waiter)
    view = scene.view(scene.victim)
    assert (view.stop_cause, view.stop_grace_s) == ("preempt", 0)


def test_the_same_record_again_changes_nothing(gate: Gate) -> None:
    scene = Scene(gate)
    gate.is_placed(scene.waiter)
    version = scene.view(scene.victim).version
    gate.store.prepared(scene.waiter, "b", "native/1")
    assert gate.store.adopt(scene.waiter, "b", "native/1") is False or scene.view(scene.victim).version == version
    assert scene.view(scene.victim).version == version


def test_a_launch_that_a_reconciler_found_counts_as_placed(gate: Gate) -> None:
    """The worker died between making the objects and recording them."""
    scene = Scene(gate)
    gate.store.mark(scene.waiter, AttemptState.PENDING)
    assert gate.store.adopt(scene.waiter, "b", "native/1")
    assert scene.heard()


def test_a_refused_waiter_is_queued_again_and_the_victim_never_knew(gate: Gate) -> None:
    scene = Scene(gate)
    gate.store.mark(scene.waiter, AttemptState.PENDING)
    settled = gate.ends(scene.waiter, Reason.BACKEND_REFUSED, None)
    assert (settled.attempt_state, settled.job_state) == ("REFUSED", "QUEUED")
    scene.is_queued_again()
    assert gate.job(scene.mid).reason == "BackendRefused"


def test_a_waiter_that_gives_up_lets_its_victim_go_on_at_once(gate: Gate) -> None:
    scene = Scene(gate)
    gate.store.mark(scene.waiter, AttemptState.PENDING)
    assert gate.store.give_up_placing(scene.waiter)
    assert not gate.store.give_up_placing(scene.waiter)
    assert scene.view(scene.waiter).lease_state == "voided"
    gate.store.prepared(scene.waiter, "b", "native/late")  # an answer that came too late
    assert not scene.heard()
    other = gate.submit("org/high", priority="P1", **WHOLE)
    report = scene.turn()
    assert (report.admitted, report.preempted) == ((other,), (scene.victim,))  # it is a victim like any other again
    gate.ends(gate.attempt(other), Reason.BACKEND_REFUSED, None)
    gate.ends(scene.waiter, Reason.BACKEND_WAIT_TIMEOUT, None)
    scene.is_queued_again()


def test_ql_04_a_waiter_that_is_cancelled_before_it_is_placed_tells_nobody(gate: Gate) -> None:
    scene = Scene(gate)
    gate.wish(wishes.cancel, scene.mid)
    gate.is_placed(scene.waiter)
    assert not scene.heard()
    assert gate.ends(scene.waiter, Reason.USER_CANCELLED, None).job_state == "CANCELLED"
    assert not scene.heard()
    assert gate.world.held(gate.tenants["org"]) == 8
    assert check(gate.engine) == []


def test_what_was_due_for_a_waiter_that_is_gone_binds_nobody(gate: Gate) -> None:
    """The victim's row was in other hands when its waiter left, so that nothing could be taken off it."""
    scene = Scene(gate)
    with gate.engine.connect() as busy:
        busy.execute(text("SELECT 1 FROM attempts WHERE id = :id FOR UPDATE"), {"id": scene.victim})
        gate.ends(scene.waiter, Reason.BACKEND_REFUSED, None)
        busy.rollback()
    (row,) = rows(gate.engine, "SELECT stop_due FROM attempts WHERE id = :id", id=scene.victim)
    assert row.stop_due is not None
    (live,) = gate.store.cycle().snapshot.live
    assert live.stopping is None
    assert scene.turn().preempted == (scene.victim,)
    gate.is_placed(gate.attempt(scene.mid))
    assert scene.heard()


@pytest.mark.parametrize("cause", [StopCause.STALL, StopCause.REQUEUE, StopCause.CANCEL])
def test_another_stop_that_comes_first_stays_and_is_not_taken_back(gate: Gate, cause: StopCause) -> None:
    scene = Scene(gate)
    gate.store.ask_stop(scene.victim, cause, 20)
    gate.is_placed(scene.waiter)
    view = scene.view(scene.victim)
    assert view.stop_cause == cause
    gate.wish(wishes.cancel, scene.mid)
    assert scene.view(scene.victim).stop_cause == cause


def test_a_resize_would_keep_the_room_so_the_preemption_outweighs_it(gate: Gate) -> None:
    scene = Scene(gate)
    write(
        gate.engine,
        "UPDATE attempts SET stop_cause = 'resize', stop_grace_s = 20, stop_asked_at = now() WHERE id = :id",
        id=scene.victim,
    )
    gate.is_placed(scene.waiter)
    assert scene.view(scene.victim).stop_cause == "preempt"


def test_a_p0_takes_a_victim_that_was_not_told_yet_from_a_p1(gate: Gate) -> None:
    scene = Scene(gate)
    urgent = gate.submit("org/high", priority="P0", **WHOLE)
    report = scene.turn()
    assert (report.admitted, set(report.preempted)) == ((urgent,), {scene.victim, scene.waiter})
    gate.is_placed(scene.waiter)
    assert not scene.heard()  # its own waiter is displaced, the new one is not placed yet
    gate.is_placed(gate.attempt(urgent))
    view = scene.view(scene.victim)
    assert (view.stop_cause, view.stop_grace_s) == ("preempt", 0)
    gate.ends(scene.waiter, Reason.PREEMPTED, None)
    gate.ends(scene.victim, Reason.PREEMPTED, 137)
    assert scene.view(gate.attempt(urgent)).lease_state == "held"
    (credit,) = rows(gate.engine, "SELECT victim_attempt, preemption FROM credits")
    assert (credit.victim_attempt, credit.preemption) == (scene.victim, gate.attempt(urgent))
    assert check(gate.engine) == []


def test_a_gang_over_two_backends_is_placed_when_both_have_it(gate: Gate) -> None:
    scene = Scene(gate)
    write(gate.engine, "INSERT INTO backends (name, kind, config) VALUES ('c', 'local', '{}')")
    write(
        gate.engine,
        "INSERT INTO pools (name, backend, flavor, config) VALUES ('other', 'c', :flavor, '{}')",
        flavor=FLAVOR,
    )
    placed = """UPDATE attempts SET placed = placed || jsonb_build_array(placed->0 || '{"pool": "other"}'::jsonb)
        WHERE id = :id"""
    write(gate.engine, placed, id=scene.waiter)
    gate.is_placed(scene.waiter, "b")
    assert not scene.heard()
    gate.is_placed(scene.waiter, "c")
    assert scene.heard()
