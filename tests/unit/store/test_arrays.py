"""Arrays under the live `plan()`: offered by their indexes alone, and each index with a retry, a back-off and saves."""

from uuid import UUID

import pytest

from gateway.ledger import progress, wishes
from gateway.ledger.check import check
from gateway.ledger.engine import in_transaction
from gateway.ledger.settlement import settle
from policies.decisions import Act
from policies.plan import plan
from policies.settings import PolicySettings
from policies.vocabulary import Reason
from tests.unit.store.world import Gate, an_admit, rows, scalar, write
from workflows.messages import EndRequest
from workflows.store import CommitReport

SETTINGS = PolicySettings()
URL = "file:///ckpt/a"


def turn(gate: Gate, epoch: int) -> CommitReport:
    cycle = gate.store.cycle()
    return gate.store.commit(epoch, cycle, plan(cycle.snapshot, SETTINGS, cycle.now_ms))


def task(gate: Gate, job: str, index: int) -> dict[str, object]:
    found = rows(gate.engine, "SELECT * FROM tasks WHERE job_id = :j AND index = :n", j=UUID(job), n=index)
    return dict(found[0]._mapping)


def runs(gate: Gate, job: str, index: int) -> str:
    """The index is admitted and runs; its attempt."""
    cycle = gate.store.cycle()
    assert gate.commit(cycle, Act(admits=(an_admit(cycle, f"{job}/{index}", gpus=1),))).admitted
    attempt = str(task(gate, job, index)["attempt_id"])
    gate.runs(attempt)
    return attempt


def saves(gate: Gate, attempt: str, folder: str, step: int) -> None:
    url = f"{URL}/{folder}/step-{step}"
    assert in_transaction(gate.engine, lambda session: progress.checkpoint(session, attempt, step=step, url=url))


def ends_saved(gate: Gate, attempt: str) -> str:
    """It left by 75; the reason is chosen from the row, as the workflow does."""
    view = gate.store.load_attempt(attempt)
    assert view is not None
    idle = view.no_progress > 0 and not view.newer_checkpoint
    return gate.ends(attempt, Reason.NO_PROGRESS if idle else Reason.SAVED_AND_EXITED, 75).job_state


def fails(gate: Gate, attempt: str, reason: Reason, code: int | None) -> None:
    """Settled by the settings as they are shipped, and not by those of tests that wait for nothing."""
    end = EndRequest(attempt, reason.value, exit_code=code)
    in_transaction(gate.engine, lambda session: settle(session, end, settings=SETTINGS))


def warm(gate: Gate) -> None:
    """Nobody cools down any more."""
    write(gate.engine, "UPDATE jobs SET not_before = NULL")
    write(gate.engine, "UPDATE tasks SET not_before = NULL")


@pytest.mark.parametrize("indexes", [1, 3])
def test_an_array_takes_the_only_place_there_is_and_no_decision_is_about_the_whole(gate: Gate, indexes: int) -> None:
    gate.tenant("acme", max_gpus=8)
    epoch = gate.store.take_epoch("me")
    job = gate.submit("acme", resources={"accelerators": "H100:8"}, array={"indexes": indexes})
    for index in range(indexes):
        assert {one.chunk for one in gate.store.cycle().snapshot.queued} == {(n, n) for n in range(index, indexes)}
        assert turn(gate, epoch).admitted == (f"{job}/{index}",)
        assert turn(gate, epoch).admitted == ()
        attempt = str(task(gate, job, index)["attempt_id"])
        gate.runs(attempt)
        gate.ends(attempt)
    assert gate.job(job).state == "SUCCEEDED"
    assert scalar(gate.engine, "SELECT count(*) FROM decisions WHERE token = 'Stale' OR NOT applied") == 0
    assert check(gate.engine) == []


def test_an_array_on_hold_or_cancelled_is_offered_in_no_way(gate: Gate) -> None:
    gate.tenant("acme")
    epoch = gate.store.take_epoch("me")
    job = gate.submit("acme", array={"indexes": 2})
    gate.wish(wishes.hold, job)
    assert turn(gate, epoch).admitted == ()
    gate.wish(wishes.unhold, job)
    gate.wish(wishes.cancel, job)
    assert gate.store.cycle().snapshot.queued == ()


