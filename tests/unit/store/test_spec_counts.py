"""What a spec says of retries, of places and of saves reaches the decision that it is about, over the real ledger."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from gateway.ledger import progress
from gateway.ledger.engine import in_transaction
from gateway.ledger.tables.capacity import Flavor, Pool
from policies.decisions import Act
from policies.plan import plan
from policies.settings import PolicySettings
from policies.vocabulary import Reason
from tests.builders.ledger import POOL
from tests.unit.store.world import Gate, an_admit, queued, scalar, write

ARRAY = {"array": {"indexes": 2}}


def runs(gate: Gate, job: str) -> str:
    """The job, or index 0 of it, is admitted and runs; its attempt."""
    cycle = gate.store.cycle()
    key = job if gate.job(job).array_size is None else f"{job}/0"
    assert gate.commit(cycle, Act(admits=(an_admit(cycle, key, gpus=1),))).admitted
    attempt = gate.attempt(job)
    gate.runs(attempt)
    return attempt


def fate(gate: Gate, job: str) -> str:
    """What became of it: the state of the job, or of its index 0."""
    if gate.job(job).array_size is None:
        return str(gate.job(job).state)
    return str(scalar(gate.engine, "SELECT state FROM tasks WHERE job_id = :job AND index = 0", job=UUID(job)))


@pytest.mark.parametrize("shape", [{}, ARRAY], ids=["whole", "index"])
@pytest.mark.parametrize(
    ("reason", "forgiven"),
    [(Reason.OUT_OF_MEMORY, True), (Reason.LAUNCH_FAILED, True), (Reason.NON_ZERO_EXIT, False), (Reason.LOST, False)],
)
def test_retry_on_events_forgives_what_it_names_and_nothing_else(
    gate: Gate, shape: dict[str, Any], reason: Reason, *, forgiven: bool
) -> None:
    gate.tenant("acme")
    gate.store.take_epoch("me")
    job = gate.submit("acme", retry={"max": 1, "on_events": ["OutOfMemory", "LaunchFailed"]}, **shape)
    gate.ends(runs(gate, job), reason, 1)
    assert fate(gate, job) == ("QUEUED" if forgiven else "FAILED")


@pytest.mark.parametrize("shape", [{}, ARRAY], ids=["whole", "index"])
def test_retry_on_events_is_about_failures_and_never_about_what_the_outside_took(
    gate: Gate, shape: dict[str, Any]
) -> None:
    gate.tenant("acme")
    gate.store.take_epoch("me")
    job = gate.submit("acme", retry={"max": 0, "on_events": ["OutOfMemory"]}, **shape)
    for reason in (Reason.NODE_LOST, Reason.SPOT_REVOKED, Reason.BACKEND_REFUSED):
        gate.ends(runs(gate, job), reason, None)
        write(gate.engine, "UPDATE jobs SET not_before = NULL")
        write(gate.engine, "UPDATE tasks SET not_before = NULL")
        assert fate(gate, job) == "QUEUED", reason


@pytest.mark.parametrize("shape", [{}, ARRAY], ids=["whole", "index"])
@pytest.mark.parametrize(("ran_s", "expected"), [(3_500, "QUEUED"), (3_700, "FAILED")])
def test_retry_max_duration_counts_from_the_first_start(
    gate: Gate, shape: dict[str, Any], ran_s: int, expected: str
) -> None:
    gate.tenant("acme")
    gate.store.take_epoch("me")
    job = gate.submit("acme", retry={"max": 9, "max_duration": "1h"}, **shape)
    attempt = runs(gate, job)
    with gate.engine.begin() as connection:
        connection.execute(
            text("UPDATE jobs SET started_at = now() - :ago, submitted_at = now() - :ago - interval '9 hours'"),
            {"ago": timedelta(seconds=ran_s)},
        )
    gate.ends(attempt, Reason.NON_ZERO_EXIT, 1)
    assert fate(gate, job) == expected


@pytest.mark.parametrize("shape", [{}, ARRAY], ids=["whole", "index"])
def test_placement_prefer_of_a_spec_chooses_the_dearer_pool(gate: Gate, shape: dict[str, Any]) -> None:
    with gate.world.session() as session, session.begin():
        session.add(Flavor(name="dear", accelerator="H100", price=9_000_000, labels={"rack": "r2"}))
        session.flush()
        session.add(Pool(name="second", backend="b", flavor="dear", places_nodes=True))
    write(gate.engine, "UPDATE pools SET places_nodes = true")
    write(
        gate.engine,
        "INSERT INTO nodes SELECT (jsonb_populate_record(nodes, jsonb_build_object('pool', 'second'))).*"
        " FROM nodes WHERE pool = :pool",
        pool=POOL,
    )
    gate.tenant("acme")
    epoch = gate.store.take_epoch("me")
    wishes = {"placement": {"prefer": {"rack": "r2"}}, **shape}
    plain, choosy = gate.submit("acme", **shape), gate.submit("acme", **wishes)
    cycle = gate.store.cycle()
    key = choosy if not shape else f"{choosy}/0"
    assert dict(queued(cycle, key).placement.prefer) == {"rack": "r2"}
    gate.store.commit(epoch, cycle, plan(cycle.snapshot, PolicySettings(), cycle.now_ms))
    found = {
        job: scalar(gate.engine, "SELECT placed FROM attempts WHERE id = :id", id=gate.attempt(job))
        for job in (plain, choosy)
    }
    assert [found[job][0]["pool"] for job in (plain, choosy)] == [POOL, "second"]


def test_an_attempt_does_not_come_from_what_it_wrote_itself_nor_from_a_later_one(gate: Gate) -> None:
    gate.tenant("acme")
    gate.store.take_epoch("me")
    job = gate.submit("acme", checkpoint={"url": "file:///c", "interval": "5m"}, retry={"max": 3})

    def saves(attempt: str, number: int, step: int) -> None:
        url = f"file:///c/attempt-{number}/step-{step}"
        in_transaction(gate.engine, lambda session: progress.checkpoint(session, attempt, step=step, url=url))

    first = runs(gate, job)
    saves(first, 1, 10)
    gate.ends(first, Reason.NON_ZERO_EXIT, 1)
    write(gate.engine, "UPDATE jobs SET not_before = NULL")
    second = runs(gate, job)
    saves(second, 2, 20)
    # An answer was lost, and the launch is asked for again: the second attempt saved meanwhile.
    assert gate.store.launch_request(second, "b").resume_from == "file:///c/attempt-1/step-10"
    write(gate.engine, "UPDATE checkpoints SET attempt_number = 3, step = 30 WHERE attempt_number = 2")
    assert gate.store.launch_request(second, "b").resume_from == "file:///c/attempt-1/step-10"
