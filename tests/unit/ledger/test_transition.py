"""One function changes a state: guarded, one version up, one event, and nothing after the end."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from gateway.ledger import events
from gateway.ledger.tables.work import AttemptRow, JobRow
from gateway.ledger.transition import move_attempt, move_job
from policies.vocabulary import AttemptState, JobState, Reason
from tests.builders.ledger import World, gpus


def count(world: World) -> int:
    return int(world.scalar("SELECT count(*) FROM events"))


def test_a_step_raises_the_version_and_appends_one_event(world: World) -> None:
    job_id = world.job(world.tenant("acme"))
    with world.session() as session, session.begin():
        assert move_job(session, job_id, JobState.ADMITTED, version=1, data={"token": "Fits"})
    job: JobRow = world.row(JobRow, job_id)
    assert (job.state, job.version) == ("ADMITTED", 2)
    assert world.scalar("SELECT kind || ':' || (data->>'token') FROM events") == "ADMITTED:Fits"


@pytest.mark.parametrize(("to", "version"), [(JobState.ADMITTED, 7), (JobState.RUNNING, None), (JobState.QUEUED, None)])
def test_a_stale_version_or_a_missing_edge_changes_nothing(world: World, to: JobState, version: int | None) -> None:
    job_id = world.job(world.tenant("acme"))
    with world.session() as session, session.begin():
        assert not move_job(session, job_id, to, version=version)
    assert world.row(JobRow, job_id).version == 1
    assert count(world) == 0


def test_of_twenty_who_admit_the_same_job_one_does(world: World) -> None:
    job_id = world.job(world.tenant("acme"))

    def admit(_: int) -> bool:
        with world.session() as session, session.begin():
            return move_job(session, job_id, JobState.ADMITTED, version=1)

    with ThreadPoolExecutor(20) as pool:
        assert sum(pool.map(admit, range(20))) == 1
    assert count(world) == 1


def test_no_event_follows_the_terminal_one(world: World) -> None:
    tenant = world.tenant("acme")
    made = world.admit(world.job(tenant), gpus(1))
    world.runs(made)
    with world.session() as session, session.begin():
        assert move_job(session, made.job_id, JobState.CANCELLED, reason=Reason.USER_CANCELLED)
    before = count(world)
    with world.session() as session, session.begin():
        assert not move_attempt(session, made.attempt_id, AttemptState.STOPPING)
        assert not events.append(session, made.job_id, events.CLASS_LOWERED)
        assert not move_job(session, made.job_id, JobState.FAILED)
    assert count(world) == before
    job: JobRow = world.row(JobRow, made.job_id)
    assert job.ended_at is not None
    assert job.pending is None


def test_running_again_after_a_checkpoint_keeps_the_first_start(world: World) -> None:
    tenant = world.tenant("acme")
    made = world.admit(world.job(tenant), gpus(1))
    world.runs(made, for_s=100)
    started = world.row(AttemptRow, made.attempt_id).started_at
    for state in (AttemptState.CHECKPOINTING, AttemptState.RUNNING):
        with world.session() as session, session.begin():
            assert move_attempt(session, made.attempt_id, state)
    assert world.row(AttemptRow, made.attempt_id).started_at == started
    with world.session() as session:
        kinds = (
            session.execute(text("SELECT kind FROM events WHERE attempt_id IS NOT NULL ORDER BY id")).scalars().all()
        )
    assert kinds == ["CHECKPOINTING", "RUNNING"]
