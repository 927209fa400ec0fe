"""What a running attempt says of its steps, and what follows from it."""

import pytest

from gateway.ledger import progress
from gateway.ledger.engine import in_transaction
from policies.vocabulary import StopCause
from tests.unit.store.world import Gate, live, write


def test_progress_gives_a_restart_time_and_a_deadline_for_the_next_step(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme", stall={"timeout": "10m", "factor": 10}, checkpoint={"url": "file:///c"})
    gate.store.take_epoch("me")
    attempt = gate.admit(job)
    gate.runs(attempt)
    view = gate.store.load_attempt(attempt)
    assert view is not None
    assert view.stall_after_ms is None  # nothing is stalled before its first report
    write(gate.engine, "UPDATE attempts SET started_at = now() - interval '40 seconds'")
    for step in (1, 2):
        in_transaction(gate.engine, lambda session, n=step: progress.report(session, attempt, step=n, samples=n))  # type: ignore[misc]
        write(
            gate.engine,
            "UPDATE attempts SET progress ="
            " progress || jsonb_build_object('at_ms', (progress->>'at_ms')::bigint - 120000)",
        )
    view = gate.store.load_attempt(attempt)
    assert view is not None
    assert view.stall_after_ms is not None
    # Steps of two minutes: ten of them are more than the ten minutes of the spec.
    assert 1_075_000 < view.stall_after_ms - view.now_ms <= 1_085_000
    assert 40_000 <= live(gate.store.cycle(), attempt).restart_ms < 60_000


@pytest.mark.parametrize(
    ("cause", "kind"), [(StopCause.PREEMPT, "preempt"), (StopCause.DRAIN, "revoke"), (StopCause.BUDGET, "stop")]
)
def test_an_attempt_is_told_why_and_until_when(gate: Gate, cause: StopCause, kind: str) -> None:
    gate.tenant("acme")
    job = gate.submit("acme")
    gate.store.take_epoch("me")
    attempt = gate.admit(job)
    gate.runs(attempt)
    gate.store.ask_stop(attempt, cause, 300)
    told = in_transaction(gate.engine, lambda session: progress.told(session, attempt))
    assert told.kind == kind
    assert told.deadline is not None
    gate.ends(attempt)
    with pytest.raises(progress.FencedAttemptError):
        in_transaction(gate.engine, lambda session: progress.told(session, attempt))
