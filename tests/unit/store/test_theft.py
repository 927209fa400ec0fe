"""Foreign load takes the room that victims have left: counted, and those who gave way for nothing come first."""

from datetime import UTC, datetime

import pytest

from backends.types import PoolCapacity
from gateway.ledger.check import check
from policies.settings import MINUTE_MS
from policies.snapshot import Node, Resources
from policies.vocabulary import Reason
from tests.builders.ledger import GPU, POOL
from tests.unit.store.test_place_first import WHOLE, Scene
from tests.unit.store.world import Gate, rows, scalar, write
from workflows.messages import EndRequest

_NODE = Resources(8 * GPU, 64_000, 512 << 30, 1 << 40)


def somebody_else_takes(gate: Gate, gpus: int) -> None:
    foreign = Resources(accelerators=gpus * GPU)
    nodes = (Node("n1", _NODE, foreign=foreign), Node("n2", _NODE, schedulable=False))
    gate.store.capacity("b", [PoolCapacity(POOL, nodes, datetime.now(UTC))])


def robbed(gate: Gate, *, foreign: int = 8, reason: Reason = Reason.BACKEND_REFUSED, no_room: bool = True) -> Scene:
    scene = Scene(gate)
    gate.is_placed(scene.waiter)
    gate.store.stop_sent(scene.victim, 300)
    gate.ends(scene.victim, Reason.PREEMPTED, 75)
    assert scene.view(scene.waiter).lease_state == "held"
    assert scene.view(scene.waiter).preemptor
    somebody_else_takes(gate, foreign)
    settled = gate.store.settle(EndRequest(scene.waiter, reason.value, no_room=no_room))
    assert settled.job_state == "QUEUED"
    return scene


def pause_s(gate: Gate) -> float | None:
    found = scalar(gate.engine, "SELECT extract(epoch FROM no_preemption_until - now())::float FROM pools")
    return None if found is None else float(found)


def losses(gate: Gate) -> int:
    return int(scalar(gate.engine, "SELECT count(*) FROM attempts WHERE preemption_lost"))


@pytest.mark.parametrize("reason", [Reason.BACKEND_REFUSED, Reason.BACKEND_WAIT_TIMEOUT])
def test_a_theft_is_counted_and_its_victim_comes_before_the_waiter(gate: Gate, reason: Reason) -> None:
    scene = robbed(gate, reason=reason)
    (event,) = rows(gate.engine, "SELECT data FROM events WHERE kind = 'PreemptionLost'")
    assert event.data == {"pools": [POOL], "victims": 1, "no_preemption_ms": 30 * MINUTE_MS}
    assert losses(gate) == 1
    pause = pause_s(gate)
    assert pause is not None
    assert 29 * 60 < pause <= 30 * 60
    write(gate.engine, "UPDATE jobs SET not_before = NULL")
    assert {one.id: one.first_in_line for one in gate.store.cycle().snapshot.queued} == {
        scene.low: True,
        scene.mid: False,
    }
    somebody_else_takes(gate, 0)
    assert scene.turn().admitted == (scene.low,)  # though the waiter is of a higher class
    again = gate.attempt(scene.low)
    gate.runs(again)
    assert scene.turn().preempted == ()
    gate.ends(again, Reason.NODE_LOST, None)
    write(gate.engine, "UPDATE jobs SET not_before = NULL")
    assert not any(one.first_in_line for one in gate.store.cycle().snapshot.queued)  # it was served
    assert check(gate.engine) == []


@pytest.mark.parametrize("more", [{"foreign": 0}, {"no_room": False}])
def test_without_foreign_load_or_for_another_reason_nothing_was_stolen(gate: Gate, more: dict[str, int]) -> None:
    robbed(gate, **more)  # type: ignore[arg-type]
    assert losses(gate) == 0
    assert pause_s(gate) is None


def test_a_job_that_took_nobodys_room_was_robbed_of_nothing(gate: Gate) -> None:
    gate.tenant("acme")
    gate.store.take_epoch("me")
    job = gate.submit("acme", **WHOLE)
    attempt = gate.admit(job, gpus=8)
    somebody_else_takes(gate, 8)
    gate.store.settle(EndRequest(attempt, Reason.BACKEND_REFUSED.value, no_room=True))
    assert losses(gate) == 0
