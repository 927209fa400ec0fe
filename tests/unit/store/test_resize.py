"""Resizes over the real ledger, decided by the live plan: the lease passes on whole, and nothing is ever seen free."""

from uuid import UUID

import pytest

from gateway.ledger import archive, wishes
from gateway.ledger.check import check
from policies.plan import plan
from policies.settings import PolicySettings
from policies.snapshot import Placed
from policies.vocabulary import AttemptState, Reason
from tests.unit.store.elastic import AT_ONCE, Scene, nodes_of
from tests.unit.store.world import Gate, live, queued, rows, write
from workflows.decide import next_step
from workflows.steps import SendStop


def test_a_running_job_shrinks_by_a_relaunch_on_the_same_lease_and_no_retry_is_counted(gate: Gate) -> None:
    scene = Scene(gate)
    scene.saves(1)
    scene.asks(2)
    assert scene.view().stop_cause == "", "the arbiter decides when"
    scene.turn()
    step = next_step(scene.view())
    assert isinstance(step, SendStop)
    assert step.kind == "resize"
    assert scene.held() == 4, "what is given up is still held while it saves"
    scene.saves(2)
    scene.leaves()
    assert scene.states() == ["RESIZED", "RESERVED"]
    assert (scene.size(), scene.held()) == (2, 2)
    row = gate.job(scene.job)
    assert (row.state, row.attempts, row.failures, row.preemptions, row.revocations) == ("ADMITTED", 2, 0, 0, 0)
    assert gate.outbox("start")[-1] == gate.attempt(scene.job)
    request = gate.store.launch_request(gate.attempt(scene.job), "b")
    assert request.resume_from.endswith("/attempt-1/step-2")
    assert (request.target_replicas, request.grad_accum, request.lr_scale) == (2, 2, "1")
    gate.runs(gate.attempt(scene.job))
    assert scene.turn().admitted == ()
    gate.ends(gate.attempt(scene.job))
    assert (gate.job(scene.job).state, scene.held()) == ("SUCCEEDED", 0)
    assert check(gate.engine) == []


def test_a_growth_is_leased_before_anything_is_told_and_nobody_else_gets_it(gate: Gate) -> None:
    scene = Scene(gate)
    scene.saves(1)
    scene.asks(12)
    scene.turn()
    assert scene.held() == 12
    rival = gate.submit("org/low", resources={"accelerators": "H100:8"})
    assert scene.turn().admitted == ()
    assert gate.job(rival).pending["token"] == "TenantLimit"
    scene.leaves()
    assert (scene.size(), scene.held()) == (12, 12)
    assert nodes_of(gate, gate.attempt(scene.job)) == [["n1", 4], ["n2", 8]]


def test_a_growth_without_room_waits_and_says_for_what_until_there_is_room(gate: Gate) -> None:
    scene = Scene(gate)
    other = gate.submit("org/low", num_nodes=12, resources={"accelerators": "H100:1"})
    assert scene.turn().admitted == (other,)
    gate.runs(gate.attempt(other))
    scene.saves(1)
    scene.asks(8)
    scene.turn()
    row = gate.job(scene.job)
    assert (row.state, row.want_size, row.pending["token"]) == ("RUNNING", {"main": 8}, "WaitingForCapacity")
    assert scene.turn().waits_written == 0, "the same wait is written once"
    assert scene.view().stop_cause == ""
    gate.ends(gate.attempt(other))
    scene.turn()
    scene.leaves()
    assert (scene.size(), gate.job(scene.job).pending) == (8, None)


def test_a_growth_that_the_budget_forbids_does_not_happen_and_is_said_once(gate: Gate) -> None:
    scene = Scene(gate, max_duration="1h")
    scene.saves(1)
    gate.world.budget(gate.tenants["org/low"], "gpu_ms", 5 * 3_600_000)
    scene.asks(8)
    scene.turn(PolicySettings())
    scene.turn(PolicySettings())
    assert (scene.view().stop_cause, scene.held()) == ("", 4)
    told = rows(gate.engine, "SELECT reason FROM events WHERE kind = 'ResizeRefused'")
    assert len(told) == 1
    assert "budget of org/low" in told[0].reason


