"""POLICIES §7, override: an operator forces or forbids one preemption, with a reason and an expiry; both audited."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, text

from backends.types import PoolCapacity
from gateway.ledger.config import PlainSettings
from gateway.ledger.store import PostgresStore
from policies.plan import plan
from policies.settings import PolicySettings
from policies.snapshot import Node, Resources
from policies.vocabulary import AttemptState
from tests.api.conftest import Client
from tests.api.test_operators_verbs import Ran, ran
from tests.harness.federation import job

__all__ = ["ran"]  # the fixture, for this module too
NUMBERS = PolicySettings()
WORD = {"preemption": "forbid", "reason": "a demo for the board", "expires_in": "4h"}


class Cluster:
    """Two nodes of eight cards, each taken by a running job of tenant other, which has promised itself an hour."""

    def __init__(self, engine: Engine, url: str, as_: Client) -> None:
        self.engine = engine
        self.as_ = as_
        self.store = PostgresStore(engine, url, PlainSettings(), policy=NUMBERS)
        nodes = tuple(Node(f"n{n}", Resources(8000, 64_000, 512 << 30, 1 << 40)) for n in range(2))
        self.store.capacity("cluster", [PoolCapacity("spot", nodes, datetime.now(UTC))])
        with engine.begin() as connection:
            connection.execute(text("UPDATE pools SET place_first = true, places_nodes = true WHERE name = 'spot'"))
        self.jobs = [self.submit("other", min_runtime="1h") for _ in range(2)]
        self.cycle()
        for one in self.jobs:
            attempt = self.attempt(one)
            self.store.mark(attempt, AttemptState.PENDING)
            self.store.prepared(attempt, "cluster", "native")
            self.store.started(attempt, "cluster")
            self.store.mark(attempt, AttemptState.RUNNING)

    def submit(self, principal: str, **more: Any) -> str:
        body = job(resources={"accelerators": "H100:8"}, placement={"pools": ["spot"]}, **more)
        answer = self.as_(principal).post("/v1/jobs", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def attempt(self, job_id: str) -> str:
        with self.engine.connect() as connection:
            found = connection.execute(text("SELECT id FROM attempts WHERE job_id = :j"), {"j": UUID(job_id)})
            return str(found.scalar_one())

    def cycle(self) -> None:
        found = self.store.cycle()
        self.store.commit(self.store.take_epoch("test"), found, plan(found.snapshot, NUMBERS, found.now_ms))

    def runs_since(self, job_id: str, hours: int) -> None:
        with self.engine.begin() as connection:
            connection.execute(
                text("UPDATE attempts SET started_at = now() - make_interval(hours => :h) WHERE job_id = :j"),
                {"h": hours, "j": UUID(job_id)},
            )

    def victims(self) -> list[str]:
        """Those on whom a live waiter's lease is contingent."""
        with self.engine.connect() as connection:
            rows = connection.execute(text("SELECT contingent_on FROM leases WHERE state = 'contingent'"))
            return [victim for row in rows for victim in row.contingent_on]


@pytest.fixture
def cluster(engine: Engine, database_url: str, as_: Client) -> Iterator[Cluster]:
    made = Cluster(engine, database_url, as_)
    yield made
    made.store.close()


def test_a_forbidden_preemption_takes_another_victim_and_is_over_when_its_time_is(
    cluster: Cluster, as_: Client, engine: Engine
) -> None:
    for one in cluster.jobs:
        cluster.runs_since(one, 5)
    kept, other = cluster.jobs
    made = as_("root").post("/v1/overrides", json={**WORD, "job": kept})
    assert made.status_code == 201
    assert (made.json()["attempt"], made.json()["tenant"], made.json()["by"]) == (
        cluster.attempt(kept),
        "other",
        "root",
    )
    cluster.submit("vision", priority="P1", max_duration="1h")
    cluster.cycle()
    assert cluster.victims() == [cluster.attempt(other)]
    cluster.submit("vision", priority="P1", max_duration="1h")
    cluster.cycle()
    assert cluster.victims() == [cluster.attempt(other)], "the only other one is forbidden"
    with engine.begin() as connection:
        connection.execute(text("UPDATE overrides SET expires_at = now()"))
    cluster.cycle()
    assert sorted(cluster.victims()) == sorted(cluster.attempt(one) for one in cluster.jobs)


