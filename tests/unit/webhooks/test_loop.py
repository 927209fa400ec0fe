"""From the change of a job's state to its receivers: at least once, retries that end, and nobody holds up others."""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine

from policies.decisions import Act
from policies.vocabulary import Reason
from tests.harness.receiver import Receiver, closed_port
from tests.unit.store.world import Gate, an_admit, rows, write
from tests.unit.webhooks.conftest import MakeSender
from workflows.activities.webhooks import Send, WebhookActivity


@pytest.fixture
def gate(engine: Engine, database_url: str) -> Iterator[Gate]:
    made = Gate(engine, database_url)
    made.tenant("acme")
    made.store.take_epoch("test")
    yield made
    made.store.close()


class Clock:
    """Seconds, as far as a test moves them."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def loop(gate: Gate, send: Send, *, tries: int = 3, clock: Clock | None = None) -> WebhookActivity:
    return WebhookActivity(gate.store, send, tries=tries, clock=clock)


def due_now(gate: Gate) -> None:
    write(gate.engine, "UPDATE outbox SET due_at = now() WHERE done_at IS NULL")


def hooks(gate: Gate) -> list[Any]:
    return rows(gate.engine, "SELECT * FROM outbox WHERE kind = 'webhook' ORDER BY id")


def test_a_jobs_states_reach_those_who_asked_for_them(gate: Gate, receiver: Receiver, sender: MakeSender) -> None:
    everything = {"url": receiver.url("/all"), "on": ["ADMITTED", "RUNNING", "SUCCEEDED"]}
    job = gate.submit("acme", notify=[everything, {"url": receiver.url("/end")}], labels={"run": "7"})
    attempt = gate.admit(job)
    gate.runs(attempt)
    gate.ends(attempt)
    while asyncio.run(loop(gate, sender()).some()):
        """All of it."""
    told = sorted((got.path, json.loads(got.body)["type"]) for got in receiver.got)
    assert told == [
        ("/all", "job.ADMITTED"),
        ("/all", "job.RUNNING"),
        ("/all", "job.SUCCEEDED"),
        ("/end", "job.SUCCEEDED"),
    ]
    body = next(json.loads(got.body) for got in receiver.got if got.path == "/end")
    assert body["job"] == {
        "id": job,
        "name": "train",
        "tenant": "acme",
        "state": "SUCCEEDED",
        "reason": "Completed",
        "message": "finished with exit code 0",
        "exit_code": 0,
        "attempts": 1,
        "version": gate.job(job).version,
        "labels": {"run": "7"},
    }
    assert len({json.loads(got.body)["id"] for got in receiver.got}) == 4
    assert all(row.done_at is not None for row in hooks(gate))


def test_a_requeue_is_told_with_its_reason(gate: Gate, receiver: Receiver, sender: MakeSender) -> None:
    job = gate.submit("acme", notify=[{"url": receiver.url(), "on": ["QUEUED"]}])
    attempt = gate.admit(job)
    gate.runs(attempt)
    gate.ends(attempt, Reason.SPOT_REVOKED, None)
    asyncio.run(loop(gate, sender()).some())
    (body,) = [json.loads(got.body) for got in receiver.got]
    assert (body["type"], body["job"]["reason"]) == ("job.QUEUED", "SpotRevoked")


def test_a_change_that_is_rolled_back_tells_nobody(gate: Gate) -> None:
    job = gate.submit("acme", notify=[{"url": "https://hooks.test/x", "on": ["ADMITTED"]}], max_duration="1h")
    gate.world.budget(gate.tenants["acme"], "gpu_ms", 1)
    cycle = gate.store.cycle()
    assert gate.commit(cycle, Act(admits=(an_admit(cycle, job),))).admitted == ()
    assert hooks(gate) == []


def test_a_receiver_that_fails_is_tried_again_later_and_then_no_more(
    gate: Gate, receiver: Receiver, sender: MakeSender
) -> None:
    receiver.answers["/hook"] = 503
    clock = Clock()
    activity = loop(gate, sender(), tries=3, clock=clock)
    a_hook(gate, receiver.url())
    pauses = []
    for _ in range(3):
        assert asyncio.run(activity.some())
        (row,) = hooks(gate)
        left = rows(gate.engine, "SELECT extract(epoch FROM due_at - now())::int AS s FROM outbox WHERE kind='webhook'")
        pauses.append(left[0].s if row.done_at is None else None)
        assert row.error == "answered 503"
        clock.now += 3600
        due_now(gate)
    assert len(receiver.got) == 3
    assert [pause and round(pause, -1) for pause in pauses] == [10, 20, None]
    assert not asyncio.run(activity.some())


def test_one_that_comes_back_gets_it_once_more(gate: Gate, receiver: Receiver, sender: MakeSender) -> None:
    receiver.answers["/hook"] = 500
    clock = Clock()
    activity = loop(gate, sender(), clock=clock)
    a_hook(gate, receiver.url())
    asyncio.run(activity.some())
    del receiver.answers["/hook"]
    clock.now += 3600
    due_now(gate)
    asyncio.run(activity.some())
    assert [row.done_at is not None for row in hooks(gate)] == [True]
    assert len({got.body for got in receiver.got}) == 1, "the same delivery, known by its id"


def test_gone_is_the_end_at_once(gate: Gate, receiver: Receiver, sender: MakeSender) -> None:
    receiver.answers["/hook"] = 410
    a_hook(gate, receiver.url())
    asyncio.run(loop(gate, sender()).some())
    assert hooks(gate)[0].done_at is not None


def test_bad_receivers_hold_up_no_good_one_and_are_left_alone_after_a_failure(
    gate: Gate, receiver: Receiver, sender: MakeSender, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answers["/slow"] = 0
    slow, dead = receiver.url("/slow", "other.test"), f"https://nobody.test:{closed_port()}/s3cr3t"
    for _ in range(30):
        a_hook(gate, slow)
        a_hook(gate, dead)
        a_hook(gate, receiver.url("/good"))
    with caplog.at_level(logging.DEBUG):
        asyncio.run(loop(gate, sender(timeout_s=5.0)).some())
    seen = Counter(got.path for got in receiver.got)
    assert seen["/good"] == 30
    assert seen["/slow"] <= 4, "no more at once than one receiver may have; the rest waits until it was left alone"
    assert "s3cr3t" not in caplog.text
    assert "nobody.test" not in caplog.text


def test_a_defect_while_sending_stops_nothing_and_shows_nothing(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(data: Any) -> None:
        if "bad" in data["url"]:
            raise KeyError("https://bad.test/s3cr3t")

    a_hook(gate, "https://bad.test/s3cr3t")
    a_hook(gate, "https://good.test/")
    with caplog.at_level(logging.DEBUG):
        asyncio.run(loop(gate, broken).some())
    assert [row.done_at is not None for row in hooks(gate)] == [False, True]
    assert hooks(gate)[0].error == "a defect of the gate: KeyError"
    assert "s3cr3t" not in caplog.text


def test_the_relay_takes_no_webhook_and_the_webhooks_loop_nothing_else(gate: Gate) -> None:
    a_hook(gate, "https://hooks.test/")
    job = gate.submit("acme")
    gate.admit(job)
    assert {item.kind for item in gate.store.claim_outbox(100)} == {"start"}
    assert [item.kind for item in gate.store.claim_webhooks(100)] == ["webhook"]
    assert gate.store.claim_webhooks(100) == (), "one claim at a time"


def a_hook(gate: Gate, url: str) -> None:
    """A row as the change of a state leaves it."""
    write(
        gate.engine,
        "INSERT INTO outbox (kind, target, data) VALUES ('webhook', 'a-job',"
        " jsonb_build_object('url', CAST(:url AS text), 'tenant', 'acme', 'body', jsonb_build_object('id', 'd')))",
        url=url,
    )
