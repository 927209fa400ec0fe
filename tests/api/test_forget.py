"""`POST /v1/backends/NAME:forget`: operators alone, with a reason, audited; refused while the backend answers."""

import pytest
from sqlalchemy import Engine, text

from tests.api.conftest import Client
from tests.harness.federation import Federation
from tidegate.client import Client as Gate


def test_a_dark_backend_is_forgotten_and_the_act_is_audited(
    as_: Client, engine: Engine, url: str, federation: Federation
) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE backends SET dark_since = now()"))
    with Gate(url, token=federation.tokens["root"]) as gate:
        done = gate.forget_backend("cluster", "the hall burnt down")
        assert (done.backend, done.pools, done.settled) == ("cluster", ("spot", "steady"), ())
        act = next(one for one in gate.audit() if one.action == "backend.forget")
    assert (act.target, act.reason, act.principal) == ("cluster", "the hall burnt down", "root")
    pools = as_("root").get("/v1/pools").json()["items"]
    assert {pool["nodes"] for pool in pools} == {0}


def test_one_that_answers_is_refused_with_the_remedy_unless_forced(as_: Client) -> None:
    root = as_("root")
    refused = root.post("/v1/backends/cluster:forget", json={"reason": "tidy up"})
    assert refused.status_code == 409
    assert refused.json()["type"].endswith("still-answers")
    assert "force" in refused.json()["remedy"]
    assert root.get("/v1/audit").json()["items"] == []
    forced = root.post("/v1/backends/cluster:forget?force=true", json={"reason": "sold"})
    assert forced.status_code == 200
    assert root.get("/v1/backends/cluster").json()["draining"] is True


@pytest.mark.parametrize("body", [{}, {"reason": ""}, {"reason": "  "}, {"reason": "x", "why": "y"}])
def test_a_reason_is_required(as_: Client, body: dict[str, str]) -> None:
    assert as_("root").post("/v1/backends/cluster:forget", json=body).status_code == 422


def test_only_an_operator_may_and_only_what_is_there(as_: Client) -> None:
    assert as_("acme-admin").post("/v1/backends/cluster:forget", json={"reason": "x"}).status_code == 403
    assert as_("root").post("/v1/backends/none:forget", json={"reason": "x"}).status_code == 404
