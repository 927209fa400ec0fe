"""Budgets over HTTP: apply and single documents, ETag and If-Match, who may see and who may write."""

import pytest
from sqlalchemy import Engine, text

from tests.api.conftest import Client

URL = "/v1/budgets/acme/nlp"
DOLLARS = {"unit": "dollars"}
DOC = {"kind": "budget", "tenant": "acme/nlp", "unit": "dollars", "amount": "2500.50", "period": "30d"}


def test_apply_makes_changes_and_deletes_a_budget_and_the_second_time_changes_nothing(as_: Client) -> None:
    root = as_("root")
    dry = root.post("/v1/apply", params={"dry_run": "true"}, json={"documents": [DOC]}).json()
    assert [(c["action"], c["name"]) for c in dry["changes"]] == [("create", "acme/nlp dollars")]
    assert root.get(URL, params=DOLLARS).status_code == 404
    root.post("/v1/apply", json={"documents": [DOC]})
    assert root.post("/v1/apply", json={"documents": [{**DOC, "amount": 2500.5}]}).json()["changes"] == []
    (change,) = root.post("/v1/apply", json={"documents": [{**DOC, "amount": 3000}]}).json()["changes"]
    assert (change["before"]["amount"], change["after"]["amount"]) == ("2500.5", "3000")
    acts = [act["action"] for act in root.get("/v1/audit").json()["items"]]
    assert acts == ["budget.update", "budget.create"]


def test_a_budget_shows_what_is_spent_held_and_left_of_this_period(as_: Client, engine: Engine) -> None:
    root = as_("root")
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO accounts (kind, tenant_id, flavor, unit, posted, pending)"
                " SELECT 'money', id, '', 'micro_usd', 900000000, 0 FROM tenants WHERE path = 'acme/nlp'"
            )
        )
    made = root.put(URL, params=DOLLARS, json=DOC)
    assert made.status_code == 200
    assert (made.json()["spent"], made.json()["left"]) == ("0", "2500.5"), "what was spent before it is not counted"
    with engine.begin() as connection:
        connection.execute(text("UPDATE accounts SET posted = 1000250000, pending = 50000000"))
    seen = as_("nlp-viewer").get(URL, params=DOLLARS).json()
    assert (seen["spent"], seen["held"], seen["left"]) == ("100.25", "50", "2350.25")
    with engine.begin() as connection:
        connection.execute(text("UPDATE budgets SET period_started_at = now() - interval '45 days'"))
    later = root.get(URL, params=DOLLARS).json()
    assert (later["spent"], later["left"]) == ("0", "2450.5")


def test_a_budget_changes_only_for_who_has_seen_it_last(as_: Client, engine: Engine) -> None:
    root = as_("root")
    seen = root.put(URL, params=DOLLARS, json=DOC)
    tag = {"If-Match": seen.headers["ETag"]}
    with engine.begin() as connection:  # a period that begins is no change of the document
        connection.execute(text("UPDATE budgets SET spent_before = 7, period_started_at = now()"))
    first = root.put(URL, params=DOLLARS, json={**DOC, "amount": 10}, headers=tag)
    assert (first.status_code, first.json()["amount"]) == (200, "10")
    late = root.put(URL, params=DOLLARS, json={**DOC, "amount": 20}, headers=tag)
    assert (late.status_code, late.json()["field"]) == (412, "If-Match")
    assert root.delete(URL, params=DOLLARS, headers=tag).status_code == 412
    assert root.delete(URL, params=DOLLARS, headers={"If-Match": first.headers["ETag"]}).status_code == 204
    assert root.delete(URL, params=DOLLARS).status_code == 404


def test_operators_write_and_a_tenant_reads_its_own(as_: Client) -> None:
    as_("root").put(URL, params=DOLLARS, json=DOC)
    for principal in ("nlp-admin", "acme-admin", "nlp", "other-admin"):
        assert as_(principal).put(URL, params=DOLLARS, json=DOC).status_code == 403
        assert as_(principal).delete(URL, params=DOLLARS).status_code == 403
    for principal in ("nlp-viewer", "nlp-admin", "acme-admin"):
        assert [b["tenant"] for b in as_(principal).get("/v1/budgets").json()["items"]] == ["acme/nlp"]
    assert as_("vision").get("/v1/budgets").json()["items"] == []
    assert as_("other-admin").get("/v1/budgets").json()["items"] == []
    assert as_("other-admin").get(URL, params=DOLLARS).status_code == 404


@pytest.mark.parametrize("amount", [-1, "x", "1e40", "NaN", "0.0000001", "1" * 50, None])
@pytest.mark.parametrize("unit", ["dollars", "gpu_hours"])
def test_an_amount_that_is_none_is_422_with_its_field(as_: Client, amount: object, unit: str) -> None:
    for answer in (
        as_("root").put(URL, params={"unit": unit}, json={**DOC, "unit": unit, "amount": amount}),
        as_("root").post("/v1/apply", json={"documents": [{**DOC, "unit": unit, "amount": amount}]}),
    ):
        assert answer.status_code == 422
        assert "amount" in answer.text


def test_a_budget_of_nobody_and_a_period_of_no_length_are_refused(as_: Client) -> None:
    answer = as_("root").post("/v1/apply", json={"documents": [{**DOC, "tenant": "nobody"}]})
    assert (answer.status_code, answer.json()["field"]) == (422, "budget.nobody dollars.tenant")
    assert as_("root").put(URL, params=DOLLARS, json={**DOC, "period": 0}).status_code == 422


def test_gpu_hours_in_thousandths_are_read_back_as_they_were_written(as_: Client) -> None:
    doc = {**DOC, "unit": "gpu_hours", "amount": "0.001"}
    assert as_("root").put(URL, json=doc).json()["amount"] == "0.001"
    assert as_("root").post("/v1/apply", json={"documents": [doc]}).json()["changes"] == []