def test_a_forced_one_is_not_spared_by_what_it_was_promised(cluster: Cluster, as_: Client) -> None:
    cluster.submit("vision", priority="P1", max_duration="1h")
    cluster.cycle()
    assert cluster.victims() == [], "both are within their min_runtime"
    forced = cluster.attempt(cluster.jobs[1])
    word = {**WORD, "preemption": "force", "attempt": forced}
    assert as_("root").post("/v1/overrides", json=word).status_code == 201
    cluster.cycle()
    assert cluster.victims() == [forced]


def test_to_forbid_outweighs_to_force_and_an_ended_word_is_none(cluster: Cluster, as_: Client) -> None:
    root = as_("root")
    target = {"attempt": cluster.attempt(cluster.jobs[0])}
    root.post("/v1/overrides", json={**WORD, **target, "preemption": "force"})
    forbidden = root.post("/v1/overrides", json={**WORD, **target}).json()["id"]
    cluster.submit("vision", priority="P1", max_duration="1h")
    cluster.cycle()
    assert cluster.victims() == []
    assert root.delete(f"/v1/overrides/{forbidden}").status_code == 200
    cluster.cycle()
    assert cluster.victims() == [target["attempt"]]
    assert root.delete(f"/v1/overrides/{forbidden}").status_code == 200, "once more changes nothing"
    acts = [(act["action"], act["tenant"], act["reason"]) for act in root.get("/v1/audit").json()["items"]]
    assert acts == [
        ("override.end", "other", WORD["reason"]),
        ("override.forbid", "other", WORD["reason"]),
        ("override.force", "other", WORD["reason"]),
    ]


def test_operators_write_and_the_jobs_tenant_sees_the_word_and_its_audit(cluster: Cluster, as_: Client) -> None:
    target = {"job": cluster.jobs[0]}
    assert as_("other-admin").post("/v1/overrides", json={**WORD, **target}).status_code == 403
    made = as_("root").post("/v1/overrides", json={**WORD, **target}).json()
    assert as_("other").get("/v1/overrides").json()["items"] == [made]
    assert as_("acme-admin").get("/v1/overrides").json()["items"] == []
    assert [act["action"] for act in as_("other-admin").get("/v1/audit").json()["items"]] == ["override.forbid"]
    assert as_("other-admin").delete(f"/v1/overrides/{made['id']}").status_code == 403


@pytest.mark.parametrize(
    ("change", "status", "field"),
    [
        ({}, 422, "attempt"),
        ({"attempt": "tg-x-1", "job": str(UUID(int=1))}, 422, "attempt"),
        ({"attempt": "tg-x-1"}, 404, ""),
        ({"job": str(UUID(int=1))}, 404, ""),
        ({"attempt": "tg-x-1", "reason": " "}, 422, "reason"),
        ({"attempt": "tg-x-1", "expires_in": 5}, 422, "expires_in"),
        ({"attempt": "tg-x-1", "expires_in": "60d"}, 422, "expires_in"),
        ({"attempt": "tg-x-1", "preemption": "maybe"}, 422, "preemption"),
    ],
)
def test_a_word_about_nothing_or_without_reason_or_end_is_refused(
    as_: Client, change: dict[str, object], status: int, field: str
) -> None:
    answer = as_("root").post("/v1/overrides", json={**WORD, **change})
    assert (answer.status_code, answer.json().get("field") or "") == (status, field), answer.text


def test_the_command_line_forces_forbids_lists_and_ends(cluster: Cluster, ran: Ran) -> None:
    first, second = cluster.jobs
    assert ran("root", "override", "forbid", first, "--for", "4h")[0] == 64, "without a reason"
    code, out, _ = ran("root", "override", "forbid", first, "--reason", "a demo", "--for", "4h", "--json")
    made = json.loads(out)
    assert (code, made["attempt"], made["preemption"]) == (0, cluster.attempt(first), "forbid")
    attempt = cluster.attempt(second)
    code, out, _ = ran("root", "override", "force", attempt, "--reason", "maintenance", "--for", "1h")
    assert (code, f"force the preemption of {attempt} until" in out) == (0, True)
    code, out, _ = ran("other", "override", "list", "--json")
    assert (code, [o["reason"] for o in json.loads(out)]) == (0, ["a demo", "maintenance"])
    assert "maintenance" in ran("root", "override", "list")[1]
    assert ran("root", "override", "end", str(made["id"]))[:2] == (0, f"{made['id']} ended\n")
    assert ran("root", "override", "forbid", first, "--reason", "x", "--for", "soon")[0] == 64
    assert ran("other-admin", "override", "forbid", first, "--reason", "x", "--for", "1h")[0] == 65
