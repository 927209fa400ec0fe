"""CASES QL-01 exactly: a burst at a limit, at one `tidegate serve` process and at two, and somebody who reads along.

The arbiter runs while the POSTs arrive, and a second store of it commits plans made on older snapshots.
"""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, delete, text
from sqlalchemy.orm import Session

from gateway.ledger.check import check
from gateway.ledger.store import PostgresStore
from gateway.ledger.tables.capacity import QuotaRow
from gateway.settings import Settings
from policies.plan import plan
from policies.settings import PolicySettings
from policies.vocabulary import Resource
from tests.harness.federation import Federation, job
from tests.harness.gateways import gateways
from tests.harness.waiting import eventually

LIVE = {"ADMITTED", "RUNNING", "STOPPING"}
CARDS_OF = text(
    """
    SELECT coalesce(sum(a.posted + a.pending), 0)::bigint FROM accounts a JOIN tenants t ON t.id = a.tenant_id
    WHERE t.path = 'acme/nlp' AND a.kind = 'concurrency' AND a.flavor = 'h100' AND a.unit = :unit
    """
)
LIVE_ATTEMPTS = text("SELECT count(*) FROM attempts WHERE ended_at IS NULL")


class Readers:
    """Read along, at every gateway and in the database, as fast as they may; the most that was ever seen."""

    def __init__(self, clients: list[httpx.Client], engine: Engine, unit: str, each: int) -> None:
        self._clients, self._engine, self._unit, self._each = clients, engine, unit, each
        self._done = threading.Event()
        self.most = 0
        self.reads = 0

    def run(self) -> None:
        while not self._done.is_set():
            for client in self._clients:
                items: list[dict[str, Any]] = client.get("/v1/jobs").raise_for_status().json()["items"]
                self._note(sum(item["state"] in LIVE for item in items) * self._each)
                quotas = client.get("/v1/quotas").raise_for_status().json()["items"]
                mine = [q for q in quotas if (q["tenant"], q["flavor"], q["resource"]) == self._row]
                self._note(sum(int(q["held"]) for q in mine))
            with self._engine.connect() as connection:
                held = int(connection.execute(CARDS_OF, {"unit": self._unit}).scalar_one())
                self._note(held // (1000 if self._unit == "accelerators" else 1))

    def stop(self) -> None:
        self._done.set()

    @property
    def _row(self) -> tuple[str, str, str]:
        return "acme/nlp", "h100", self._unit

    def _note(self, seen: int) -> None:
        self.most = max(self.most, seen)
        self.reads += 1


def arbiter(engine: Engine, url: str, epoch: int, decided: Callable[[], bool]) -> None:
    """Cycles until all is decided. Two of these share an epoch: the one commits what the other has overtaken."""
    store = PostgresStore(engine, url, Settings())
    try:
        while not decided():
            cycle = store.cycle()
            store.commit(epoch, cycle, plan(cycle.snapshot, PolicySettings(), cycle.now_ms))
    finally:
        store.close()


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    "case",  # resource, limit, posts, cards of each, how many are admitted
    [(Resource.JOBS, 1, 8, 1, 1), (Resource.ACCELERATORS, 10, 5, 3, 3)],
    ids=["limit 1 job, 8 posts", "limit 10 GPUs, 5 posts of 3"],
)
def test_ql_01_a_burst_at_real_processes(  # noqa: PLR0917  (fixtures and parameters are asked for by name)
    engine: Engine,
    federation: Federation,
    database_url: str,
    tmp_path: Path,
    processes: int,
    case: tuple[Resource, int, int, int, int],
) -> None:
    resource, limit, posts, cards, admitted = case
    unit = 1000 if resource is Resource.ACCELERATORS else 1
    each = cards if resource is Resource.ACCELERATORS else 1
    with Session(engine) as session, session.begin():
        session.execute(delete(QuotaRow))
        tenant = federation.tenants["acme/nlp"]
        session.add(QuotaRow(tenant_id=tenant, flavor="h100", resource=resource.value, max=limit * unit))
    body = job(resources={"accelerators": f"H100:{cards}"}, placement={"flavors": ["h100"]})
    epoch = PostgresStore(engine, database_url, Settings()).take_epoch("arbiter")
    answers: list[int] = []

    with ExitStack() as ends, ThreadPoolExecutor(posts + 3) as pool:
        headers = {"Authorization": f"Bearer {federation.tokens['nlp']}"}
        urls = ends.enter_context(gateways(database_url, tmp_path, processes))
        clients = [ends.enter_context(httpx.Client(base_url=url, headers=headers, timeout=60)) for url in urls]

        def jobs() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = clients[-1].get("/v1/jobs").raise_for_status().json()["items"]
            return found

        def decided() -> bool:
            found = jobs()
            return len(found) == posts and all(one["state"] != "QUEUED" or one["pending"] for one in found)

        readers = Readers(clients, engine, resource.value, each)
        reading = pool.submit(readers.run)
        go = threading.Barrier(posts)

        def post(number: int) -> None:
            go.wait()
            answers.append(clients[number % processes].post("/v1/jobs", json=body).status_code)

        sent = [pool.submit(post, number) for number in range(posts)]
        arbiters = [pool.submit(arbiter, engine, database_url, epoch, decided) for _ in range(2)]
        for one in [*sent, *arbiters]:
            one.result(timeout=100)
        eventually(lambda: readers.reads > 30, what="reads after the burst")
        readers.stop()
        reading.result(timeout=60)
        found = jobs()

    assert answers == [202] * posts
    assert Counter(one["state"] for one in found) == {"ADMITTED": admitted, "QUEUED": posts - admitted}
    waiting = [one["pending"]["token"] for one in found if one["state"] == "QUEUED"]
    assert waiting == ["TenantLimit"] * (posts - admitted)
    assert readers.most == admitted * each <= limit
    with engine.connect() as connection:
        assert connection.execute(LIVE_ATTEMPTS).scalar_one() == admitted
        assert connection.execute(CARDS_OF, {"unit": resource.value}).scalar_one() == admitted * each * unit
    assert check(engine) == []