def test_a_save_that_cannot_be_resharded_after_all_ends_at_the_old_size(gate: Gate) -> None:
    scene = Scene(gate)
    scene.saves(1)
    scene.asks(2)
    scene.turn()
    scene.saves(2, reshardable=False)
    scene.leaves()
    assert (scene.states(), scene.size(), scene.held()) == (["RESIZED", "RESERVED"], 4, 4)


def test_a_job_that_waits_with_such_a_save_starts_at_the_size_of_that_save_alone(gate: Gate) -> None:
    scene = Scene(gate)
    scene.saves(1, reshardable=False)
    gate.ends(scene.first, Reason.SPOT_REVOKED, None)
    other = gate.submit("org/low", num_nodes=14, resources={"accelerators": "H100:1"}, priority="P2")
    write(gate.engine, "UPDATE jobs SET submitted_at = submitted_at - interval '1 day' WHERE id = :id", id=UUID(other))
    assert scene.turn().admitted == (other,)
    assert gate.job(scene.job).pending["token"] == "TenantLimit"
    (group,) = queued(gate.store.cycle(), scene.job).groups
    assert (group.replicas, group.min_replicas) == (4, 4)
    with pytest.raises(wishes.WishRefusedError, match="not reshardable"):
        gate.wish(wishes.resize, scene.job, "main", 2)


def test_what_cannot_be_resized_is_refused_with_the_field_and_the_remedy(gate: Gate) -> None:
    scene = Scene(gate, elastic={"multiple_of": 2})
    with pytest.raises(wishes.WishRefusedError, match="not reshardable"):
        gate.wish(wishes.resize, scene.job, "main", 2)
    with pytest.raises(wishes.WishRefusedError, match=r"elastic\.min 2 and elastic\.max 12"):
        gate.wish(wishes.resize, scene.job, "main", 14)
    with pytest.raises(wishes.WishRefusedError, match="multiple of 2"):
        gate.wish(wishes.resize, scene.job, "main", 3)
    assert gate.job(scene.job).want_size is None


@pytest.mark.parametrize(
    ("reason", "code", "after"), [(Reason.USER_CANCELLED, 75, "CANCELLED"), (Reason.COMPLETED, 0, "SUCCEEDED")]
)
def test_what_ends_meanwhile_gives_all_of_it_back(gate: Gate, reason: Reason, code: int, after: str) -> None:
    scene = Scene(gate)
    scene.saves(1)
    scene.asks(8)
    scene.turn()
    if after == "CANCELLED":
        gate.wish(wishes.cancel, scene.job)
    gate.ends(scene.first, Reason.RESIZED if after == "CANCELLED" else reason, code)
    assert (gate.job(scene.job).state, scene.held()) == (after, 0)
    assert check(gate.engine) == []


def test_an_elastic_job_shrinks_for_a_waiter_whose_lease_counts_on_what_it_gives_up(gate: Gate) -> None:
    scene = Scene(gate, elastic={"min": 4, "target": 12})
    scene.saves(1)
    urgent = gate.submit("org/high", priority="P1", num_nodes=8, resources={"accelerators": "H100:1"})
    report = scene.turn()
    assert (report.admitted, report.preempted) == ((urgent,), ())
    waiter = gate.attempt(urgent)
    assert scene.view(waiter).lease_state == "contingent"
    assert scene.view().stop_cause == "", "it is told when its waiter is placed"
    gate.store.mark(waiter, AttemptState.PENDING)
    gate.store.prepared(waiter, "b", "native/w")
    assert (scene.view().stop_cause, scene.view().stop_grace_s) == ("resize", 300)
    assert scene.turn().admitted == ()
    scene.leaves()
    assert scene.view(waiter).lease_state == "held"
    assert (scene.size(), scene.held()) == (8, 8)
    assert waiter in gate.outbox("nudge")
    gate.ends(gate.attempt(scene.job))
    gate.ends(waiter)
    assert (scene.held(), gate.world.held(gate.tenants["org"])) == (0, 0)
    assert check(gate.engine) == []


