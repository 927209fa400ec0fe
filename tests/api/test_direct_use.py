"""Owners' documents over HTTP: what direct use they map, who sees it, and what it does to a tenant's limit."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine

from backends.types import PoolCapacity
from gateway.ledger import observe
from gateway.ledger.engine import in_transaction
from policies.snapshot import Node, Resources
from tests.api.conftest import Client

GPU = 1000
LAB = {"kind": "owner", "backend": "cluster", "owner": "lab_7", "tenant": "acme/nlp"}


def uses(engine: Engine, owner: str, cards: int) -> None:
    """The backend reports what an owner uses in pool `steady`."""
    node = Node("n", Resources(8 * GPU, 64_000, 1 << 39), foreign=Resources(cards * GPU), count=4)
    report = PoolCapacity("steady", (node,), datetime.now(UTC), {owner: Resources(cards * GPU)})
    in_transaction(engine, lambda session: observe.capacity(session, "cluster", [report]))


def test_apply_maps_an_owner_and_its_use_is_shown_with_the_quota_at_every_level(as_: Client, engine: Engine) -> None:
    uses(engine, "lab_7", 8)
    root = as_("root")
    dry = root.post("/v1/apply", params={"dry_run": "true"}, json={"documents": [LAB]}).json()
    assert [(c["action"], c["kind"], c["name"]) for c in dry["changes"]] == [("create", "owner", "cluster lab_7")]
    assert root.post("/v1/apply", json={"documents": [LAB]}).status_code == 200
    assert root.post("/v1/apply", json={"documents": [LAB]}).json() == {"changes": [], "applied": True}
    shown = {q["tenant"]: (q["held"], q["observed"]) for q in root.get("/v1/quotas").json()["items"]}
    assert shown == {"acme": ("0", "8"), "acme/nlp": ("0", "8"), "acme/vision": ("0", "0")}


def test_a_tenant_sees_what_counts_for_it_and_nothing_of_others(as_: Client) -> None:
    as_("root").post("/v1/apply", json={"documents": [LAB]})
    assert as_("nlp-viewer").get("/v1/owners").json()["items"] == [LAB]
    assert as_("acme-admin").get("/v1/owners").json()["items"] == [LAB]
    assert as_("vision").get("/v1/owners").json()["items"] == []
    assert as_("other").get("/v1/owners").json()["items"] == []


def test_owners_are_the_operators_to_write(as_: Client) -> None:
    admin, root = as_("nlp-admin"), as_("root")
    assert admin.put("/v1/owners/lab_7", json=LAB).status_code == 403
    assert root.put("/v1/owners/other", json=LAB).status_code == 422
    assert root.put("/v1/owners/lab_7", json=LAB).json() == LAB
    assert root.put("/v1/owners/lab_7", json={**LAB, "tenant": "acme/vision"}).json()["tenant"] == "acme/vision"
    actions = [act["action"] for act in root.get("/v1/audit").json()["items"]]
    assert actions == ["owner.update", "owner.create"]
    assert admin.delete("/v1/owners/lab_7", params={"backend": "cluster"}).status_code == 403
    assert root.delete("/v1/owners/lab_7", params={"backend": "cluster"}).status_code == 204
    assert root.delete("/v1/owners/lab_7", params={"backend": "cluster"}).status_code == 404


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"backend": "nowhere"}, "owner.nowhere lab_7.backend"),
        ({"tenant": "acme/nobody"}, "owner.cluster lab_7.tenant"),
    ],
)
def test_an_owner_of_nothing_is_refused_with_its_field(as_: Client, change: dict[str, str], field: str) -> None:
    answer = as_("root").post("/v1/apply", json={"documents": [{**LAB, **change}]})
    assert (answer.status_code, answer.json()["field"]) == (422, field)


@pytest.mark.parametrize("owner", ["", "a b", "-x", "a/b", "x" * 256, "a\nb", "ü"])
def test_a_name_that_no_backend_gives_is_refused(as_: Client, owner: str) -> None:
    answer = as_("root").post("/v1/apply", json={"documents": [{**LAB, "owner": owner}]})
    assert answer.status_code == 422
    assert "owner" in answer.json()["field"]
