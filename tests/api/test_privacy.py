"""DESIGN §8: a tenant never sees another's jobs, ids or numbers beyond what its level may see, wherever they stand.

A preemption between two tenants is played through ledger and plan; then each tenant asks every route that there is.
"""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import Engine, text

from backends.types import PoolCapacity
from gateway.api.app import create_app
from gateway.api.deps import Deps
from gateway.api.openapi import document
from gateway.ledger.config import PlainSettings
from gateway.ledger.store import PostgresStore
from gateway.queries.scope import Scope
from gateway.queries.veil import HIDDEN, veiled_one
from policies.plan import plan
from policies.settings import PolicySettings
from policies.snapshot import Node, Resources
from policies.vocabulary import AttemptState, Reason
from tests.api.conftest import Client
from tests.harness.federation import Federation, job
from tidegate.wire.job import Event, Why
from workflows.messages import EndRequest

NUMBERS = PolicySettings()


@pytest.fixture
def app(deps: Deps) -> FastAPI:
    return create_app(
        Deps(
            engine=deps.engine,
            settings=deps.settings,
            cursor_key=deps.cursor_key,
            plan=lambda snapshot, now_ms: plan(snapshot, NUMBERS, now_ms),
        )
    )


@dataclass
class Played:
    """`victim` (of tenant other) makes way for `waiter` (of acme/vision); `third` (of acme/nlp) waits."""

    store: PostgresStore
    victim: str
    waiter: str
    third: str

    def cycle(self) -> None:
        found = self.store.cycle()
        self.store.commit(self.store.take_epoch("test"), found, plan(found.snapshot, NUMBERS, found.now_ms))

    def ids_of(self, name: str) -> tuple[str, str]:
        """Of a job, as it stands in texts: by itself, and inside its attempts' ids."""
        found = str(getattr(self, name))
        return found, UUID(found).hex


def spot(cards: int = 8, nodes: int = 4, **more: Any) -> dict[str, object]:
    placement = {"pools": ["spot"]}
    return job(**{"resources": {"accelerators": f"H100:{cards}"}, "num_nodes": nodes, "placement": placement, **more})


@pytest.fixture
def played(engine: Engine, database_url: str, as_: Client) -> Iterator[Played]:
    store = PostgresStore(engine, database_url, PlainSettings(), policy=NUMBERS)
    nodes = tuple(Node(f"n{n}", Resources(8000, 64_000, 512 << 30, 1 << 40)) for n in range(4))
    store.capacity("cluster", [PoolCapacity("spot", nodes, datetime.now(UTC))])
    with engine.begin() as connection:
        connection.execute(text("UPDATE pools SET place_first = true, places_nodes = true WHERE name = 'spot'"))

    def submit(principal: str, **more: Any) -> str:
        answer = as_(principal).post("/v1/jobs", json=spot(**more))
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def attempt(job_id: str) -> str:
        with engine.connect() as connection:
            return str(
                connection.execute(text("SELECT id FROM attempts WHERE job_id = :j"), {"j": UUID(job_id)}).scalar_one()
            )

    made = Played(store, victim=submit("other", name="victim"), waiter="", third="")
    made.cycle()
    running = attempt(made.victim)
    store.mark(running, AttemptState.PENDING)
    store.prepared(running, "cluster", "native")
    store.started(running, "cluster")
    store.mark(running, AttemptState.RUNNING)
    with engine.begin() as connection:
        past = {"past": "2 hours"}
        for table in ("attempts", "leases"):
            connection.execute(
                text(f"UPDATE {table} SET created_at = created_at - CAST(:past AS interval)"),
                past,
            )
        connection.execute(text("UPDATE attempts SET started_at = started_at - CAST(:past AS interval)"), past)
    made.waiter = submit("vision", name="waiter", priority="P1", max_duration="1h")
    made.third = submit("nlp", name="third")
    made.cycle()
    placed = attempt(made.waiter)  # only then its victim is told
    store.mark(placed, AttemptState.PENDING)
    store.prepared(placed, "cluster", "native")
    yield made
    store.close()


