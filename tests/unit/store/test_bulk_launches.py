"""Launches of attempts that are due together: what is offered, what is recorded, and what the relay leaves alone."""

import pytest

from gateway.ledger import outbox, wishes
from gateway.ledger.engine import in_transaction
from policies.vocabulary import AttemptState
from tests.unit.store.world import Gate, scalar, write
from workflows.store import Launched


def due(gate: Gate, count: int) -> list[str]:
    gate.tenant("acme")
    return [gate.admit(gate.submit("acme"), 1) for _ in range(count)]


def test_what_is_offered_is_pending_and_is_offered_once(gate: Gate) -> None:
    attempts = due(gate, 3)
    offered = gate.store.begin_launches([*attempts, "nobody"])
    assert sorted(one.attempt_id for one in offered) == sorted(attempts)
    assert {one.backend for one in offered} == {"b"}
    assert all(one.request.key == one.attempt_id and one.request.token is not None for one in offered)
    assert scalar(gate.engine, "SELECT count(*) FROM attempts WHERE state = 'PENDING'") == 3
    assert gate.store.begin_launches(attempts) == ()


@pytest.mark.parametrize(
    "changed",
    [
        "UPDATE jobs SET want_cancel = true",
        "UPDATE attempts SET stop_cause = 'preempt'",
        "UPDATE leases SET state = 'contingent'",
        'UPDATE attempts SET handles = \'{"b": "native"}\'',
        "UPDATE attempts SET state = 'PENDING'",
    ],
)
def test_what_is_not_plainly_a_first_launch_is_left_to_its_workflow(gate: Gate, changed: str) -> None:
    attempts = due(gate, 1)
    write(gate.engine, changed)
    assert gate.store.begin_launches(attempts) == ()


def test_a_cancel_between_prepare_and_start_is_seen(gate: Gate) -> None:
    gate.tenant("acme")
    jobs = [gate.submit("acme") for _ in range(2)]
    kept, cancelled = (gate.admit(job, 1) for job in jobs)
    gate.store.begin_launches([kept, cancelled])
    gate.wish(wishes.cancel, jobs[1])
    assert gate.store.still_wanted([kept, cancelled]) == {kept}


def test_what_was_started_is_recorded_as_the_workflow_would(gate: Gate) -> None:
    (attempt,) = due(gate, 1)
    gate.store.begin_launches([attempt])
    for _ in range(2):  # an answer may be lost: the same again changes nothing
        gate.store.launched([Launched(attempt, "b", "native/1")])
    view = gate.store.load_attempt(attempt)
    assert view is not None
    assert (view.state, view.prepared, view.started, view.handles) == ("PENDING", ["b"], ["b"], {"b": "native/1"})


def test_nothing_is_recorded_of_an_attempt_that_has_ended(gate: Gate) -> None:
    (attempt,) = due(gate, 1)
    gate.store.begin_launches([attempt])
    gate.ends(attempt)
    gate.store.launched([Launched(attempt, "b", "native/1")])
    assert scalar(gate.engine, "SELECT handles = '{}' FROM attempts WHERE id = :id", id=attempt)


def test_a_nudge_waits_for_the_start_of_its_attempt(gate: Gate) -> None:
    (attempt,) = due(gate, 1)
    in_transaction(gate.engine, lambda session: outbox.add(session, outbox.NUDGE, [attempt]))
    (start,) = gate.store.claim_outbox(9)
    assert start.kind == "start"
    assert gate.store.claim_outbox(9) == ()
    while gate.store.wait_for_outbox(0.1):
        pass
    gate.store.outbox_done([start.id])
    assert gate.store.wait_for_outbox(10), "the relay is woken for the nudge that waited"
    assert [(item.kind, item.target) for item in gate.store.claim_outbox(9)] == [("nudge", attempt)]


def test_rows_of_an_attempt_that_has_ended_are_done_without_a_word(gate: Gate) -> None:
    (attempt,) = due(gate, 1)
    gate.store.mark(attempt, AttemptState.PENDING)
    gate.ends(attempt)
    in_transaction(gate.engine, lambda session: outbox.add(session, outbox.NUDGE, [attempt]))
    assert gate.store.claim_outbox(9) == ()  # its start
    assert gate.store.claim_outbox(9) == ()  # then the nudge that waited for it
    assert gate.outbox("start") == gate.outbox("nudge") == []
