"""Lists while jobs come and go (CASES RS-03)."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest
from sqlalchemy import Engine, delete, update
from sqlalchemy.orm import Session
from sqlmodel import col

from gateway.ledger.tables.work import JobRow
from tests.api.conftest import Client
from tests.harness.federation import Federation, job

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def submitted(client: httpx.Client, engine: Engine, times: list[datetime]) -> list[str]:
    ids = [client.post("/v1/jobs", json=job(f"n{n}")).json()["id"] for n in range(len(times))]
    with Session(engine) as session, session.begin():
        for job_id, at in zip(ids, times, strict=True):
            session.execute(update(JobRow).where(col(JobRow.id) == UUID(job_id)).values(submitted_at=at))
    return ids


def walk(client: httpx.Client, page: dict[str, Any], **params: Any) -> Iterator[str]:
    while True:
        yield from (j["id"] for j in page["items"])
        if page["next"] is None:
            return
        page = client.get("/v1/jobs", params={**params, "cursor": page["next"]}).json()


def test_rs_03_each_old_job_that_remains_is_seen_once_while_others_go_and_come(as_: Client, engine: Engine) -> None:
    nlp = as_("nlp")
    times = [NOON] * 10 + [NOON + timedelta(seconds=n) for n in range(15)]
    old = submitted(nlp, engine, times)
    first = nlp.get("/v1/jobs", params={"limit": 10}).json()
    gone = [first["items"][n]["id"] for n in (0, 4, 9)]
    with Session(engine) as session, session.begin():
        session.execute(delete(JobRow).where(col(JobRow.id).in_([UUID(g) for g in gone])))
    new = [nlp.post("/v1/jobs", json=job(f"new{n}")).json()["id"] for n in range(5)]
    seen = list(walk(nlp, first, limit=10))
    assert len(seen) == len(set(seen))
    assert set(old) <= set(seen)
    remaining = [job_id for job_id in seen if job_id in set(old) - set(gone)]
    assert len(remaining) == 22
    assert set(new) <= set(seen)
    keys = {job_id: (at, UUID(job_id)) for job_id, at in zip(old, times, strict=True)}
    ordered = [job_id for job_id in seen if job_id in keys]
    assert ordered == sorted(ordered, key=lambda job_id: keys[job_id])


def test_rs_03_the_limit_counts_jobs_and_not_their_attempts(as_: Client, federation: Federation) -> None:
    nlp = as_("nlp")
    ids = []
    for attempts in (3, 1, 2, 2):
        ids.append(nlp.post("/v1/jobs", json=job()).json()["id"])
        for number in range(1, attempts + 1):
            federation.attempt(ids[-1], number)
    page = nlp.get("/v1/jobs", params={"limit": 2}).json()
    assert [j["id"] for j in page["items"]] == ids[:2]
    assert [j["attempts"] for j in page["items"]] == [3, 1]
    assert list(walk(nlp, page, limit=2)) == ids


def test_rs_03_a_changed_cursor_is_400(as_: Client) -> None:
    nlp = as_("nlp")
    for _ in range(3):
        nlp.post("/v1/jobs", json=job())
    cursor = nlp.get("/v1/jobs", params={"limit": 1}).json()["next"]
    assert nlp.get("/v1/jobs", params={"limit": 1, "cursor": cursor}).status_code == 200
    swapped = [cursor[:n] + ("A" if cursor[n] != "A" else "B") + cursor[n + 1 :] for n in range(len(cursor))]
    for changed in [*swapped, cursor + "A", cursor[:-1], cursor + "=", "", "é", "A" * 2000]:
        answer = nlp.get("/v1/jobs", params={"limit": 1, "cursor": changed})
        assert answer.status_code == 400, changed
        assert answer.json()["field"] == "cursor"


@pytest.mark.parametrize("other", [{"state": "RUNNING"}, {"label": "a=b"}, {"tenant": "acme/nlp"}])
def test_rs_03_a_cursor_of_another_filter_is_400(as_: Client, other: dict[str, str]) -> None:
    admin = as_("acme-admin")
    for _ in range(3):
        admin.post("/v1/jobs", json=job(tenant="acme/nlp"))
    cursor = admin.get("/v1/jobs", params={"limit": 1}).json()["next"]
    assert admin.get("/v1/jobs", params={"limit": 1, "cursor": cursor, **other}).status_code == 400


def test_a_cursor_of_another_tenant_or_another_list_is_400(as_: Client) -> None:
    nlp = as_("nlp")
    for _ in range(2):
        made = nlp.post("/v1/jobs", json=job()).json()["id"]
    cursor = nlp.get("/v1/jobs", params={"limit": 1}).json()["next"]
    assert as_("vision").get("/v1/jobs", params={"cursor": cursor}).status_code == 400
    assert nlp.get(f"/v1/jobs/{made}/attempts", params={"cursor": cursor}).status_code == 400


def test_filters_by_state_and_label(as_: Client) -> None:
    nlp = as_("nlp")
    a = nlp.post("/v1/jobs", json=job(labels={"team": "x", "run": "1"})).json()["id"]
    b = nlp.post("/v1/jobs", json=job(labels={"team": "x"})).json()["id"]
    nlp.post(f"/v1/jobs/{b}:cancel")

    def ids(**params: Any) -> list[str]:
        return [j["id"] for j in nlp.get("/v1/jobs", params=params).json()["items"]]

    assert ids(label="team=x") == [a, b]
    assert ids(label=["team=x", "run=1"]) == [a]
    assert ids(state="CANCELLED") == [b]
    assert ids(state=["QUEUED", "CANCELLED"]) == [a, b]