def told(client: httpx.Client, own: str, *, tenant: str | None = None) -> dict[str, str]:
    """Every GET route with what it answers to this caller about its own job; routes of files and health left out."""
    found = {}
    for path, operations in document()["paths"].items():
        if "get" not in operations or any(part in path for part in ("/logs", "/attempt/", "workdirs", "openapi")):
            continue
        url = path.replace("{job_id}", own).replace("{name}", "spot").replace("{path}", tenant or "other")
        answer = client.get(url, params={"flavor": "h100-spot"} if "/quotas/" in path else None)
        assert answer.status_code in {200, 404, 403}, (url, answer.text)
        found[path] = answer.text
    stream = client.get(f"/v1/jobs/{own}/events", params={"limit": 500})
    found["events"] = stream.text
    for body in (spot(), spot(priority="P1") if tenant == "acme/vision" else spot(cards=1, nodes=1)):
        found[f"dry run {body.get('priority', '')}"] = client.post(
            "/v1/jobs", params={"dry_run": "true"}, json=body
        ).text
    return found


def assert_nothing_of(ids: tuple[str, ...], answers: dict[str, str]) -> None:
    for where, answer in answers.items():
        for one in ids:
            assert one not in answer, (where, answer)


def test_no_route_shows_a_tenant_the_other_sides_ids_while_the_preemption_is_under_way(
    played: Played, as_: Client
) -> None:
    root = as_("root")
    waits = root.get(f"/v1/jobs/{played.waiter}").json()["pending"]
    assert waits["token"] == "WaitingForPreemption", waits
    assert UUID(played.victim).hex in waits["blocker"], "the scenario holds: an operator sees it"
    assert UUID(played.waiter).hex in root.get(f"/v1/jobs/{played.victim}/events").text
    third = root.get(f"/v1/jobs/{played.third}").text

    assert_nothing_of(played.ids_of("victim"), told(as_("vision"), played.waiter, tenant="acme/vision"))
    assert_nothing_of(played.ids_of("waiter"), told(as_("other"), played.victim, tenant="other"))
    others = (*played.ids_of("victim"), *played.ids_of("waiter"))
    assert_nothing_of(others, told(as_("nlp"), played.third, tenant="acme/nlp"))

    shown = as_("vision").get(f"/v1/jobs/{played.waiter}").json()["pending"]
    assert shown["blocker"] == HIDDEN
    assert shown["numbers"]["victims"] == 1
    assert "cost_gpu_ms" in waits["numbers"]
    assert not [name for name in shown["numbers"] if name.startswith("cost_gpu_ms")]
    assert as_("other").get(f"/v1/jobs/{played.victim}").status_code == 200
    assert third


def test_nor_once_it_is_settled_and_paid(played: Played, as_: Client, engine: Engine) -> None:
    with engine.connect() as connection:
        attempt = connection.execute(
            text("SELECT id FROM attempts WHERE job_id = :j"), {"j": UUID(played.victim)}
        ).scalar_one()
    played.store.stop_sent(attempt)
    played.store.settle(EndRequest(attempt, Reason.PREEMPTED.value))
    played.cycle()
    root = as_("root")
    credit = root.get("/v1/credits").text
    assert UUID(played.waiter).hex in credit, "the scenario holds: the credit names the preemption"
    statement = root.get("/v1/statement", params={"tenant": "acme/vision"}).text
    assert UUID(played.victim).hex in statement, "and the waiter's lease whose share it was"
    assert_nothing_of(played.ids_of("victim"), told(as_("vision"), played.waiter, tenant="acme/vision"))
    assert_nothing_of(played.ids_of("waiter"), told(as_("other"), played.victim, tenant="other"))
    own = as_("other").get("/v1/credits").json()["items"]
    assert [(one["victim_attempt"], one["preemption"]) for one in own] == [(attempt, HIDDEN)]
    lines = as_("vision").get("/v1/statement", params={"tenant": "acme/vision"}).json()["items"]
    assert any(HIDDEN in line["cause"] for line in lines)


def test_who_stands_above_both_sees_both(played: Played, as_: Client) -> None:
    """An admin of acme sees its own waiter and third, and not the victim of the tenant beside it."""
    answers = told(as_("acme-admin"), played.waiter, tenant="acme")
    assert_nothing_of(played.ids_of("victim"), answers)
    assert played.third in answers["/v1/jobs"]


