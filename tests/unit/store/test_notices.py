"""When a victim was told: what it saves from then on is the save of this notice, what it saved before is its own."""

import pytest

from gateway.ledger import progress, wishes
from gateway.ledger.engine import in_transaction
from policies.vocabulary import Reason
from tests.unit.store.test_place_first import Scene
from tests.unit.store.world import Gate, scalar, write

SAVE_MS = 2_000


def noticed(gate: Gate, attempt: str) -> float | None:
    """How many seconds ago it was first told with a grace."""
    ago = scalar(gate.engine, "SELECT extract(epoch FROM now() - noticed_at) FROM attempts WHERE id = :id", id=attempt)
    return None if ago is None else float(ago)


def saves(gate: Gate, attempt: str, step: int) -> None:
    """A save that took two seconds ends now."""
    write(gate.engine, "UPDATE attempts SET started_at = started_at - interval '1 minute' WHERE id = :id", id=attempt)
    url = f"file:///c/1/attempt-1/step-{step}"
    in_transaction(
        gate.engine, lambda session: progress.checkpoint(session, attempt, step=step, url=url, save_ms=SAVE_MS)
    )


def later(gate: Gate) -> None:
    """Ten seconds pass."""
    write(gate.engine, "UPDATE attempts SET noticed_at = noticed_at - interval '10 seconds'")


def credited_save_ms(gate: Gate, victim: str) -> int:
    gate.ends(victim, Reason.PREEMPTED, 75)
    return int(scalar(gate.engine, "SELECT terms FROM credits WHERE victim_attempt = :id", id=victim)["save_ms"])


@pytest.mark.parametrize("klass", ["P1", "P0"])
def test_a_periodic_save_on_the_way_of_the_notice_earns_nothing(gate: Gate, klass: str) -> None:
    scene = Scene(gate, klass)
    gate.is_placed(scene.waiter)  # the stop is written; nobody has told the victim yet
    saves(gate, scene.victim, 5)
    gate.store.stop_sent(scene.victim, 300 if klass == "P1" else 0)
    assert (noticed(gate, scene.victim) is None) == (klass == "P0"), "without a grace there is no notice"
    assert credited_save_ms(gate, scene.victim) == 0


def test_the_save_that_follows_the_notice_is_credited(gate: Gate) -> None:
    scene = Scene(gate)
    gate.is_placed(scene.waiter)
    gate.store.stop_sent(scene.victim, 300)
    later(gate)
    saves(gate, scene.victim, 6)
    assert credited_save_ms(gate, scene.victim) == SAVE_MS


def test_being_told_begins_with_the_first_member_and_never_before_the_stop_was_written(gate: Gate) -> None:
    scene = Scene(gate)
    gate.is_placed(scene.waiter)
    write(gate.engine, "UPDATE attempts SET stop_asked_at = now() - interval '20 seconds'")
    gate.store.stop_sent(scene.victim, 300, 5.0)
    ago = noticed(gate, scene.victim)
    assert ago is not None
    assert 5 <= ago < 10
    write(gate.engine, "UPDATE attempts SET noticed_at = NULL, stopping_at = NULL")
    gate.store.stop_sent(scene.victim, 300, 3600.0)
    ago = noticed(gate, scene.victim)
    assert ago is not None
    assert ago < 60


def test_a_job_that_asks_for_itself_is_told_by_the_answer(gate: Gate) -> None:
    scene = Scene(gate)
    assert in_transaction(gate.engine, lambda session: progress.told(session, scene.victim)).kind == ""
    assert noticed(gate, scene.victim) is None, "what is only due tells nobody"
    gate.is_placed(scene.waiter)
    assert in_transaction(gate.engine, lambda session: progress.told(session, scene.victim)).kind == "preempt"
    later(gate)
    saves(gate, scene.victim, 7)
    gate.store.stop_sent(scene.victim, 300)
    assert credited_save_ms(gate, scene.victim) == SAVE_MS


def test_a_notice_that_was_taken_back_leaves_no_trace(gate: Gate) -> None:
    scene = Scene(gate)
    gate.is_placed(scene.waiter)
    in_transaction(gate.engine, lambda session: progress.told(session, scene.victim))
    gate.wish(wishes.cancel, scene.mid)
    assert not scene.view(scene.victim).stop_cause
    assert noticed(gate, scene.victim) is None


def test_a_grace_that_is_cut_to_nothing_keeps_the_save_made_while_there_was_one(gate: Gate) -> None:
    scene = Scene(gate)
    gate.is_placed(scene.waiter)
    gate.store.stop_sent(scene.victim, 300)
    later(gate)
    saves(gate, scene.victim, 8)
    write(gate.engine, "UPDATE attempts SET stop_grace_s = 0, stopping_at = NULL WHERE id = :id", id=scene.victim)
    gate.store.stop_sent(scene.victim, 0)
    assert credited_save_ms(gate, scene.victim) == SAVE_MS
