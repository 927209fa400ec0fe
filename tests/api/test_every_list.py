"""Every list of the API, as its router has them: `limit` and `cursor` are honoured, and mistakes said."""

from typing import Any
from uuid import uuid4

import httpx
import pytest
from sqlalchemy import Engine
from sqlmodel import Session

from gateway.api.openapi import document
from gateway.ledger.tables.access import ClassAllowance, Storage
from gateway.ledger.tables.accounts import AccountRow
from tests.api.conftest import Client
from tests.harness.federation import Federation, job


def _lists() -> list[str]:
    """Paths of GET operations that answer with a page: an object with `items` and `next`."""
    described = document()
    found = []
    for path, operations in described["paths"].items():
        answer = operations.get("get", {}).get("responses", {}).get("200", {})
        shape = answer.get("content", {}).get("application/json", {}).get("schema", {})
        name = shape.get("$ref", "").rpartition("/")[2]
        if {"items", "next"} <= set(described["components"]["schemas"].get(name, {}).get("properties", {})):
            found.append(path)
    return sorted(found)


LISTS = _lists()
SEVERAL = [
    "/v1/allowances",
    "/v1/backends",
    "/v1/flavors",
    "/v1/jobs",
    "/v1/pools",
    "/v1/quotas",
    "/v1/storages",
    "/v1/tenants",
    "/v1/tokens",
    "/v1/usage",
]
"""Those of which `filled` makes more than one item."""


@pytest.fixture
def filled(as_: Client, engine: Engine, federation: Federation) -> dict[str, str]:
    """More than one of most things; what a path names."""
    root, nlp = as_("root"), as_("nlp")
    made = [nlp.post("/v1/jobs", json=job(array={"indexes": 4})).json()["id"] for _ in range(3)]
    for index in (1, 2):
        nlp.post(f"/v1/jobs/{made[0]}:cancel", json={"index": index})
    root.put("/v1/backends/second", json={"kind": "backend", "name": "second", "type": "local"})
    with Session(engine) as session, session.begin():
        acme, nlp_id = federation.tenants["acme"], federation.tenants["acme/nlp"]
        session.add(Storage(tenant_id=acme, name="second", scheme="s3", prefix="s3://second/acme"))
        session.add(ClassAllowance(tenant_id=acme, klass="P0", gpu_ms=1))
        for tenant in (acme, nlp_id):
            session.add(AccountRow(kind="money", tenant_id=tenant, unit="micro_usd"))
    return {"job_id": made[0]}


def _walk(client: httpx.Client, path: str) -> list[Any]:
    found, cursor = [], None
    for _ in range(100):
        page = client.get(path, params={"limit": 1, **({"cursor": cursor} if cursor else {})}).json()
        assert len(page["items"]) <= 1
        found += page["items"]
        cursor = page["next"]
        if cursor is None:
            return found
    raise AssertionError(f"{path} has no end")


def test_the_lists_were_found() -> None:
    assert len(LISTS) >= 17
    assert set(SEVERAL) <= set(LISTS)
    assert {"/v1/jobs/{job_id}/attempts", "/v1/jobs/{job_id}/tasks", "/v1/jobs/{job_id}/events"} <= set(LISTS)


@pytest.mark.parametrize("path", LISTS)
def test_every_list_honours_limit_and_cursor(as_: Client, filled: dict[str, str], path: str) -> None:
    root, at = as_("root"), path.format(**filled)
    whole = root.get(at, params={"limit": 1000}).json()
    assert whole["next"] is None
    if path in SEVERAL:
        assert len(whole["items"]) > 1
    assert _walk(root, at) == whole["items"]


@pytest.mark.parametrize("path", LISTS)
def test_every_list_refuses_what_is_no_limit_and_no_cursor_of_its_own(
    as_: Client, filled: dict[str, str], path: str
) -> None:
    root, at = as_("root"), path.format(**filled)
    for limit in ("0", "-1", "1001", "many", ""):
        answer = root.get(at, params={"limit": limit})
        assert (answer.status_code, answer.json()["field"]) == (422, "limit"), limit
    foreign = root.get("/v1/jobs" if path != "/v1/jobs" else "/v1/quotas", params={"limit": 1}).json()["next"]
    assert foreign
    for cursor in (foreign, "x", "", uuid4().hex, foreign[:-2]):
        answer = root.get(at, params={"cursor": cursor})
        assert (answer.status_code, answer.json()["field"]) == (400, "cursor"), cursor
