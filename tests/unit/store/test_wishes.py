"""Users' wishes: guarded, repeatable, and never lost between two users."""

import threading
from uuid import uuid4

import pytest

from gateway.ledger import progress, wishes
from gateway.ledger.engine import in_transaction
from policies.vocabulary import PriorityClass, Reason
from tests.unit.store.world import Gate, queued, rows, scalar

ELASTIC = {"elastic": {"min": 2, "target": 4, "max": 8, "multiple_of": 2}, "num_nodes": 4}


def test_a_queued_job_is_cancelled_at_once_and_only_once(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme")
    first = gate.wish(wishes.cancel, job, "not needed")
    assert (first.state, first.changed) == ("CANCELLED", True)
    assert not gate.wish(wishes.cancel, job).changed
    row = gate.job(job)
    assert (row.reason, row.message) == ("UserCancelled", "not needed")
    assert row.ended_at is not None
    kinds = [event.kind for event in rows(gate.engine, "SELECT kind FROM events ORDER BY id")]
    assert kinds == ["QUEUED", "CANCELLED"]


def test_a_live_job_is_told_and_ends_cancelled_when_its_attempt_has(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme")
    gate.store.take_epoch("me")
    attempt = gate.admit(job)
    gate.runs(attempt)
    wished = gate.wish(wishes.cancel, job)
    assert (wished.state, wished.changed) == ("RUNNING", True)
    assert not gate.wish(wishes.cancel, job).changed
    assert gate.outbox("nudge") == [attempt]
    view = gate.store.load_attempt(attempt)
    assert view is not None
    assert view.want_cancel
    assert gate.ends(attempt, Reason.USER_CANCELLED, None).job_state == "CANCELLED"


def test_a_held_job_waits_and_an_unheld_one_does_not(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme")
    assert gate.wish(wishes.hold, job).changed
    assert not gate.wish(wishes.hold, job).changed
    assert queued(gate.store.cycle(), job).on_hold
    gate.wish(wishes.unhold, job)
    assert not queued(gate.store.cycle(), job).on_hold


def test_two_users_who_wish_at_once_are_both_heard(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme", checkpoint={"url": "file:///c"})
    gate.store.take_epoch("me")
    attempt = gate.admit(job)
    gate.runs(attempt)
    before = gate.job(job).version
    threads = [threading.Thread(target=gate.wish, args=(wishes.checkpoint, job)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert gate.job(job).want_checkpoint == 20
    assert gate.job(job).version == before + 20
    assert scalar(gate.engine, "SELECT count(*) FROM events WHERE kind = 'CheckpointWished'") == 20


def test_tp_02_every_numbered_wish_is_an_event_in_order_and_the_newest_is_carried_out_once(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme", checkpoint={"url": "file:///c"})
    gate.store.take_epoch("me")
    attempt = gate.admit(job)
    gate.runs(attempt)
    for _ in range(100):
        gate.wish(wishes.checkpoint, job)
    view = gate.store.load_attempt(attempt)
    assert view is not None
    assert (view.want_checkpoint, view.checkpoint_done) == (100, 0)
    told = in_transaction(gate.engine, lambda session: progress.told(session, attempt))
    assert (told.kind, told.number) == ("checkpoint", 100)
    gate.store.checkpoint_sent(attempt, 100)
    gate.store.checkpoint_sent(attempt, 40)
    view = gate.store.load_attempt(attempt)
    assert view is not None
    assert view.checkpoint_done == 100
    assert in_transaction(gate.engine, lambda session: progress.told(session, attempt)).kind == ""
    ids = [row.id for row in rows(gate.engine, "SELECT id FROM events WHERE kind = 'CheckpointWished' ORDER BY at, id")]
    assert len(ids) == 100
    assert ids == sorted(ids)
    assert scalar(gate.engine, "SELECT count(*) FROM events WHERE kind = 'CheckpointAsked'") == 1


def test_a_resize_names_the_field_and_the_remedy_when_it_is_refused(gate: Gate) -> None:
    gate.tenant("acme")
    rigid, elastic = gate.submit("acme"), gate.submit("acme", **ELASTIC)
    with pytest.raises(wishes.WishRefusedError, match="not elastic"):
        gate.wish(wishes.resize, rigid, "main", 2)
    with pytest.raises(wishes.WishRefusedError, match=r"elastic\.min 2 and elastic\.max 8"):
        gate.wish(wishes.resize, elastic, "main", 10)
    with pytest.raises(wishes.WishRefusedError, match="multiple of 2"):
        gate.wish(wishes.resize, elastic, "main", 3)
    with pytest.raises(wishes.WishRefusedError, match="it has: main"):
        gate.wish(wishes.resize, elastic, "other", 2)
    assert gate.wish(wishes.resize, elastic, "main", 6).changed
    assert not gate.wish(wishes.resize, elastic, "main", 6).changed
    assert queued(gate.store.cycle(), elastic).groups[0].replicas == 6


def test_an_update_changes_what_the_arbiter_sees_and_only_while_queued(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme")
    before = queued(gate.store.cycle(), job)
    gate.wish(wishes.update, job, priority=PriorityClass.P1, labels={"a": "b"}, max_duration_s=60)
    after = queued(gate.store.cycle(), job)
    assert (after.klass, after.max_duration_ms, after.version) == (PriorityClass.P1, 60_000, before.version + 1)
    gate.wish(wishes.update, job, priority=PriorityClass.P2)
    gate.store.take_epoch("me")
    attempt = gate.admit(job)
    assert gate.store.launch_request(attempt, "b").max_duration_s == 60
    with pytest.raises(wishes.WishRefusedError, match="only while the job is QUEUED"):
        gate.wish(wishes.update, job, priority=PriorityClass.P1)
    assert gate.wish(wishes.update, job, labels={"c": "d"}).changed
    assert gate.job(job).labels == {"c": "d"}


def test_a_requeue_costs_no_retry(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme")
    gate.store.take_epoch("me")
    attempt = gate.admit(job)
    gate.runs(attempt)
    assert gate.wish(wishes.requeue, job).changed
    assert not gate.wish(wishes.requeue, job).changed
    view = gate.store.load_attempt(attempt)
    assert view is not None
    assert view.stop_cause == "requeue"
    assert gate.ends(attempt, Reason.REQUEUED, 75).job_state == "QUEUED"
    assert gate.job(job).failures == 0


def test_a_job_that_is_not_there_is_said_so(gate: Gate) -> None:
    with pytest.raises(wishes.NoSuchJobError):
        gate.wish(wishes.cancel, str(uuid4()))