def test_a_cursor_holds_no_id_of_others(played: Played, as_: Client, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO credits (victim_attempt, preemption, tenant_id, flavor, gpu_ms)"
                " SELECT 'tg-x-' || n, :of, id, 'h100', 1 FROM tenants, generate_series(1, 3) n WHERE path = 'other'"
            ),
            {"of": f"tg-{UUID(played.waiter).hex}-1"},
        )
    other, seen, cursor = as_("other"), [], None
    while True:
        page = other.get("/v1/credits", params={"limit": 1, **({"cursor": cursor} if cursor else {})}).json()
        seen += [one["victim_attempt"] for one in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        assert UUID(played.waiter).hex.encode() not in raw
    assert sorted(seen) == ["tg-x-1", "tg-x-2", "tg-x-3"]


def test_a_limit_above_says_the_limit_and_not_what_siblings_use(
    as_: Client, engine: Engine, database_url: str, federation: Federation
) -> None:
    store = PostgresStore(engine, database_url, PlainSettings(), policy=NUMBERS)
    node = Node("n0", Resources(64_000, 512_000, 1 << 40, 1 << 40))
    store.capacity("cluster", [PoolCapacity("spot", (node,), datetime.now(UTC))])
    budget = {"kind": "budget", "tenant": "acme", "amount": 10}
    quota = {"kind": "quota", "tenant": "acme", "flavor": "h100-spot", "max": 12}
    assert as_("root").post("/v1/apply", json={"documents": [budget, quota]}).status_code == 200
    sibling = as_("vision").post("/v1/jobs", json=spot(cards=8, nodes=1, max_duration="1h")).json()["id"]
    made = Played(store, "", "", "")
    made.cycle()
    assert as_("root").get(f"/v1/jobs/{sibling}").json()["state"] == "ADMITTED"
    unpaid = as_("nlp").post("/v1/jobs", json=spot(cards=1, nodes=1, max_duration="4h")).json()["id"]
    large = as_("nlp").post("/v1/jobs", json=spot(cards=8, nodes=1, max_duration="10m")).json()["id"]
    made.cycle()
    store.close()
    for found, token in ((unpaid, "BudgetExhausted"), (large, "TenantLimit")):
        whole = as_("acme-admin").get(f"/v1/jobs/{found}").json()["pending"]
        shown = as_("nlp").get(f"/v1/jobs/{found}").json()["pending"]
        assert (shown["token"], shown["blocker"]) == (token, "acme")
        assert whole["numbers"]["used"] > 0
        assert set(whole["numbers"]) - set(shown["numbers"]) == {"used", "spent"} & set(whole["numbers"])
        assert shown["numbers"]["limit"] == whole["numbers"]["limit"]
        told_of = json.dumps([shown, as_("nlp").get(f"/v1/jobs/{found}/explain").json()])
        assert str(whole["numbers"]["used"]) not in told_of


def test_ids_are_found_wherever_they_stand_and_nothing_else_is_changed(
    played: Played, engine: Engine, deps: Deps
) -> None:
    theirs, own = played.victim, played.waiter
    attempt = f"tg-{UUID(theirs).hex}-c12-3"
    event = Event(
        id=1,
        at=datetime.now(UTC),
        job=own,
        kind="x",
        reason=f"made way for {attempt}, later for {theirs}/7",
        data={attempt: [{"deep": (theirs, own)}], "uuid": "11111111-1111-4111-8111-111111111111", "n": 7},
    )
    with deps.transaction() as session:
        shown = veiled_one(session, Scope("acme"), event)
        same = veiled_one(session, Scope(None), event)
        gone = veiled_one(session, Scope("acme"), Why(token="x", blocker=f"tg-{'0' * 32}-1"))
    assert same == event
    assert shown.reason == f"made way for {HIDDEN}, later for {HIDDEN}"
    assert shown.data == {
        HIDDEN: [{"deep": (HIDDEN, own)}],
        "uuid": "11111111-1111-4111-8111-111111111111",
        "n": 7,
    }
    assert gone.blocker == HIDDEN, "of a job whose row is gone nobody knows whose it was"
