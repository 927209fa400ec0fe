"""CASES QL-01: parallel submissions at a limit, through HTTP, with one gateway process and with two."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, delete, func, select
from sqlalchemy.orm import Session
from sqlmodel import col

from gateway.api.app import create_app
from gateway.api.deps import Deps
from gateway.ledger import estate
from gateway.ledger.store import PostgresStore
from gateway.ledger.tables.capacity import QuotaRow
from gateway.ledger.tables.work import AttemptRow
from gateway.settings import Settings
from policies.plan import plan
from policies.settings import PolicySettings
from policies.vocabulary import Resource
from tests.harness.federation import Federation, job
from tests.harness.server import serving

NUMBERS = PolicySettings()


def limit(engine: Engine, federation: Federation, resource: Resource, most: int) -> None:
    with Session(engine) as session, session.begin():
        session.execute(delete(QuotaRow))
        for flavor in ("h100", "h100-spot"):
            tenant = federation.tenants["acme/nlp"]
            session.add(QuotaRow(tenant_id=tenant, flavor=flavor, resource=resource.value, max=most))


@contextlib.contextmanager
def gateways(deps: Deps, federation: Federation, count: int) -> Iterator[list[httpx.Client]]:
    with contextlib.ExitStack() as stack:
        headers = {"Authorization": f"Bearer {federation.tokens['nlp']}"}
        yield [
            stack.enter_context(
                httpx.Client(base_url=stack.enter_context(serving(create_app(deps))), headers=headers, timeout=30)
            )
            for _ in range(count)
        ]


def cycles(engine: Engine, url: str, turns: int = 3) -> None:
    """Two arbiters' stores take turns at one epoch: what the second plans on an old snapshot must not pass either."""
    stores = [PostgresStore(engine, url, Settings()) for _ in range(2)]
    epoch = stores[0].take_epoch("test")
    try:
        for _ in range(turns):
            seen = [(store, store.cycle()) for store in stores]
            for store, cycle in seen:
                store.commit(epoch, cycle, plan(cycle.snapshot, NUMBERS, cycle.now_ms))
    finally:
        for store in stores:
            store.close()


def held(engine: Engine, resource: Resource) -> int:
    with Session(engine) as session:
        return sum(u.held for u in estate.usages(session) if u.tenant == "acme/nlp" and u.resource is resource)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    "case",  # resource, limit, posts, cards of each, how many are admitted
    [(Resource.JOBS, 1, 8, 1, 1), (Resource.ACCELERATORS, 10_000, 5, 3, 3)],
    ids=["jobs", "accelerators"],
)
def test_ql_01_parallel_posts_never_pass_a_limit(
    deps: Deps, federation: Federation, database_url: str, processes: int, case: tuple[Resource, int, int, int, int]
) -> None:
    resource, most, posts, cards, admitted = case
    engine = deps.engine
    limit(engine, federation, resource, most)
    body = job(resources={"accelerators": f"H100:{cards}"}, placement={"flavors": ["h100"]})

    def post(client: httpx.Client) -> int:
        return client.post("/v1/jobs", json=body).status_code

    with gateways(deps, federation, processes) as clients, ThreadPoolExecutor(posts) as pool:
        answers = list(pool.map(post, [clients[n % processes] for n in range(posts)]))
        assert answers == [202] * posts
        cycles(engine, database_url)
        items: list[dict[str, Any]] = clients[0].get("/v1/jobs").json()["items"]
    states = Counter(item["state"] for item in items)
    assert states == {"ADMITTED": admitted, "QUEUED": posts - admitted}
    waiting = [item["pending"]["token"] for item in items if item["state"] == "QUEUED"]
    assert waiting == ["TenantLimit"] * (posts - admitted)
    with Session(engine) as session:
        live = session.execute(
            select(func.count()).select_from(AttemptRow).where(col(AttemptRow.ended_at).is_(None))
        ).scalar_one()
    assert live == admitted
    assert held(engine, Resource.ACCELERATORS) == admitted * cards * 1000
    assert held(engine, resource) <= most
