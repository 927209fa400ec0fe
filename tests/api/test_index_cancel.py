"""`POST /v1/jobs/ID:cancel` with an index ends that index of an array alone."""

import pytest

from tests.api.conftest import Client
from tests.harness.federation import job
from tidegate.client import Client as Gate


def test_one_index_is_cancelled_and_the_array_goes_on(as_: Client, url: str, federation: object) -> None:
    nlp = as_("nlp")
    made = nlp.post("/v1/jobs", json=job(array={"indexes": 4})).json()["id"]
    answer = nlp.post(f"/v1/jobs/{made}:cancel", json={"index": 3, "message": "broken input"})
    assert (answer.status_code, answer.json()["state"], answer.json()["array_ended"]) == (202, "QUEUED", 1)
    with Gate(url, token=federation.tokens["nlp"]) as gate:  # type: ignore[attr-defined]
        assert gate.cancel(made, index=1).array_ended == 2
        assert [(one.index, one.state.value) for one in gate.tasks(made)] == [(1, "CANCELLED"), (3, "CANCELLED")]
        assert gate.cancel(made, message="enough").state.value == "CANCELLED"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"index": 4}, "index"),
        ({"index": -1}, "index"),
        ({"index": "1"}, "index"),
        ({"index": 2**40}, "index"),
        ({"indexes": 1}, "indexes"),
        ({"message": "x" * 501}, "message"),
    ],
)
def test_a_wrong_body_is_422_and_cancels_nothing(as_: Client, body: dict[str, object], field: str) -> None:
    nlp = as_("nlp")
    made = nlp.post("/v1/jobs", json=job(array={"indexes": 4})).json()["id"]
    answer = nlp.post(f"/v1/jobs/{made}:cancel", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)
    assert nlp.get(f"/v1/jobs/{made}").json()["state"] == "QUEUED"


def test_an_index_of_a_job_without_an_array_is_422(as_: Client) -> None:
    nlp = as_("nlp")
    made = nlp.post("/v1/jobs", json=job()).json()["id"]
    answer = nlp.post(f"/v1/jobs/{made}:cancel", json={"index": 0})
    assert (answer.status_code, answer.json()["field"]) == (422, "index")
    assert nlp.get(f"/v1/jobs/{made}").json()["state"] == "QUEUED"
