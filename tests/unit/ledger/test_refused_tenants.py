"""A job whose tenant a backend does not serve stays away from it, until that may have changed."""

import uuid

from sqlalchemy import text

from gateway.ledger import queue
from gateway.ledger.queue import QueueMemory
from gateway.ledger.settlement import settle
from gateway.ledger.settlement_jobs import REFUSED_MS
from gateway.ledger.tables.work import JobRow
from tests.builders.ledger import World, gpus
from workflows.messages import EndRequest

PLAIN = {"capacity": "mixed", "placement": {}}
WORDS = "Misconfigured: name a common tenant in trust_below"


def refused(world: World, job_id: uuid.UUID, backend: str) -> str:
    made = world.admit(job_id, gpus(1))
    with world.session() as session, session.begin():
        end = EndRequest(made.attempt_id, "BackendRefused", message=WORDS, refused_by=backend)
        return settle(session, end).job_state


def execute(world: World, statement: str) -> None:
    with world.session() as session, session.begin():
        session.execute(text(statement))


def stays_away(world: World, memory: QueueMemory) -> dict[str, tuple[tuple[str, str], ...]]:
    with world.session() as session:
        return {job.id: job.placement.refused_by for job in queue.read(session, memory).jobs}


def test_it_is_queued_with_the_remedy_and_keeps_away_from_that_backend_alone(world: World) -> None:
    tenant = world.tenant("acme")
    wish, other = world.job(tenant, request=PLAIN), world.job(tenant, request=PLAIN)
    backend = world.scalar("SELECT name FROM backends")
    memory = QueueMemory()
    assert stays_away(world, memory) == {str(wish): (), str(other): ()}
    assert refused(world, wish, backend) == "QUEUED"
    assert stays_away(world, memory) == {str(wish): ((backend, WORDS),), str(other): ()}
    assert world.row(JobRow, wish).failures == 0, "what an operator has to mend is no failure of the job"


def test_a_changed_document_of_the_backend_lets_it_try_again(world: World) -> None:
    wish = world.job(world.tenant("acme"), request=PLAIN)
    backend, memory = world.scalar("SELECT name FROM backends"), QueueMemory()
    refused(world, wish, backend)
    execute(world, "UPDATE backends SET version = version + 1")
    assert stays_away(world, memory) == {str(wish): ()}
    refused(world, wish, backend)
    assert stays_away(world, memory) == {str(wish): ((backend, WORDS),)}, "the changed one refused too"


def test_after_an_hour_it_may_ask_once_more(world: World) -> None:
    wish = world.job(world.tenant("acme"), request=PLAIN)
    backend, memory = world.scalar("SELECT name FROM backends"), QueueMemory()
    refused(world, wish, backend)
    path = f"{{refused_by,{backend},until_ms}}"
    until = int(world.scalar(f"SELECT request #>> '{path}' FROM jobs"))
    now = int(world.scalar("SELECT (extract(epoch FROM now()) * 1000)::bigint"))
    assert 0 <= now + REFUSED_MS - until < 60_000
    execute(world, f"UPDATE jobs SET version = version + 1, request = jsonb_set(request, '{path}', '{now - 1}')")
    assert stays_away(world, memory) == {str(wish): ()}


def test_an_array_stays_away_as_a_whole(world: World) -> None:
    tenant = world.tenant("acme")
    array = {**PLAIN, "array": {"max_failed": 0, "parallelism": None}}
    wish = world.job(tenant, array_size=3, request=array)
    backend = world.scalar("SELECT name FROM backends")
    made = world.admit(wish, gpus(1), chunk=0, first_index=0, last_index=0)
    with world.session() as session, session.begin():
        settle(session, EndRequest(made.attempt_id, "BackendRefused", message=WORDS, refused_by=backend))
    held = stays_away(world, QueueMemory())
    assert f"{wish}/2" in held
    assert set(held.values()) == {((backend, WORDS),)}
