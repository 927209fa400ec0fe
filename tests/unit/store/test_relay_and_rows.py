"""The outbox, the LISTEN connections, capacity, dark backends, and what the reconciler asks."""

import threading
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import text

from backends.types import End, Handle, Observation, Phase, PoolCapacity
from gateway.ledger import outbox, wishes
from gateway.ledger.engine import in_transaction
from policies.decisions import Act
from policies.snapshot import Node, Resources
from policies.vocabulary import JobState, Reason
from tests.builders.ledger import POOL
from tests.harness.waiting import eventually
from tests.unit.store.world import Gate, an_admit, live, queued, scalar, write
from workflows.store import FencedError


def owe(gate: Gate, count: int) -> None:
    targets = [f"t{n}" for n in range(count)]
    in_transaction(gate.engine, lambda session: outbox.add(session, outbox.NUDGE, targets))


def test_two_relays_share_the_rows_and_none_is_done_twice(gate: Gate) -> None:
    owe(gate, 200)
    taken: list[int] = []
    barrier = threading.Barrier(2)

    def relay() -> None:
        barrier.wait(timeout=30)
        while items := gate.store.claim_outbox(7):
            taken.extend(item.id for item in items)

    threads = [threading.Thread(target=relay) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(taken) == len(set(taken)) == 200


def test_rows_come_oldest_first_and_a_dead_relays_come_again(gate: Gate) -> None:
    owe(gate, 3)
    first = gate.store.claim_outbox(2)
    assert [item.target for item in first] == ["t0", "t1"]
    assert [item.target for item in gate.store.claim_outbox(9)] == ["t2"]
    gate.store.outbox_done([first[0].id])
    write(gate.engine, "UPDATE outbox SET due_at = due_at - interval '31 seconds'")
    again = gate.store.claim_outbox(9)
    assert [(item.target, item.tries) for item in again] == [("t1", 2), ("t2", 2)]


def test_a_bad_row_waits_longer_each_time_and_stops_no_other(gate: Gate) -> None:
    owe(gate, 2)
    bad, good = gate.store.claim_outbox(9)
    gate.store.outbox_done([good.id])
    waits = []
    for tries in (1, 2, 3, 20):
        write(gate.engine, "UPDATE outbox SET tries = :tries WHERE id = :id", tries=tries, id=bad.id)
        gate.store.outbox_failed(bad.id, "x" * 10_000)
        waits.append(
            scalar(
                gate.engine,
                "SELECT round(extract(epoch FROM due_at - now()))::int FROM outbox WHERE id = :id",
                id=bad.id,
            )
        )
    assert waits == [1, 2, 4, 60]
    assert scalar(gate.engine, "SELECT length(error) FROM outbox WHERE id = :id", id=bad.id) == 500


def test_a_submit_wakes_the_arbiter_and_an_admission_the_relay(gate: Gate) -> None:
    gate.tenant("acme")
    for wait in (gate.store.wait_for_work, gate.store.wait_for_outbox):
        assert wait(5)  # the first is for what may have been missed
        assert not wait(0.05)
    job = gate.submit("acme")
    assert gate.store.wait_for_work(5)
    assert not gate.store.wait_for_work(0.05)
    gate.store.take_epoch("me")
    gate.admit(job)
    assert gate.store.wait_for_outbox(5)


def test_waiting_survives_the_loss_of_its_connection(gate: Gate) -> None:
    gate.tenant("acme")
    assert gate.store.wait_for_work(5)
    with gate.engine.begin() as connection:
        connection.execute(text("RESET ROLE"))  # the application may end nobody's connection
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'tidegate-listen' AND datname = current_database()"
            )
        )
        connection.execute(text("SET ROLE tidegate_app"))
    assert gate.store.wait_for_work(5)  # a new connection says: look again
    gate.submit("acme")
    assert gate.store.wait_for_work(5)


