"""POLICIES §12, shedding: a tenant's queue over its limit turns its P2 submits away until 0.94 of the limit."""

from typing import Any
from uuid import uuid4

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import Engine, text

from gateway.api.app import create_app
from gateway.api.deps import Deps
from gateway.queries.config import Configs
from tests.api.conftest import Client
from tests.harness.federation import job


class Clock:
    """Moves on at each look, so that no view is kept."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 10
        return self.now


@pytest.fixture
def app(deps: Deps) -> FastAPI:
    return create_app(
        Deps(
            engine=deps.engine,
            settings=deps.settings,
            cursor_key=deps.cursor_key,
            configs=Configs(Clock()),
        )
    )


def limit(as_: Client, tenant: str, most: int | None) -> None:
    doc = {"kind": "tenant", "path": tenant, "queue_limit": most}
    assert as_("root").post("/v1/apply", json={"documents": [doc]}).status_code == 200


def send(client: httpx.Client, **more: Any) -> httpx.Response:
    return client.post("/v1/jobs", json=job(**more))


def leave(engine: Engine, left: int) -> None:
    """So many jobs wait; the others have been admitted."""
    with engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE jobs SET state = CASE WHEN id IN (SELECT id FROM jobs ORDER BY id LIMIT :left)"
                " THEN 'QUEUED' ELSE 'ADMITTED' END"
            ),
            {"left": left},
        )


def test_over_the_limit_p2_is_turned_away_until_094_of_it(as_: Client, engine: Engine) -> None:
    limit(as_, "acme/nlp", 50)
    nlp = as_("nlp")
    assert nlp.post("/v1/jobs:batch", json={"jobs": [job() for _ in range(50)]}).status_code == 202
    refused = send(nlp)
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "30"
    assert refused.json()["type"].endswith("queue-full")
    assert "50 jobs of acme/nlp wait, its limit is 50" in refused.json()["detail"]
    assert "at most 47 wait" in refused.json()["remedy"]
    leave(engine, 48)
    assert send(nlp).status_code == 429, "48 of 50 is above 0.94 of the limit"
    leave(engine, 47)
    assert send(nlp).status_code == 202
    assert send(nlp).status_code == 202, "and on up to the limit"
    leave(engine, 49)
    assert send(nlp).status_code == 202
    assert send(nlp).status_code == 429


def test_that_a_tenant_is_shed_is_known_to_every_process(as_: Client, engine: Engine) -> None:
    limit(as_, "acme/nlp", 50)
    as_("nlp").post("/v1/jobs:batch", json={"jobs": [job() for _ in range(50)]})
    assert send(as_("nlp")).status_code == 429
    with engine.connect() as connection:
        shed = connection.execute(text("SELECT path FROM tenants WHERE shedding")).scalars().all()
    assert shed == ["acme/nlp"]


def test_a_batch_is_taken_whole_or_turned_away_and_one_that_is_too_large_sheds_nobody(as_: Client) -> None:
    limit(as_, "acme/nlp", 10)
    nlp = as_("nlp")
    assert nlp.post("/v1/jobs:batch", json={"jobs": [job() for _ in range(4)]}).status_code == 202
    refused = nlp.post("/v1/jobs:batch", json={"jobs": [job() for _ in range(7)]})
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "30")
    assert refused.json()["remedy"] == "send at most 6 at once"
    assert nlp.post("/v1/jobs:batch", json={"jobs": [job() for _ in range(6)]}).status_code == 202
    assert nlp.post("/v1/jobs:batch", json={"jobs": [job()]}).status_code == 429


def test_the_limit_counts_what_waits_below_and_touches_no_other_tenant(as_: Client) -> None:
    limit(as_, "acme", 2)
    assert send(as_("nlp")).status_code == 202
    assert send(as_("vision")).status_code == 202
    assert send(as_("nlp")).status_code == 429
    assert send(as_("other")).status_code == 202
    limit(as_, "acme", 0)
    assert send(as_("nlp")).status_code == 202, "0: any number"


def test_p1_is_counted_and_never_turned_away(as_: Client) -> None:
    limit(as_, "acme/vision", 1)
    vision = as_("vision")
    assert send(vision, priority="P1").status_code == 202
    assert send(vision, priority="P1").status_code == 202
    assert send(vision).status_code == 429
    mixed = {"jobs": [job(priority="P1"), job()]}
    assert vision.post("/v1/jobs:batch", json=mixed).status_code == 429


def test_a_repeated_call_is_answered_with_its_job_and_a_dry_run_with_a_plan(as_: Client) -> None:
    limit(as_, "acme/nlp", 1)
    key = {"Idempotency-Key": uuid4().hex}
    made = as_("nlp").post("/v1/jobs", json=job(), headers=key)
    assert send(as_("nlp")).status_code == 429
    again = as_("nlp").post("/v1/jobs", json=job(), headers=key)
    assert (again.status_code, again.json()["id"]) == (202, made.json()["id"])
    assert as_("nlp").post("/v1/jobs", params={"dry_run": "true"}, json=job()).status_code != 429


class TestWithTheGatesOwnLimit:
    """`TIDEGATE_QUEUE_LIMIT` is for tenants without a limit of their own."""

    @pytest.fixture
    def app(self, deps: Deps) -> FastAPI:
        return create_app(
            Deps(
                engine=deps.engine,
                settings=deps.settings,
                cursor_key=deps.cursor_key,
                configs=Configs(Clock(), queue_limit=2),
            )
        )

    def test_it_holds_where_nothing_else_is_said(self, as_: Client) -> None:
        limit(as_, "acme/nlp", 3)
        limit(as_, "acme", 0)
        assert [send(as_("nlp")).status_code for _ in range(4)] == [202, 202, 202, 429]
        assert [send(as_("other")).status_code for _ in range(3)] == [202, 202, 429]
