"""`notify` at submit, and the secret that signs a tenant's deliveries."""

import pytest

from tests.api.conftest import Client
from tests.harness.federation import job


def test_who_may_submit_may_read_the_secret_of_its_own_subtree_alone(as_: Client) -> None:
    own = as_("nlp").get("/v1/webhooks/secret")
    assert own.json()["tenant"] == "acme/nlp"
    assert own.headers["Cache-Control"] == "no-store"
    assert own.json() == as_("acme-admin").get("/v1/webhooks/secret", params={"tenant": "acme/nlp"}).json()
    assert own.json()["secret"] != as_("vision").get("/v1/webhooks/secret").json()["secret"]
    assert as_("nlp").get("/v1/webhooks/secret", params={"tenant": "acme/vision"}).status_code == 404
    assert as_("nlp-viewer").get("/v1/webhooks/secret").status_code == 403


@pytest.mark.parametrize(
    "hook",
    [
        *(
            "http://ci.example.org/x",
            "https://",
            "https:///x",
            "https://u:p@ci.example.org/",
            "https://h/#f",
            "ftp://h/",
        ),
        *(
            "https://h/a b",
            "https://h/\r\nHost: x",
            "https://h:0/",
            "https://h:99999/",
            "https://hö.example/",
            "x" * 3000,
        ),
    ],
)
def test_a_url_that_no_delivery_could_use_is_refused_with_its_field(as_: Client, hook: str) -> None:
    answer = as_("nlp").post("/v1/jobs", json=job(notify=[{"url": hook}]))
    assert answer.status_code == 422
    assert "notify" in answer.json()["field"], answer.text


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "169.254.169.254", "[::ffff:10.0.0.1]", "192.168.0.1:8443"])
def test_an_address_off_the_public_internet_is_refused_at_submit(as_: Client, host: str) -> None:
    answer = as_("nlp").post("/v1/jobs", json=job(notify=[{"url": f"https://{host}/x"}]))
    assert (answer.status_code, answer.json()["field"]) == (422, "notify.0.url")
    assert answer.json()["type"].endswith("webhook-not-public")


def test_a_public_receiver_is_accepted_and_its_states_are_checked(as_: Client) -> None:
    good = {"url": "https://ci.example.org/hook?x=1", "on": ["RUNNING", "FAILED"]}
    made = as_("nlp").post("/v1/jobs", json=job(notify=[good]))
    assert made.status_code == 202
    assert as_("nlp").get(f"/v1/jobs/{made.json()['id']}").json()["spec"]["notify"] == [good]
    for bad in ({**good, "on": []}, {**good, "on": ["PREEMPTED"]}, {**good, "to": "x"}):
        assert as_("nlp").post("/v1/jobs", json=job(notify=[bad])).status_code == 422
    assert as_("nlp").post("/v1/jobs", json=job(notify=[good] * 5)).status_code == 422