@pytest.mark.parametrize("array", [None, {"indexes": 2}], ids=["whole", "index"])
def test_75_twice_without_a_newer_save_is_no_progress(gate: Gate, array: dict[str, int] | None) -> None:
    gate.tenant("acme")
    gate.store.take_epoch("me")
    job = gate.submit("acme", checkpoint={"url": URL, "interval": "5m"}, array=array)
    for number, state in ((1, "QUEUED"), (2, "FAILED" if array is None else "QUEUED")):
        attempt = gate.admit(job) if array is None else runs(gate, job, 1)
        if array is None:
            gate.runs(attempt)
        assert ends_saved(gate, attempt) == state, number
    assert (gate.job(job).reason if array is None else task(gate, job, 1)["reason"]) == "NoProgress"


def test_an_index_that_saves_goes_on_by_75_and_the_others_count_for_themselves(gate: Gate) -> None:
    gate.tenant("acme")
    gate.store.take_epoch("me")
    job = gate.submit("acme", checkpoint={"url": URL, "interval": "5m"}, array={"indexes": 2})
    for number in (1, 2, 3):
        attempt = runs(gate, job, 0)
        saves(gate, attempt, f"index-0/attempt-{number}", number)
        ends_saved(gate, attempt)
        assert task(gate, job, 0)["no_progress"] == 0
    idle = runs(gate, job, 1)
    view = gate.store.load_attempt(idle)
    assert view is not None
    assert (view.newer_checkpoint, view.no_progress) == (False, 0), "what index 0 saved is none of index 1's"
    ends_saved(gate, idle)
    assert [task(gate, job, n)["no_progress"] for n in (0, 1)] == [0, 1]


def test_an_index_resumes_from_its_own_newest_valid_save_by_step_and_from_no_later_attempt(gate: Gate) -> None:
    gate.tenant("acme")
    gate.store.take_epoch("me")
    job = gate.submit(
        "acme", checkpoint={"url": URL, "interval": "5m"}, array={"indexes": 2, "max_failed": 2}, retry={"max": 3}
    )
    first = runs(gate, job, 0)
    assert gate.store.launch_request(first, "b").resume_from == ""
    for step in (9, 10):
        saves(gate, first, "index-0/attempt-1", step)
    other = runs(gate, job, 1)
    saves(gate, other, "index-1/attempt-1", 70)
    gate.ends(first, Reason.NON_ZERO_EXIT, 1)
    warm(gate)
    again = runs(gate, job, 0)
    request = gate.store.launch_request(again, "b")
    assert request.checkpoint_url == f"{URL}/index-0/attempt-2"
    assert request.resume_from == f"{URL}/index-0/attempt-1/step-10"
    assert scalar(gate.engine, "SELECT resume_from FROM attempts WHERE id = :id", id=again) == request.resume_from
    in_transaction(gate.engine, lambda session: progress.checkpoint_broken(session, again, request.resume_from))
    assert gate.store.launch_request(again, "b").resume_from == f"{URL}/index-0/attempt-1/step-9"
    saves(gate, again, "index-0/attempt-2", 99)
    assert gate.store.launch_request(again, "b").resume_from == f"{URL}/index-0/attempt-1/step-9", "not its own"


def test_what_an_index_saved_says_what_stopping_it_costs_and_not_what_another_saved(gate: Gate) -> None:
    gate.tenant("acme")
    gate.store.take_epoch("me")
    job = gate.submit("acme", checkpoint={"url": URL, "interval": "5m"}, array={"indexes": 2})
    saver, other = runs(gate, job, 0), runs(gate, job, 1)
    saves(gate, saver, "index-0/attempt-1", 5)
    saved = {one.id: one.checkpoint_ms is not None for one in gate.store.cycle().snapshot.live}
    assert saved == {saver: True, other: False}


