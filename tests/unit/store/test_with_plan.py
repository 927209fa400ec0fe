"""The live `plan()` over the real ledger: what it decides can be committed, and settles to nothing left over."""

from gateway.ledger.check import check
from policies.plan import plan
from policies.settings import PolicySettings
from policies.vocabulary import Reason
from tests.unit.store.world import Gate, write
from workflows.store import CommitReport

SETTINGS = PolicySettings()


def turn(gate: Gate, epoch: int) -> CommitReport:
    cycle = gate.store.cycle()
    return gate.store.commit(epoch, cycle, plan(cycle.snapshot, SETTINGS, cycle.now_ms))


def whole(gate: Gate) -> None:
    assert check(gate.engine) == []


def test_a_queue_drains_in_turns_and_nothing_is_left_over(gate: Gate) -> None:
    gate.tenant("acme", max_gpus=16)
    jobs = [gate.submit("acme", resources={"accelerators": "H100:8"}, max_duration="1h") for _ in range(5)]
    epoch = gate.store.take_epoch("me")
    first = turn(gate, epoch)
    assert first.admitted == tuple(jobs[:2])
    assert first.waits_written == 3
    assert {gate.job(job).pending["token"] for job in jobs[2:]} <= {
        "WaitingForCapacity",
        "TenantLimit",
        "BehindReservation",
    }
    assert turn(gate, epoch).admitted == ()
    for expected in (jobs[2:4], jobs[4:], []):
        for row in gate.store.live_attempts(""):
            gate.runs(row.attempt_id)
            gate.ends(row.attempt_id)
        assert turn(gate, epoch).admitted == tuple(expected)
    assert {gate.job(job).state for job in jobs} == {"SUCCEEDED"}
    assert gate.world.held(gate.tenants["acme"]) == 0
    whole(gate)


def test_a_p0_takes_the_place_of_a_p2_which_returns_with_credit(gate: Gate) -> None:
    write(gate.engine, "UPDATE pools SET place_first = true, places_nodes = true")
    gate.tenant("org")
    gate.tenant("org/low")
    high = gate.tenant("org/high")
    gate.world.allowance(high, "P0", 1000)
    epoch = gate.store.take_epoch("me")
    low = [
        gate.submit("org/low", resources={"accelerators": "H100:8"}, checkpoint={"url": f"file:///c/{n}"})
        for n in (1, 2)
    ]
    assert set(turn(gate, epoch).admitted) == set(low)
    for row in gate.store.live_attempts(""):
        gate.runs(row.attempt_id)
    urgent = gate.submit("org/high", priority="P0", resources={"accelerators": "H100:8"})
    report = turn(gate, epoch)
    assert report.admitted == (urgent,), report
    (victim,) = report.preempted
    gate.is_placed(gate.attempt(urgent))
    view = gate.store.load_attempt(victim)
    assert view is not None
    assert (view.stop_cause, view.stop_grace_s) == ("preempt", 0)
    assert turn(gate, epoch).preempted == ()
    gate.store.stop_sent(victim)
    settled = gate.ends(victim, Reason.PREEMPTED, 137)
    assert (settled.attempt_state, settled.job_state) == ("PREEMPTED", "QUEUED")
    view = gate.store.load_attempt(gate.attempt(urgent))
    assert view is not None
    assert view.lease_state == "held"
    assert gate.world.scalar("SELECT count(*) FROM credits") == 1
    assert turn(gate, epoch).admitted == ()
    gate.runs(gate.attempt(urgent))
    gate.ends(gate.attempt(urgent))
    loser = next(job for job in low if gate.job(job).state == "QUEUED")
    again = turn(gate, epoch)
    assert again.admitted == (loser,) or gate.job(loser).pending["token"] == "CoolingDown"
    whole(gate)