def test_where_the_waiter_goes_away_nobody_who_was_not_told_shrinks(gate: Gate) -> None:
    scene = Scene(gate, elastic={"min": 4, "target": 12})
    scene.saves(1)
    urgent = gate.submit("org/high", priority="P1", num_nodes=8, resources={"accelerators": "H100:1"})
    assert scene.turn().admitted == (urgent,)
    gate.wish(wishes.cancel, urgent)
    gate.ends(gate.attempt(urgent), Reason.USER_CANCELLED, None)
    assert (scene.view().stop_cause, scene.held()) == ("", 12)
    scene.turn()
    assert live(gate.store.cycle(), scene.first).elastic.under_way is False  # type: ignore[union-attr]


def test_a_growth_is_judged_by_what_it_brought(gate: Gate) -> None:
    scene = Scene(gate, elastic={"target": 4, "max": 8})
    scene.saves(1)
    write(gate.engine, "UPDATE attempts SET progress = CAST(:p AS jsonb)", p='{"rate": 1000}')
    write(gate.engine, "UPDATE jobs SET want_size = '{\"main\": 8}'")
    scene.turn()
    scene.leaves()
    second = gate.attempt(scene.job)
    gate.runs(second)
    write(gate.engine, "UPDATE attempts SET progress = '{\"rate\": 1300}' WHERE id = :id", id=second)
    scene.saves(2)
    scene.turn()
    assert scene.view().stop_cause == "resize"
    scene.leaves()
    assert scene.size() == 4
    gate.runs(gate.attempt(scene.job))
    scene.saves(3)
    scene.turn()
    assert scene.view().stop_cause == "", "it is not tried again for the cool-down"


def test_a_decision_to_resize_is_made_again_from_what_was_kept_of_its_cycle(gate: Gate) -> None:
    scene = Scene(gate)
    scene.saves(1)
    scene.asks(8)
    cycle = gate.store.cycle()
    decided = plan(cycle.snapshot, AT_ONCE, cycle.now_ms)
    gate.store.commit(scene.epoch, cycle, decided)
    (row,) = rows(gate.engine, "SELECT snapshot FROM decisions WHERE kind = 'Resize'")
    with gate.world.session() as session:
        kept = archive.load(session, row.snapshot)
    assert plan(kept, AT_ONCE, cycle.now_ms) == decided


def test_a_size_that_is_asked_for_while_a_resize_is_on_its_way_comes_after_it(gate: Gate) -> None:
    scene = Scene(gate)
    scene.saves(1)
    scene.asks(3)
    seen = gate.store.cycle()
    scene.asks(8)
    report = gate.store.commit(scene.epoch, seen, plan(seen.snapshot, AT_ONCE, seen.now_ms))
    assert report.dropped == {scene.first: "Stale"}, "what was decided about the earlier wish does not hold any more"
    scene.turn()
    scene.asks(2)
    scene.leaves()
    assert scene.size() == 8
    second = gate.attempt(scene.job)
    gate.runs(second)
    scene.saves(2)
    scene.turn(PolicySettings())
    scene.leaves()
    assert scene.size() == 2


def test_placed_of_another_size_is_what_the_snapshot_shows_while_it_is_on_its_way(gate: Gate) -> None:
    scene = Scene(gate)
    scene.saves(1)
    scene.asks(2)
    scene.turn()
    attempt = live(gate.store.cycle(), scene.first)
    assert [part.replicas for part in attempt.placed] == [4]
    assert [part.replicas for part in attempt.keeps] == [2]
    assert isinstance(attempt.leaves[0], Placed)
    assert attempt.leaves[0].replicas == 2
