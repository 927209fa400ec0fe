"""Resizes over HTTP: what is refused names the field and the remedy, what is accepted is shown."""

from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.api.conftest import Client
from tests.harness.federation import job

ELASTIC: dict[str, Any] = {
    "elastic": {"min": 2, "target": 4, "max": 100, "multiple_of": 2},
    "resources": {"accelerators": "H100:1"},
}


def test_a_size_that_no_pool_could_ever_hold_is_refused_with_the_most_that_one_holds(as_: Client) -> None:
    nlp = as_("nlp")
    made = nlp.post("/v1/jobs", json=job("wide", **ELASTIC)).json()
    url = f"/v1/jobs/{made['id']}"
    refused = nlp.post(f"{url}:resize", json={"replicas": 34}).json()
    assert (refused["status"], refused["field"]) == (422, "replicas")
    assert refused["type"].endswith("no-matching-flavor")
    assert "at most 32" in refused["remedy"]
    assert nlp.get(url).json().get("want_size") is None
    accepted = nlp.post(f"{url}:resize", json={"replicas": 32})
    assert accepted.status_code == 202
    assert "ResizeWished" in [event["kind"] for event in nlp.get(f"{url}/events").json()["items"]]


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"replicas": 3}, "replicas", "multiple of 2"),
        ({"replicas": 200}, "replicas", "elastic.max 100"),
        ({"replicas": 4, "group": "other"}, "group", "it has: main"),
    ],
)
def test_an_invalid_size_is_refused_with_its_field(as_: Client, body: dict[str, Any], field: str, words: str) -> None:
    nlp = as_("nlp")
    made = nlp.post("/v1/jobs", json=job("wide", **ELASTIC)).json()
    refused = nlp.post(f"/v1/jobs/{made['id']}:resize", json=body).json()
    assert (refused["status"], refused["field"]) == (422, field)
    assert words in refused["detail"]
    assert refused["remedy"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"elastic": {"min": 3, "target": 3, "max": 8, "multiple_of": 2}}, "elastic.multiple_of"),
        ({"parallelism": {"tp": 2}}, "parallelism.tp"),
        ({"parallelism": {"pp": 3}}, "parallelism"),
        ({"parallelism": {"pp": 2, "dp": 4}}, "parallelism.dp"),
        ({"parallelism": {"ep": 3}}, "parallelism.ep"),
        ({"groups": [{"name": "a", "replicas": 2}, {"name": "b", "replicas": 2}]}, "elastic"),
    ],
)
def test_a_spec_without_a_valid_size_is_refused_at_submit(as_: Client, change: dict[str, Any], field: str) -> None:
    answer = as_("nlp").post("/v1/jobs", json=job("odd", **{**ELASTIC, **change}))
    assert answer.status_code == 422, answer.json()
    assert answer.json()["field"] == field


def test_a_running_job_says_for_what_the_size_that_was_asked_for_waits(as_: Client, engine: Engine) -> None:
    nlp = as_("nlp")
    made = nlp.post("/v1/jobs", json=job("wide", **ELASTIC)).json()
    url = f"/v1/jobs/{made['id']}"
    assert nlp.post(f"{url}:resize", json={"replicas": 8}).status_code == 202
    wait = '{"token": "TenantLimit", "numbers": {"size": 4, "asked": 8}, "remedy": "ask", "blocker": "acme"}'
    with engine.begin() as connection:
        connection.execute(text("UPDATE jobs SET state = 'RUNNING', pending = CAST(:wait AS jsonb)"), {"wait": wait})
    assert nlp.get(url).json()["pending"]["token"] == "TenantLimit"
    explained = nlp.get(f"{url}/explain").json()
    assert explained["why"]["numbers"] == {"size": 4, "asked": 8}
    assert explained["words"] == "runs, and more of it waits: TenantLimit; ask"