@pytest.mark.parametrize(
    ("reason", "code", "wait_ms"),
    [(Reason.NON_ZERO_EXIT, 3, SETTINGS.backoff_base_ms), (Reason.BACKEND_REFUSED, None, SETTINGS.refused_delay_ms)],
)
def test_an_index_waits_between_two_tries_as_a_job_does_and_those_behind_it_go_first(
    gate: Gate, reason: Reason, code: int | None, wait_ms: int
) -> None:
    gate.tenant("acme")
    epoch = gate.store.take_epoch("me")
    job = gate.submit("acme", array={"indexes": 3, "parallelism": 1}, retry={"max": 3})
    attempt = runs(gate, job, 0)
    before_ms = gate.store.cycle().now_ms
    fails(gate, attempt, reason, code)
    offered = gate.store.cycle()
    assert [one.chunk for one in offered.snapshot.queued] == [(1, 1)], "it keeps no place of those that may start"
    for index in (1, 2):
        assert turn(gate, epoch).admitted == (f"{job}/{index}",)
        made = str(task(gate, job, index)["attempt_id"])
        gate.runs(made)
        gate.ends(made)
    assert turn(gate, epoch).admitted == ()
    assert gate.job(job).pending["token"] == "CoolingDown"
    (left,) = gate.store.cycle().snapshot.queued
    assert left.chunk == (0, 0)
    assert wait_ms <= left.not_before_ms - before_ms < wait_ms + 10_000
    write(gate.engine, "UPDATE tasks SET not_before = now() - interval '1 second' WHERE index = 0")
    assert turn(gate, epoch).admitted == (f"{job}/0",)


def test_each_failure_of_an_index_doubles_its_own_wait(gate: Gate) -> None:
    gate.tenant("acme")
    gate.store.take_epoch("me")
    job = gate.submit("acme", array={"indexes": 2}, retry={"max": 5})
    waits = []
    for index in (0, 0, 1):
        attempt = runs(gate, job, index)
        fails(gate, attempt, Reason.NON_ZERO_EXIT, 3)
        left = scalar(gate.engine, "SELECT extract(epoch FROM not_before - now()) FROM tasks WHERE index = :n", n=index)
        waits.append(round(float(left) * 1000, -3))
        warm(gate)
    base = SETTINGS.backoff_base_ms
    assert waits == [base, 2 * base, base]


def test_the_next_try_of_an_index_avoids_the_bad_node_and_the_other_indexes_do_not(gate: Gate) -> None:
    gate.tenant("acme")
    gate.store.take_epoch("me")
    job = gate.submit("acme", array={"indexes": 2})
    attempt = runs(gate, job, 0)
    gate.store.settle(EndRequest(attempt, Reason.NODE_LOST.value, bad_nodes=["n1"]))
    avoided = {one.chunk: one.placement.avoid_nodes for one in gate.store.cycle().snapshot.queued}
    assert avoided == {(0, 0): ("n1",), (1, 1): ()}


def test_between_two_indexes_the_job_says_how_many_have_ended_and_not_how_the_last_one_did(gate: Gate) -> None:
    gate.tenant("acme")
    gate.store.take_epoch("me")
    job = gate.submit("acme", array={"indexes": 2})
    gate.ends(runs(gate, job, 0))
    row = gate.job(job)
    assert (row.state, row.reason, row.message) == ("QUEUED", "", "1 of 2 indexes have ended")


@pytest.mark.parametrize(
    ("max_failed", "expected"), [(0, ("FAILED", "NonZeroExit", 9)), (1, ("SUCCEEDED", "Completed", 0))]
)
def test_an_array_ends_with_the_word_of_the_index_that_failed_first(
    gate: Gate, max_failed: int, expected: tuple[str, str, int]
) -> None:
    gate.tenant("acme")
    gate.store.take_epoch("me")
    job = gate.submit("acme", array={"indexes": 2, "max_failed": max_failed})
    bad, good = runs(gate, job, 0), runs(gate, job, 1)
    gate.ends(bad, Reason.NON_ZERO_EXIT, 9)
    gate.ends(good)
    row = gate.job(job)
    assert (row.state, row.reason, row.exit_code) == expected


def test_indexes_that_wait_for_another_try_end_with_a_cancelled_array(gate: Gate) -> None:
    gate.tenant("acme")
    gate.store.take_epoch("me")
    for live in (False, True):
        job = gate.submit("acme", array={"indexes": 3}, retry={"max": 3})
        gate.ends(runs(gate, job, 0), Reason.NON_ZERO_EXIT, 1)
        attempt = runs(gate, job, 1) if live else ""
        gate.wish(wishes.cancel, job)
        if live:
            gate.ends(attempt, Reason.USER_CANCELLED, None)
        assert (gate.job(job).state, task(gate, job, 0)["state"]) == ("CANCELLED", "CANCELLED")
