"""A job is accepted once, whatever the network does to the call (CASES RS-01)."""

import threading
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, text

from gateway.ledger.engine import in_transaction
from gateway.ledger.submit import KeyConflictError, NewJob, SubmitResult, body_digest, submit, submit_many
from tests.unit.store.world import a_spec, add_tenant, scalar
from tidegate.wire.spec import JobSpec


def send(engine: Engine, tenant_id: int, spec: JobSpec, key: str | None) -> SubmitResult:
    return in_transaction(
        engine,
        lambda session: submit(
            session,
            tenant_id=tenant_id,
            principal="ada",
            spec=spec,
            key=key,
            body_digest=body_digest(spec),
            job_id=uuid4(),
        ),
    )


def test_rs_01_a_the_same_key_and_body_twice_is_one_job(engine: Engine) -> None:
    tenant = add_tenant(engine, "acme")
    first, second = (send(engine, tenant, a_spec(), "k1") for _ in range(2))
    assert (first.replayed, second.replayed) == (False, True)
    assert first.job_id == second.job_id
    assert scalar(engine, "SELECT count(*) FROM jobs") == 1
    assert scalar(engine, "SELECT count(*) FROM events") == 1


def test_rs_01_b_twenty_in_parallel_make_one_job(engine: Engine) -> None:
    tenant = add_tenant(engine, "acme")
    results: list[SubmitResult] = []
    barrier = threading.Barrier(20)

    def call() -> None:
        barrier.wait(timeout=30)
        results.append(send(engine, tenant, a_spec(), "same"))

    threads = [threading.Thread(target=call) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(results) == 20
    assert len({result.job_id for result in results}) == 1
    assert sum(not result.replayed for result in results) == 1
    assert scalar(engine, "SELECT count(*) FROM jobs") == 1


def test_rs_01_c_the_same_key_with_another_body_is_refused_and_makes_nothing(engine: Engine) -> None:
    tenant = add_tenant(engine, "acme")
    first = send(engine, tenant, a_spec(), "k1")
    with pytest.raises(KeyConflictError, match="another body") as caught:
        send(engine, tenant, a_spec(name="other"), "k1")
    assert caught.value.job_id == first.job_id
    assert scalar(engine, "SELECT count(*) FROM jobs") == 1


def test_rs_01_d_the_key_of_another_tenant_is_another_key(engine: Engine) -> None:
    one, two = add_tenant(engine, "acme"), add_tenant(engine, "umbrella")
    assert send(engine, one, a_spec(), "k1").job_id != send(engine, two, a_spec(), "k1").job_id
    assert scalar(engine, "SELECT count(*) FROM jobs") == 2


def test_rs_01_e_the_order_of_keys_and_the_spelling_of_numbers_make_no_other_body(engine: Engine) -> None:
    tenant = add_tenant(engine, "acme")
    one = JobSpec.model_validate(
        {"name": "a", "run": "true", "env": {"A": "1", "B": "2"}, "resources": {"cpus": 1, "memory": "1Gi"}}
    )
    two = JobSpec.model_validate(
        {"resources": {"memory": "1024Mi", "cpus": 1.0}, "env": {"B": "2", "A": "1"}, "run": "true", "name": "a"}
    )
    assert send(engine, tenant, one, "k1").job_id == send(engine, tenant, two, "k1").job_id
    assert scalar(engine, "SELECT count(*) FROM jobs") == 1


def test_rs_01_f_a_replay_after_a_restart_finds_the_job(engine: Engine) -> None:
    tenant = add_tenant(engine, "acme")
    first = send(engine, tenant, a_spec(), "k1")
    engine.dispose()
    again = send(engine, tenant, a_spec(), "k1")
    assert (again.job_id, again.replayed) == (first.job_id, True)


def test_rs_01_g_killed_before_the_commit_leaves_neither_key_nor_job(engine: Engine) -> None:
    tenant = add_tenant(engine, "acme")

    def dies(session: object) -> None:
        submit(session, tenant_id=tenant, principal="ada", spec=a_spec(), key="k1", body_digest=b"x", job_id=uuid4())  # type: ignore[arg-type]
        raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        in_transaction(engine, dies)
    assert scalar(engine, "SELECT count(*) FROM jobs") == 0
    assert not send(engine, tenant, a_spec(), "k1").replayed


def test_rs_01_h_the_key_of_a_job_that_has_ended_shows_its_end(engine: Engine) -> None:
    tenant = add_tenant(engine, "acme")
    first = send(engine, tenant, a_spec(), "k1")
    with engine.begin() as connection:
        connection.execute(text("UPDATE jobs SET state = 'SUCCEEDED', ended_at = now()"))
    again = send(engine, tenant, a_spec(), "k1")
    assert (again.job_id, again.replayed) == (first.job_id, True)
    assert scalar(engine, "SELECT state FROM jobs") == "SUCCEEDED"


def test_a_batch_is_one_transaction_and_its_replay_makes_only_what_is_missing(engine: Engine) -> None:
    tenant = add_tenant(engine, "acme")
    jobs = [NewJob(a_spec(name=f"j{n}"), uuid4(), f"k/{n}", bytes([n])) for n in range(50)]

    def send_all(batch: list[NewJob]) -> list[SubmitResult]:
        return list(in_transaction(engine, lambda s: submit_many(s, tenant_id=tenant, principal="ada", jobs=batch)))

    first = send_all(jobs[:30])
    assert [result.job_id for result in first] == [job.job_id for job in jobs[:30]]
    again = send_all([NewJob(job.spec, uuid4(), job.key, job.digest) for job in jobs])
    assert [result.replayed for result in again] == [True] * 30 + [False] * 20
    assert [result.job_id for result in again[:30]] == [job.job_id for job in jobs[:30]]
    assert scalar(engine, "SELECT count(*) FROM jobs") == 50
    assert scalar(engine, "SELECT count(*) FROM events WHERE kind = 'QUEUED'") == 50


def test_jobs_without_a_key_are_never_the_same(engine: Engine) -> None:
    tenant = add_tenant(engine, "acme")
    made = {send(engine, tenant, a_spec(), None).job_id for _ in range(3)}
    assert len(made) == 3
    assert all(isinstance(job_id, UUID) for job_id in made)
