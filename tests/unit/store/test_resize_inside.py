"""Resizes inside the launch, and what is left of a gang after a notice, over the real ledger."""

from collections.abc import Sequence
from datetime import UTC, datetime

from backends.types import Handle, Notice, NoticeKind, Observation, Phase
from gateway.ledger.check import check
from policies.settings import PolicySettings
from policies.vocabulary import Reason, StopCause
from tests.unit.store.elastic import Scene, nodes_of
from tests.unit.store.world import Gate, rows, scalar, write
from workflows.decide import next_step
from workflows.steps import FinishResize, SendResize, SendStop


class Service(Scene):
    """A service of four, whose backend changes the number of members inside the launch."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(gate, kind="inference", checkpoint=None, elastic={"reshard": False})
        write(gate.engine, "UPDATE pools SET resizes = true")

    def sees(self, ready: int) -> None:
        at = datetime.now(UTC)
        sequence = int(at.timestamp() * 1_000_000)
        seen = Observation(Handle("b", self.first), Phase.RUNNING, at, sequence=sequence, started_at=at, ready=ready)
        self.gate.store.observe("b", [seen])


def test_a_service_grows_and_shrinks_under_its_launch(gate: Gate) -> None:
    scene = Service(gate)
    for asked, before, leased in ((6, 4, 6), (2, 6, 6)):
        scene.asks(asked)
        scene.turn()
        assert scene.held() == leased
        view = scene.view()
        assert view.stop_cause == ""
        assert next_step(view) == SendResize(scene.first, "b", "main", asked, ["n1"] * asked)
        gate.store.resize_sent(scene.first)
        scene.sees(before)
        assert not isinstance(next_step(scene.view()), SendResize | FinishResize)
        scene.sees(asked)
        assert next_step(scene.view()) == FinishResize(scene.first, "b", "main", before, reached=True)
        assert gate.store.resized(scene.first, reached=True)
        assert not gate.store.resized(scene.first, reached=True), "a second answer changes nothing"
        assert (scene.size(), scene.held(), scene.states()) == (asked, asked, ["RUNNING"])
        assert check(gate.engine) == []
    assert [row.kind for row in rows(gate.engine, "SELECT kind FROM events WHERE kind = 'Resized'")] == ["Resized"] * 2
    assert scalar(gate.engine, "SELECT count(*) FROM leases WHERE attempt_id = :id", id=scene.first) == 3
    gate.ends(scene.first, Reason.USER_CANCELLED, None)
    assert scene.held() == 0
    assert check(gate.engine) == []


def test_members_that_do_not_come_in_time_leave_the_service_at_its_old_size(gate: Gate) -> None:
    scene = Service(gate)
    scene.asks(6)
    scene.turn()
    gate.store.resize_sent(scene.first)
    write(gate.engine, "UPDATE attempts SET stop_asked_at = now() - interval '1 day'")
    scene.sees(4)
    assert next_step(scene.view()) == FinishResize(scene.first, "b", "main", 4, reached=False)
    assert gate.store.resized(scene.first, reached=False)
    assert (scene.size(), scene.held(), scene.view().resize) == (4, 4, None)
    assert check(gate.engine) == []


def test_a_cancel_comes_before_a_resize_inside_the_launch(gate: Gate) -> None:
    scene = Service(gate)
    scene.asks(6)
    scene.turn()
    assert gate.store.ask_stop(scene.first, StopCause.CANCEL, 5)
    assert (scene.view().stop_cause, scene.view().resize) == ("cancel", None)
    gate.ends(scene.first, Reason.USER_CANCELLED, None)
    assert (scene.held(), check(gate.engine)) == (0, [])


def notice(scene: Scene, ranks: Sequence[int], nodes: dict[int, str]) -> None:
    at = datetime.now(UTC)
    told = Notice(NoticeKind.REVOKE, at, tuple(ranks))
    seen = Observation(
        Handle("b", scene.first), Phase.RUNNING, at, sequence=1, started_at=at, notice=told, nodes=nodes, ready=12
    )
    scene.gate.store.observe("b", [seen])


def test_a_notice_that_leaves_survivors_costs_no_requeue_and_it_may_grow_again_later(gate: Gate) -> None:
    scene = Scene(gate, elastic={"min": 4, "target": 12, "multiple_of": 2})
    scene.saves(1)
    assert nodes_of(gate, scene.first) == [["n1", 8], ["n2", 4]]
    nodes = {rank: "n1" if rank < 8 else "n2" for rank in range(12)}
    notice(scene, range(8, 12), nodes)
    step = next_step(scene.view())
    assert isinstance(step, SendStop)
    assert (step.cause, step.kind) == ("resize", "resize")
    assert gate.store.ask_stop(scene.first, StopCause.RESIZE, 0)
    scene.leaves()
    second = gate.attempt(scene.job)
    assert (scene.states(), scene.size(), nodes_of(gate, second)) == (["RESIZED", "RESERVED"], 8, [["n1", 8]])
    assert gate.job(scene.job).state == "ADMITTED"
    gate.runs(second)
    scene.saves(2)
    scene.turn()
    scene.leaves()
    assert scene.size() == 12


def test_too_few_survivors_are_a_revocation(gate: Gate) -> None:
    scene = Scene(gate, elastic={"min": 6, "target": 12})
    scene.saves(1)
    notice(scene, range(8), {rank: "n1" if rank < 8 else "n2" for rank in range(12)})
    step = next_step(scene.view())
    assert isinstance(step, SendStop)
    assert step.cause == "revocation"
    assert gate.store.ask_stop(scene.first, StopCause.RESIZE, 0)
    assert scene.view().stop_cause == "revocation", "whoever decided on an older look is corrected by the row"


def test_who_is_due_for_a_waiter_goes_whole_whatever_is_left_of_it(gate: Gate) -> None:
    scene = Scene(gate, elastic={"min": 4, "target": 12, "multiple_of": 2})
    scene.saves(1)
    victim = scene.first
    write(gate.engine, "UPDATE attempts SET resized_at = now()")  # too soon to be made smaller: it is to be stopped
    urgent = gate.submit("org/high", priority="P1", num_nodes=8, resources={"accelerators": "H100:1"})
    report = scene.turn(PolicySettings())
    assert (report.admitted, report.preempted) == ((urgent,), (victim,))
    notice(scene, range(8, 12), {rank: "n1" if rank < 8 else "n2" for rank in range(12)})
    step = next_step(scene.view(victim))
    assert isinstance(step, SendStop)
    assert step.cause == "revocation"
    assert gate.store.ask_stop(victim, StopCause.RESIZE, 0), "decided on a look from before it was due"
    gate.ends(victim, Reason.RESIZED, 75)
    assert scene.states() == ["RESIZED"]
    assert gate.job(scene.job).state == "QUEUED"
    waiter = gate.attempt(urgent)
    assert (scene.view(waiter).lease_state, scene.held()) == ("held", 0)
    assert check(gate.engine) == []
