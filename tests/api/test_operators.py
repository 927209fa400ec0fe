"""Operators' changes: apply, single documents, quotas under ETags, grants, drains, and the audit of it all."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi import FastAPI
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from gateway.api.app import create_app
from gateway.api.deps import Deps
from gateway.ledger import estate
from gateway.ledger.tables.capacity import BackendRow, QuotaRow
from gateway.operators import stored
from policies.plan import plan
from policies.settings import PolicySettings
from policies.vocabulary import Resource
from tests.api.conftest import Client
from tests.harness.federation import Federation, job

ROOT = Path(__file__).parents[2]
QUOTA = "/v1/quotas/acme/nlp"
H100 = {"flavor": "h100"}


@pytest.fixture
def app(deps: Deps) -> FastAPI:
    numbers = PolicySettings()
    return create_app(
        Deps(
            engine=deps.engine,
            settings=deps.settings,
            cursor_key=deps.cursor_key,
            plan=lambda snapshot, now_ms: plan(snapshot, numbers, now_ms),
        )
    )


def demo_documents() -> list[dict[str, Any]]:
    """The demo's, with pools that have other names than the fixture's."""
    docs = [doc for doc in yaml.safe_load_all((ROOT / "examples/demo/operators.yaml").read_text()) if doc]
    return [{**doc, "name": f"demo-{doc['name']}"} if doc["kind"] == "pool" else doc for doc in docs]


def test_apply_shows_the_difference_first_then_makes_it_and_the_second_time_changes_nothing(as_: Client) -> None:
    root = as_("root")
    body = {"documents": demo_documents()}
    dry = root.post("/v1/apply", params={"dry_run": "true"}, json=body).json()
    assert dry["applied"] is False
    assert len(dry["changes"]) > 5
    assert root.get("/v1/flavors/v100-spot").status_code == 404
    assert root.post("/v1/apply", json=body).json() == {**dry, "applied": True}
    assert root.get("/v1/flavors/v100-spot").json()["accelerator_memory"] == "16Gi"
    assert root.post("/v1/apply", json=body).json() == {"changes": [], "applied": True}


def test_every_applied_change_is_audited_with_both_sides(as_: Client) -> None:
    root = as_("root")
    root.post("/v1/apply", json={"documents": [{"kind": "tenant", "path": "acme/nlp", "contact": "nlp@acme"}]})
    (act,) = root.get("/v1/audit").json()["items"]
    assert (act["principal"], act["action"], act["target"], act["tenant"]) == (
        "root",
        "tenant.update",
        "acme/nlp",
        "acme/nlp",
    )
    assert (act["before"]["contact"], act["after"]["contact"]) == ("", "nlp@acme")
    assert as_("nlp-admin").get("/v1/audit").json()["items"] == [act]
    assert as_("other-admin").get("/v1/audit").json()["items"] == []


def test_prune_takes_away_what_the_files_do_not_name(as_: Client, engine: Engine) -> None:
    root = as_("root")
    with Session(engine) as session:
        docs = [d.model_dump(mode="json") for d in stored.documents(session).values()]
    keep = [d for d in docs if d.get("name") not in {"spot", "h100-spot"} and d.get("path") != "acme"]
    answer = root.post("/v1/apply", params={"prune": "true"}, json={"documents": keep})
    assert [(c["action"], c["name"]) for c in answer.json()["changes"]] == [
        ("delete", "spot"),
        ("delete", "h100-spot"),
    ]
    assert root.get("/v1/pools").json()["items"][0]["name"] == "steady"


def test_what_an_admin_does_to_a_job_is_audited_and_a_submitters_wish_is_not(as_: Client) -> None:
    made = as_("nlp").post("/v1/jobs", json=job()).json()["id"]
    as_("nlp").post(f"/v1/jobs/{made}:hold")
    as_("nlp-admin").post(f"/v1/jobs/{made}:unhold")
    as_("root").post(f"/v1/jobs/{made}:cancel?message=maintenance")
    acts = [(a["action"], a["principal"], a["target"]) for a in as_("nlp-admin").get("/v1/audit").json()["items"]]
    assert acts == [("job.cancel", "root", made), ("job.unhold", "nlp-admin", made)]


def test_one_wrong_document_stops_them_all(as_: Client) -> None:
    root = as_("root")
    docs = [
        {"kind": "tenant", "path": "acme/new"},
        {"kind": "quota", "tenant": "acme/new", "flavor": "h100", "min": 9},
    ]
    answer = root.post("/v1/apply", json={"documents": docs})
    assert answer.status_code == 422
    assert "acme" in answer.json()["detail"]
    assert root.get("/v1/tenants/acme/new").status_code == 404
    assert root.get("/v1/audit").json()["items"] == []


@pytest.mark.parametrize("bad", [[{"kind": "tenant", "path": "A B"}], [{"kind": "magic"}], [{"path": "x"}], "x", [1]])
def test_documents_that_are_none_are_422(as_: Client, bad: object) -> None:
    answer = as_("root").post("/v1/apply", json={"documents": bad})
    assert answer.status_code == 422
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_a_quota_changes_only_for_who_has_seen_it_last(as_: Client, engine: Engine) -> None:
    root = as_("root")
    seen = root.get(QUOTA, params=H100)
    doc = {"tenant": "acme/nlp", "flavor": "h100", "min": 16, "max": 24, "lendable": 8}
    first = root.put(QUOTA, params=H100, json=doc, headers={"If-Match": seen.headers["ETag"]})
    assert first.status_code == 200
    assert first.json()["max"] == "24"
    assert first.headers["ETag"] != seen.headers["ETag"]
    late = root.put(QUOTA, params=H100, json={**doc, "max": 8}, headers={"If-Match": seen.headers["ETag"]})
    assert (late.status_code, late.json()["field"]) == (412, "If-Match")
    assert root.get(QUOTA, params=H100).json()["max"] == "24"
    assert as_("nlp-admin").put(QUOTA, params=H100, json=doc).status_code == 403


def test_a_max_above_the_nearest_ancestors_or_left_open_below_it_is_refused_by_put_and_apply(as_: Client) -> None:
    root = as_("root")
    assert root.post("/v1/apply", json={"documents": [{"kind": "tenant", "path": "other/a"}]}).status_code == 200
    assert root.post("/v1/apply", json={"documents": [{"kind": "tenant", "path": "other/a/b"}]}).status_code == 200
    top = {"tenant": "other", "flavor": "h100", "max": 8}
    assert root.put("/v1/quotas/other", params=H100, json=top).status_code == 200
    for most in (9, None):  # other/a has no quota of its own
        deep = {"tenant": "other/a/b", "flavor": "h100", "max": most}
        for answer in (
            root.put("/v1/quotas/other/a/b", params=H100, json=deep),
            root.post("/v1/apply", json={"documents": [{"kind": "quota", **deep}]}),
            root.post("/v1/apply?dry_run=true", json={"documents": [{"kind": "quota", **deep}]}),
        ):
            assert answer.status_code == 422, answer.text
            assert answer.json()["field"] == "quota.other/a/b h100 accelerators.max"
            assert "at most 8" in answer.json()["remedy"]
    deep = {"tenant": "other/a/b", "flavor": "h100", "max": 8}
    assert root.put("/v1/quotas/other/a/b", params=H100, json=deep).status_code == 200
    low = root.put("/v1/quotas/other", params=H100, json={**top, "max": 4})
    assert (low.status_code, low.json()["field"]) == (422, "quota.other/a/b h100 accelerators.max")


def test_a_childs_quota_above_its_parents_and_roots_above_capacity_are_refused(as_: Client) -> None:
    root = as_("root")
    child = root.put(QUOTA, params=H100, json={"tenant": "acme/nlp", "flavor": "h100", "min": 25})
    assert child.status_code == 422
    assert "acme" in child.json()["field"]
    assert child.json()["remedy"]
    top = root.put("/v1/quotas/acme", params=H100, json={"tenant": "acme", "flavor": "h100", "min": 33, "max": 40})
    assert (top.status_code, "exclusive" in top.json()["detail"]) == (422, True)
    assert root.get("/v1/quotas/acme", params=H100).json()["min"] == "32"


def test_a_document_must_be_the_one_that_the_url_names(as_: Client) -> None:
    answer = as_("root").put("/v1/flavors/a", json={"name": "b"})
    assert (answer.status_code, answer.json()["field"]) == (422, "name")


def test_what_is_in_use_cannot_be_deleted(as_: Client) -> None:
    root = as_("root")
    as_("other").post("/v1/jobs", json=job())
    assert root.delete("/v1/tenants/other").status_code == 409
    assert root.delete("/v1/flavors/h100").status_code == 422  # pools and quotas name it
    assert root.delete("/v1/tenants/nobody").status_code == 404
    assert root.get("/v1/tenants/other").status_code == 200


def test_drain_and_undrain(as_: Client, engine: Engine) -> None:
    root = as_("root")
    assert root.post("/v1/backends/cluster:drain").json()["draining"] is True
    with Session(engine) as session:
        row = session.get(BackendRow, "cluster")
        assert row is not None
        assert row.draining
    assert root.post("/v1/backends/cluster:undrain").json()["draining"] is False
    assert root.post("/v1/backends/nowhere:drain").status_code == 404
    assert [a["action"] for a in root.get("/v1/audit").json()["items"]] == ["backend.update", "backend.update"]


def test_configurations_are_for_operators(as_: Client) -> None:
    assert as_("root").get("/v1/backends/cluster").json()["config"] == {"secret_reference": "vault/cluster"}
    for path in ("/v1/backends", "/v1/backends/cluster", "/v1/pools"):
        assert "vault" not in as_("nlp").get(path).text


def test_a_grant_counts_while_it_lasts(as_: Client, engine: Engine) -> None:
    root = as_("root")
    body = {"tenant": "acme/nlp", "flavor": "h100", "delta_max": "-8", "starts_at": "2020-01-01T00:00:00Z"}
    made = root.post("/v1/grants", json={**body, "cause": "maintenance"})
    assert (made.status_code, made.json()["delta_max"], made.json()["approver"]) == (201, "-8", "root")
    assert root.get(QUOTA, params=H100).json()["effective_max"] == "24"
    with Session(engine) as session:
        found = {(q.tenant, q.flavor): q.max for q in estate.quotas(session) if q.resource is Resource.ACCELERATORS}
        assert found["acme/nlp", "h100"] == 24_000
    assert [g["id"] for g in as_("nlp").get("/v1/grants").json()["items"]] == [made.json()["id"]]
    assert as_("vision").get("/v1/grants").json()["items"] == []
    assert root.delete(f"/v1/grants/{made.json()['id']}").json()["revoked_at"] is not None
    assert root.get(QUOTA, params=H100).json()["effective_max"] == "32"
    assert [a["action"] for a in root.get("/v1/audit").json()["items"]] == ["grant.revoke", "grant.create"]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"flavor": "none"}, "flavor"),
        ({"delta_min": "x"}, "delta_min"),
        ({"delta_min": 1e30}, "delta_min"),
        ({"ends_at": "2019-01-01T00:00:00Z"}, "ends_at"),
        ({"recurrence": {"days": [9], "from": "08:00", "until": "20:00"}}, "recurrence"),
        ({"recurrence": {"days": [0], "from": "20:00", "until": "08:00"}}, "recurrence.until"),
        ({"tenant": "acme/none"}, ""),
    ],
)
def test_a_grant_that_cannot_be_is_refused(as_: Client, more: dict[str, object], field: str) -> None:
    body = {"tenant": "acme/nlp", "flavor": "h100", "delta_min": 1, "starts_at": "2020-01-01T00:00:00Z", **more}
    answer = as_("root").post("/v1/grants", json=body)
    assert answer.status_code in {404, 422}
    assert answer.json()["field"] == field


def test_quotas_show_what_is_held(as_: Client, federation: Federation) -> None:
    items = as_("nlp").get("/v1/quotas").json()["items"]
    assert [(q["tenant"], q["flavor"], q["min"], q["held"]) for q in items] == [("acme/nlp", "h100", "16", "0")]
    with Session(federation.engine) as session:
        assert session.get(QuotaRow, (federation.tenants["acme/nlp"], "h100", "accelerators")) is not None


def test_a_dry_run_gives_the_plan_and_stores_nothing(as_: Client) -> None:
    nlp = as_("nlp")
    answer = nlp.post("/v1/jobs", params={"dry_run": "true"}, json=job(), headers={"Idempotency-Key": "k"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["decision"] == "Admit"
    assert answer.json()["placed"][0]["flavor"] in {"h100", "h100-spot"}
    assert nlp.get("/v1/jobs").json()["items"] == []
    held = job(num_nodes=3, resources={"accelerators": "H100:8"}, placement={"flavors": ["h100"]}, tenant="acme/nlp")
    big = nlp.post("/v1/jobs", params={"dry_run": "true"}, json={**held, "num_nodes": 4}).json()
    assert big["decision"] in {"Admit", "Wait"}
    refused = nlp.post("/v1/jobs", params={"dry_run": "true"}, json=job(priority="P0"))
    assert refused.status_code == 422