def test_capacity_replaces_the_nodes_and_wakes_the_arbiter_only_when_something_changed(gate: Gate) -> None:
    assert gate.store.wait_for_work(5)
    node = Node("n1", Resources(4000, 1, 2, 3), foreign=Resources(accelerators=1000), labels={"rack": "a"})
    at = datetime.now(UTC) + timedelta(seconds=1)
    gate.store.capacity("b", [PoolCapacity(POOL, (node,), at)])
    assert gate.store.wait_for_work(5)
    gate.store.capacity("b", [PoolCapacity(POOL, (node,), at + timedelta(seconds=1))])
    assert not gate.store.wait_for_work(0.05)
    gate.store.capacity("b", [PoolCapacity(POOL, (), at - timedelta(seconds=9))])  # older: dropped
    gate.store.capacity("other", [PoolCapacity(POOL, (), at + timedelta(seconds=9))])  # not its pool
    assert gate.store.cycle().snapshot.pools[0].nodes == (node,)


def test_a_dark_backend_frees_nothing_and_is_seen_as_dark_until_it_answers(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme")
    gate.store.take_epoch("me")
    attempt = gate.admit(job)
    gate.runs(attempt)
    gate.store.dark("b", "timed out")
    cycle = gate.store.cycle()
    assert cycle.snapshot.pools[0].dark
    assert len(cycle.snapshot.pools[0].nodes) == 2
    assert live(cycle, attempt).id == attempt
    view = gate.store.load_attempt(attempt)
    assert view is not None
    assert view.dark == ["b"]
    gate.store.answered("b")
    assert not gate.store.cycle().snapshot.pools[0].dark
    assert attempt in gate.outbox("nudge")


def test_a_rested_pool_keeps_the_longer_rest(gate: Gate) -> None:
    gate.store.rest_pool(POOL, 600, "NoSpotCapacity")
    gate.store.rest_pool(POOL, 5, "again")
    cycle = gate.store.cycle()
    assert 590_000 < cycle.snapshot.pools[0].rested_until_ms - cycle.now_ms <= 600_000


def test_a_live_attempt_without_a_workflow_is_found_and_started_again_once(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme")
    gate.store.take_epoch("me")
    attempt = gate.admit(job)
    assert gate.store.without_workflow(0) == ()  # its start is still owed
    gate.store.outbox_done([item.id for item in gate.store.claim_outbox(9)])
    assert gate.store.without_workflow(60) == ()
    eventually(lambda: gate.store.without_workflow(0) == (attempt,))
    gate.store.start_again(attempt)
    gate.store.start_again(attempt)
    assert gate.outbox("start") == [attempt]


def test_an_object_found_by_its_tag_is_adopted_where_its_attempt_lives(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme")
    gate.store.take_epoch("me")
    attempt = gate.admit(job)
    assert gate.store.adopt(attempt, "b", "native/1")
    assert gate.store.adopt(attempt, "b", "native/1")
    assert not gate.store.adopt(attempt, "b", "native/2")
    assert not gate.store.adopt(attempt, "elsewhere", "native/1")
    assert not gate.store.adopt("tg-none-1", "b", "native/1")
    gate.ends(attempt)
    assert not gate.store.adopt(attempt, "b", "native/1")


def test_an_end_without_evidence_is_lost_or_what_was_seen_last(gate: Gate) -> None:
    gate.tenant("acme")
    lost, seen = gate.submit("acme"), gate.submit("acme")
    gate.store.take_epoch("me")
    one, two = gate.admit(lost), gate.admit(seen)
    now = datetime.now(UTC)
    ended = Observation(Handle("b", two), Phase.ENDED, now, 0, 2, now, now, End(Reason.COMPLETED, 0))
    gate.runs(one)
    gate.runs(two)
    gate.store.observe("b", [ended])
    assert gate.store.end_without_evidence(one).attempt_state == "LOST"
    assert gate.store.end_without_evidence(two).attempt_state == "SUCCEEDED"
    assert gate.world.held(gate.tenants["acme"]) == 0


def test_dependencies_open_close_or_become_impossible(gate: Gate) -> None:
    gate.tenant("acme")
    first = gate.submit("acme")
    after_ok = gate.submit("acme", after={"ok": [first]})
    after_bad = gate.submit("acme", after={"not_ok": [first]})
    cycle = gate.store.cycle()
    assert queued(cycle, after_ok).waits_for == queued(cycle, after_bad).waits_for == (first,)
    gate.wish(wishes.cancel, first)
    cycle = gate.store.cycle()
    assert queued(cycle, after_ok).dependency_impossible
    assert (queued(cycle, after_bad).waits_for, queued(cycle, after_bad).dependency_impossible) == ((), False)


def test_an_array_is_offered_index_by_index_and_ends_when_every_index_has(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme", array={"indexes": 3, "parallelism": 2, "max_failed": 1})
    gate.store.take_epoch("me")
    for expected in ([0, 1], [2]):
        cycle = gate.store.cycle()
        offered = sorted(one.chunk[0] for one in cycle.snapshot.queued if one.chunk)
        assert offered == expected
        acts = [Act(admits=(an_admit(cycle, f"{job}/{index}", gpus=1),)) for index in offered]
        assert len(gate.commit(cycle, *acts).admitted) == len(expected)
        assert [one for one in gate.store.cycle().snapshot.queued if one.chunk] == []
        for index in offered:
            attempt = str(
                scalar(
                    gate.engine,
                    "SELECT attempt_id FROM tasks WHERE job_id = :job AND index = :n",
                    job=UUID(job),
                    n=index,
                )
            )
            assert gate.store.launch_request(attempt, "b").array_index == index
            gate.runs(attempt)
            code = 1 if index == 1 else 0
            gate.ends(attempt, Reason.NON_ZERO_EXIT if code else Reason.COMPLETED, code)
    row = gate.job(job)
    assert (row.state, row.array_ended, row.array_failed) == (JobState.SUCCEEDED, 3, 1)
    assert gate.world.held(gate.tenants["acme"]) == 0


def test_an_epoch_taken_after_a_restore_is_beyond_any_that_the_backup_forgot(gate: Gate) -> None:
    forgotten = gate.store.take_epoch("before") + 1000
    write(gate.engine, "UPDATE arbiter SET epoch = 3")
    write(gate.engine, "UPDATE arbiter SET beat = now()")
    assert gate.store.take_epoch("recover") >= forgotten - 1000
    with pytest.raises(FencedError):
        gate.store.beat(3)


def test_rows_done_long_ago_are_forgotten(gate: Gate) -> None:
    owe(gate, 3)
    gate.store.outbox_done([item.id for item in gate.store.claim_outbox(2)])
    write(gate.engine, "UPDATE outbox SET done_at = done_at - interval '2 hours' WHERE target = 't0'")
    gate.store.accrue()
    assert sorted(gate.outbox("nudge")) == ["t2"]
    assert scalar(gate.engine, "SELECT count(*) FROM outbox") == 2


def test_an_attempt_whose_renewal_is_refused_is_told_to_leave_with_its_own_grace(gate: Gate) -> None:
    tenant = gate.tenant("acme")
    gate.world.budget(tenant, "micro_usd", 9_000_000)
    job = gate.submit("acme", grace="90s")
    gate.store.take_epoch("me")
    attempt = gate.admit(job)  # four cards at two dollars hold eight for the first hour
    gate.runs(attempt)
    past = "now() - interval '55 minutes'"
    write(gate.engine, f"UPDATE attempts SET created_at = {past}, started_at = {past}")
    write(gate.engine, f"UPDATE leases SET created_at = {past}, covers_until = now() + interval '5 minutes'")
    assert gate.store.accrue() == 1
    view = gate.store.load_attempt(attempt)
    assert view is not None
    assert (view.stop_cause, view.stop_grace_s) == ("budget", 90)
    assert gate.ends(attempt, Reason.BUDGET_EXHAUSTED, 75).job_state == "QUEUED"
    write(gate.engine, "UPDATE budgets SET amount = 1")
    cycle = gate.store.cycle()
    assert gate.commit(cycle, Act(admits=(an_admit(cycle, job),))).dropped == {job: "BudgetExhausted"}
    assert gate.job(job).pending["token"] == "BudgetExhausted"


def test_a_cycle_costs_the_same_number_of_queries_whatever_waits(gate: Gate) -> None:
    gate.tenant("acme")
    from sqlalchemy import event

    counted: list[str] = []
    event.listen(gate.engine, "before_cursor_execute", lambda *args: counted.append(args[2]))
    gate.submit("acme")
    counts = []
    for more in (1, 20):
        for _ in range(more):
            gate.submit("acme")
        counted.clear()
        gate.store.cycle()
        counts.append(len(counted))
    assert counts[0] == counts[1] <= 25
    assert scalar(gate.engine, "SELECT count(*) FROM jobs") == 22
