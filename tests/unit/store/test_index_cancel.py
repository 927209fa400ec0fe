"""One index of an array is cancelled: at once while it waits, through its attempt while it lives; the rest goes on."""

from uuid import UUID, uuid4

import pytest

from gateway.ledger import progress, wishes
from gateway.ledger.check import check
from gateway.ledger.engine import in_transaction
from policies.decisions import Act
from policies.vocabulary import Reason
from tests.unit.store.world import Gate, an_admit, rows, scalar


def an_array(gate: Gate, indexes: int, **array: int) -> str:
    gate.tenant("acme")
    gate.store.take_epoch("me")
    return gate.submit("acme", array={"indexes": indexes, **array})


def offered(gate: Gate) -> list[int]:
    return sorted(one.chunk[0] for one in gate.store.cycle().snapshot.queued if one.chunk)


def runs(gate: Gate, job: str, *indexes: int) -> list[str]:
    """These indexes are admitted and run; their attempts."""
    cycle = gate.store.cycle()
    acts = [Act(admits=(an_admit(cycle, f"{job}/{index}", gpus=1),)) for index in indexes]
    assert len(gate.commit(cycle, *acts).admitted) == len(indexes)
    made = [
        str(scalar(gate.engine, "SELECT attempt_id FROM tasks WHERE job_id = :j AND index = :n", j=UUID(job), n=index))
        for index in indexes
    ]
    for attempt in made:
        gate.runs(attempt)
    return made


def task(gate: Gate, job: str, index: int) -> tuple[str, str]:
    row = rows(gate.engine, "SELECT state, reason FROM tasks WHERE job_id = :j AND index = :n", j=UUID(job), n=index)[0]
    return row.state, row.reason


def test_an_index_that_never_began_ends_at_once_and_is_not_offered_again(gate: Gate) -> None:
    job = an_array(gate, 5)
    done = gate.wish(wishes.cancel, job, "not this one", index=3)
    assert (done.state, done.changed) == ("QUEUED", True)
    assert not gate.wish(wishes.cancel, job, index=3).changed
    assert task(gate, job, 3) == ("CANCELLED", "UserCancelled")
    assert offered(gate) == [0, 1, 2, 4]
    row = gate.job(job)
    assert (row.array_ended, row.array_failed, row.want_cancel) == (1, 0, False)
    said = rows(gate.engine, "SELECT kind, data FROM events WHERE kind LIKE 'Index%'")
    assert [(one.kind, one.data) for one in said] == [
        ("IndexCancelled", {"index": 3, "message": "not this one", "principal": "ada"})
    ]


def test_parallelism_counts_only_what_lives_and_holes_are_filled_in_order(gate: Gate) -> None:
    job = an_array(gate, 6, parallelism=2)
    gate.wish(wishes.cancel, job, index=1)
    gate.wish(wishes.cancel, job, index=4)
    assert offered(gate) == [0, 2]
    first, second = runs(gate, job, 0, 2)
    assert offered(gate) == []
    gate.ends(first)
    assert offered(gate) == [3]
    gate.ends(second)
    assert offered(gate) == [3, 5]


def test_a_live_index_is_told_and_ends_cancelled_while_the_others_run_on(gate: Gate) -> None:
    job = an_array(gate, 2)
    first, second = runs(gate, job, 0, 1)
    version = scalar(gate.engine, "SELECT version FROM attempts WHERE id = :id", id=second)
    assert gate.wish(wishes.cancel, job, index=1).changed
    assert not gate.wish(wishes.cancel, job, index=1).changed
    assert gate.outbox("nudge") == [second]
    assert scalar(gate.engine, "SELECT version FROM attempts WHERE id = :id", id=second) == version + 1
    views = [gate.store.load_attempt(attempt) for attempt in (first, second)]
    assert [view.want_cancel for view in views if view] == [False, True]
    told = [in_transaction(gate.engine, lambda s, a=a: progress.told(s, a)).kind for a in (first, second)]  # type: ignore[misc]
    assert told == ["", "stop"]
    assert gate.ends(second, Reason.USER_CANCELLED, None).job_state == "RUNNING"
    assert task(gate, job, 1) == ("CANCELLED", "UserCancelled")
    assert gate.ends(first).job_state == "SUCCEEDED"
    row = gate.job(job)
    assert (row.array_ended, row.array_failed) == (2, 0)
    assert check(gate.engine) == []


def test_a_cancelled_index_whose_attempt_is_lost_gets_no_other_try(gate: Gate) -> None:
    job = an_array(gate, 2)
    first, _ = runs(gate, job, 0, 1)
    gate.wish(wishes.cancel, job, index=0)
    gate.ends(first, Reason.LOST, None)
    assert task(gate, job, 0)[0] == "CANCELLED"
    assert offered(gate) == []


def test_an_arbiter_that_decided_before_the_cancel_starts_nothing(gate: Gate) -> None:
    job = an_array(gate, 2)
    cycle = gate.store.cycle()
    act = Act(admits=(an_admit(cycle, f"{job}/1", gpus=1),))
    gate.wish(wishes.cancel, job, index=1)
    assert gate.commit(cycle, act).admitted == ()


def test_the_last_open_index_ends_the_job_by_its_rule(gate: Gate) -> None:
    job = an_array(gate, 2)
    (first,) = runs(gate, job, 0)
    assert gate.ends(first).job_state == "QUEUED"
    assert gate.wish(wishes.cancel, job, index=1).state == "SUCCEEDED"
    assert gate.job(job).ended_at is not None
    failing = gate.submit("acme", array={"indexes": 2})
    (attempt,) = runs(gate, failing, 0)
    gate.ends(attempt, Reason.NON_ZERO_EXIT, 3)
    assert gate.wish(wishes.cancel, failing, index=1).state == "FAILED"


def test_an_array_of_which_every_index_was_cancelled_is_cancelled(gate: Gate) -> None:
    job = an_array(gate, 2)
    gate.wish(wishes.cancel, job, index=0)
    assert gate.wish(wishes.cancel, job, index=1).state == "CANCELLED"
    other = gate.submit("acme", array={"indexes": 1})
    (attempt,) = runs(gate, other, 0)
    gate.wish(wishes.cancel, other, index=0)
    assert gate.ends(attempt, Reason.USER_CANCELLED, None).job_state == "CANCELLED"


def test_an_index_that_is_not_there_is_refused_by_name(gate: Gate) -> None:
    job = an_array(gate, 3)
    plain = gate.submit("acme")
    with pytest.raises(wishes.WishRefusedError, match="lies between 0 and 2"):
        gate.wish(wishes.cancel, job, index=3)
    with pytest.raises(wishes.WishRefusedError, match="no array"):
        gate.wish(wishes.cancel, plain, index=0)
    with pytest.raises(wishes.NoSuchJobError):
        gate.wish(wishes.cancel, str(uuid4()), index=0)
    assert gate.job(plain).state == "QUEUED"
