"""What backends say they saw, kept: newer only, never back to life, and no word of theirs hides an end."""

from datetime import UTC, datetime, timedelta

from backends.types import End, Handle, Observation, Phase
from gateway.ledger.check import check
from policies.vocabulary import AttemptState, Reason
from tests.unit.store.world import Gate, scalar
from workflows.messages import EndRequest


def test_observations_are_monotone_and_nudge_only_what_changed(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme")
    gate.store.take_epoch("me")
    attempt = gate.admit(job)
    gate.runs(attempt)
    start = datetime.now(UTC)

    def see(phase: Phase, sequence: int, restarts: int = 0, after_s: int = 0, end: End | None = None) -> int:
        at = start + timedelta(seconds=after_s)
        one = Observation(Handle("b", attempt), phase, at, restarts, sequence, started_at=start, end=end)
        return gate.store.observe("b", [one])

    def phase() -> str:
        view = gate.store.load_attempt(attempt)
        assert view is not None
        return view.seen[0].phase

    assert see(Phase.PENDING, 1) == 1
    assert see(Phase.RUNNING, 3, after_s=1) == 1
    assert see(Phase.RUNNING, 4, after_s=2) == 0
    assert see(Phase.PENDING, 2, after_s=3) == 0
    assert phase() == "Running"
    assert see(Phase.ENDED, 5, after_s=4, end=End(Reason.NON_ZERO_EXIT, 3)) == 1
    assert see(Phase.RUNNING, 6, after_s=5) == 0
    assert see(Phase.ABSENT, 0, after_s=6) == 0
    assert phase() == "Ended"
    assert see(Phase.PENDING, 0, restarts=1, after_s=7) == 1
    assert phase() == "Pending"
    assert see(Phase.ABSENT, 0, after_s=1) == 0
    assert see(Phase.ABSENT, 0, after_s=9) == 1
    assert phase() == "Absent"
    assert scalar(gate.engine, "SELECT count(*) FROM observations") == 5
    gate.ends(attempt)
    assert see(Phase.RUNNING, 9, restarts=2, after_s=20) == 0


def test_a_backends_strange_words_do_not_hide_an_end(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme")
    gate.store.take_epoch("me")
    attempt = gate.admit(job)
    gate.runs(attempt)
    now = datetime.now(UTC)
    end = End(Reason.NON_ZERO_EXIT, 9, detail="a\0b\ud800c", bad_nodes=("n\0",))
    assert gate.store.observe("b", [Observation(Handle("b", attempt), Phase.ENDED, now, waiting="\0", end=end)]) == 1
    request = EndRequest(attempt, Reason.NON_ZERO_EXIT.value, exit_code=9, message="x\0\udfff")
    assert gate.store.settle(request).job_state == "FAILED"
    assert gate.job(job).message == "x??"
    gate.store.dark("b", "\0")
    gate.store.rest_pool("pool", 1, "\0")


def test_ql_02_what_a_backend_replays_after_a_restart_brings_nothing_back_to_life(gate: Gate) -> None:
    gate.tenant("acme", max_gpus=16)
    good, bad, running = (gate.submit("acme") for _ in range(3))
    gate.store.take_epoch("first")
    attempts = [gate.admit(job) for job in (good, bad, running)]
    for attempt in attempts:
        gate.runs(attempt)
    gate.ends(attempts[0])
    gate.ends(attempts[1], Reason.NON_ZERO_EXIT, 1)
    now = datetime.now(UTC)
    gate.store.observe("b", [Observation(Handle("b", attempt), Phase.PENDING, now, sequence=1) for attempt in attempts])
    assert gate.world.held(gate.tenants["acme"]) == 4
    assert gate.store.cycle().snapshot.queued == ()
    assert [gate.store.adopt(attempt, "b", f"native/{attempt}") for attempt in attempts] == [False, False, True]
    gate.store.take_epoch("standby")
    assert gate.ends(attempts[2]).first
    assert not gate.ends(attempts[2]).first  # the old owner wakes: its release is a no-op
    assert gate.world.held(gate.tenants["acme"]) == 0
    assert check(gate.engine) == []


def test_a_job_says_what_the_backend_lets_it_wait_for_until_it_runs(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme")
    gate.store.take_epoch("me")
    attempt = gate.admit(job)
    gate.store.mark(attempt, AttemptState.PENDING)
    gate.store.observe("b", [Observation(Handle("b", attempt), Phase.PENDING, datetime.now(UTC), waiting="Priority")])
    pending = gate.job(job).pending
    assert (pending["token"], pending["numbers"]) == ("WaitingInBackend", {"backend": "b", "reason": "Priority"})
    gate.store.mark(attempt, AttemptState.RUNNING)
    assert gate.job(job).pending is None
