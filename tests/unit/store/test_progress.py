"""What a running attempt says of its steps, and what follows from it."""

import pytest

from gateway.ledger import progress
from gateway.ledger.engine import in_transaction
from policies.vocabulary import StopCause
from tests.unit.store.world import Gate, live, scalar, write


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


def test_a_rate_is_known_after_a_warm_up_and_as_many_reports_again(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme")
    gate.store.take_epoch("me")
    attempt = gate.admit(job)
    gate.runs(attempt)
    query = "SELECT progress->>'rate' FROM attempts WHERE id = :id"
    for step in range(1, 2 * progress.WARM_UP + 1):
        assert scalar(gate.engine, query, id=attempt) is None, f"known after {step - 1} reports"
        in_transaction(
            gate.engine,
            lambda session, n=step: progress.report(session, attempt, step=n, samples=64 * n),  # type: ignore[misc]
        )
        if step == progress.WARM_UP:
            write(
                gate.engine,
                "UPDATE attempts SET progress = jsonb_set(progress, '{warm,at_ms}',"
                " to_jsonb((progress->'warm'->>'at_ms')::bigint - 10000))",
            )
    # 640 samples in ten seconds and what the reports took.
    assert 0 < int(scalar(gate.engine, query, id=attempt)) <= 64_000


@pytest.mark.parametrize(
    ("saved", "claims", "may"),
    [
        ({}, True, True),
        ({"tp": 2, "pp": 1, "dp": 4}, True, True),
        ({"tp": 1, "dp": 8}, True, False),
        ({"tp": 2, "pp": 2}, True, False),
        ({"tp": 2}, False, False),
    ],
)
def test_a_checkpoint_of_another_layout_may_not_be_resumed_at_another_size(
    gate: Gate, saved: dict[str, int], *, claims: bool, may: bool
) -> None:
    gate.tenant("acme")
    job = gate.submit(
        "acme", resources={"accelerators": "H100:4"}, parallelism={"tp": 2}, checkpoint={"url": "file:///c"}
    )
    gate.store.take_epoch("me")
    attempt = gate.admit(job)
    gate.runs(attempt)
    in_transaction(
        gate.engine,
        lambda session: progress.checkpoint(
            session, attempt, step=1, url="file:///c/attempt-1/step-1", reshardable=claims, parallelism=saved
        ),
    )
    assert scalar(gate.engine, "SELECT reshardable FROM checkpoints") is may
