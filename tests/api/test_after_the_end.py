"""No event follows a job's terminal one: every act of the API, as its router has them, on a job that has ended."""

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, text

from gateway.api.openapi import document
from gateway.ledger import transition
from gateway.ledger.check import check
from gateway.ledger.engine import in_transaction
from policies.vocabulary import JobState
from tests.api.conftest import Client
from tests.harness.federation import Federation, job

CHANGES = ("post", "put", "patch", "delete")
BODIES: dict[str, list[dict[str, Any]]] = {
    "PATCH /v1/jobs/{job_id}": [
        {"labels": {"late": "1"}},
        {"priority": "P2"},
        {"max_duration": "1h"},
        {"labels": {"later": "1"}, "max_duration": "1h"},
    ],
    "POST /v1/jobs/{job_id}:cancel": [{}, {"index": 0}, {"message": "late"}],
    "POST /v1/jobs/{job_id}:resize": [{"group": "main", "replicas": 2}],
    "POST /v1/attempt/checkpoints": [{"step": 1, "url": "s3://ckpt/acme/nlp/attempt-1/step-1"}],
    "POST /v1/attempt/checkpoints:broken": [{"url": "s3://ckpt/acme/nlp/attempt-1/step-1"}],
    "POST /v1/attempt/notices": [{"kind": "revoke", "deadline": 1.0, "instance": "i-1"}],
    "POST /v1/attempt/progress": [{"step": 1, "samples": 1}],
}
"""What to send to acts that take a body."""
ENDS = {
    JobState.SUCCEEDED: (JobState.ADMITTED, JobState.RUNNING, JobState.SUCCEEDED),
    JobState.FAILED: (JobState.ADMITTED, JobState.RUNNING, JobState.FAILED),
    JobState.CANCELLED: (JobState.CANCELLED,),
    JobState.REJECTED: (JobState.REJECTED,),
}


def _acts() -> list[str]:
    """Every operation that changes something of one job, or of the attempt that speaks."""
    described = document()["paths"]
    return sorted(
        f"{method.upper()} {path}"
        for path, operations in described.items()
        for method in operations
        if method in CHANGES and (path.startswith(("/v1/jobs/{job_id}", "/v1/attempt/")))
    )


def _takes_a_body(act: str) -> bool:
    method, path = act.split()
    return "requestBody" in document()["paths"][path][method.lower()]


def ended(engine: Engine, made: str, end: JobState) -> None:
    for state in ENDS[end]:
        assert in_transaction(engine, lambda session, to=state: transition.move_job(session, UUID(made), to))  # type: ignore[misc]


def events(engine: Engine, made: str) -> list[str]:
    with engine.connect() as connection:
        found = connection.execute(text("SELECT kind FROM events WHERE job_id = :id ORDER BY id"), {"id": made})
        return list(found.scalars())


def test_every_act_with_a_body_has_one_to_send() -> None:
    assert {act for act in _acts() if _takes_a_body(act)} == set(BODIES)


@pytest.mark.parametrize("end", list(ENDS), ids=str)
def test_nothing_is_told_of_a_job_after_its_end(
    as_: Client, url: str, engine: Engine, federation: Federation, end: JobState
) -> None:
    checkpoint = {"url": "s3://ckpt/acme/nlp", "interval": "5m"}
    for shape in ({}, {"array": {"indexes": 2}}, {"num_nodes": 2, "elastic": {"min": 1, "target": 2, "max": 3}}):
        made = as_("nlp").post("/v1/jobs", json=job(checkpoint=checkpoint, gang_timeout="5m", **shape)).json()["id"]
        attempt = federation.attempt(made)
        with engine.begin() as connection:
            connection.execute(text("UPDATE attempts SET state = 'SUCCEEDED', ended_at = now()"))
        ended(engine, made, end)
        before = events(engine, made)
        assert before[-1] == end.value
        for act in _acts():
            method, path = act.split()
            headers = {"Authorization": f"Bearer {federation.tokens[attempt]}"} if "/attempt/" in path else {}
            for principal in ("nlp", "root"):
                for body in BODIES.get(act, [None]):
                    answer = as_(principal).request(method, path.format(job_id=made), json=body, headers=headers)
                    assert answer.status_code < 500, (act, body, answer.text)
                    assert answer.status_code != 404, (act, body, answer.text)
                    assert events(engine, made) == before, (act, body, answer.status_code)
    assert check(engine) == []


@pytest.mark.parametrize("act", ["hold", "unhold", "checkpoint", "requeue"])
def test_a_wish_that_comes_too_late_is_409_and_says_how_the_job_ended(as_: Client, act: str) -> None:
    nlp = as_("nlp")
    made = nlp.post("/v1/jobs", json=job(checkpoint={"url": "s3://ckpt/acme/nlp", "interval": "5m"})).json()["id"]
    nlp.post(f"/v1/jobs/{made}:cancel")
    answer = nlp.post(f"/v1/jobs/{made}:{act}")
    assert (answer.status_code, answer.json()["field"]) == (409, "state")
    assert "CANCELLED" in answer.json()["detail"]
    assert nlp.get(f"/v1/jobs/{made}").json()["on_hold"] is False


def test_a_cancel_that_comes_too_late_is_answered_with_the_job_as_it_is(as_: Client) -> None:
    nlp = as_("nlp")
    made = nlp.post("/v1/jobs", json=job()).json()["id"]
    first, second = (nlp.post(f"/v1/jobs/{made}:cancel") for _ in range(2))
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json()["version"] == second.json()["version"]


def test_labels_of_an_ended_job_change_and_the_audit_says_who_did_it(as_: Client) -> None:
    nlp = as_("nlp")
    made = nlp.post("/v1/jobs", json=job(labels={"a": "1"})).json()["id"]
    nlp.post(f"/v1/jobs/{made}:cancel")
    assert nlp.patch(f"/v1/jobs/{made}", json={"labels": {"b": "2"}}).json()["labels"] == {"b": "2"}
    assert [one["kind"] for one in nlp.get(f"/v1/jobs/{made}/events").json()["items"]][-1] == "CANCELLED"
    told = as_("root").get("/v1/audit").json()["items"]
    assert [(one["action"], one["principal"], one["after"]) for one in told if one["target"] == made] == [
        ("job.update", "nlp", {"wished": [{"labels": {"b": "2"}}]})
    ]


def test_a_requeue_of_what_does_not_run_is_409(as_: Client) -> None:
    nlp = as_("nlp")
    shapes: tuple[dict[str, Any], ...] = ({}, {"array": {"indexes": 2}})
    for shape in shapes:
        made = nlp.post("/v1/jobs", json=job(**shape)).json()["id"]
        answer = nlp.post(f"/v1/jobs/{made}:requeue")
        assert (answer.status_code, answer.json()["field"]) == (409, "state")
        assert "nothing of the job runs" in answer.json()["detail"]


def test_an_ended_job_is_explained_in_words_that_are_said_once(as_: Client, engine: Engine) -> None:
    nlp = as_("nlp")
    made = nlp.post("/v1/jobs", json=job()).json()["id"]
    url = f"/v1/jobs/{made}/explain"
    for message, words in (
        ("finished with exit code 0", "finished with exit code 0"),
        ("", "finished with exit code 0"),
        ("as planned", "finished with exit code 0: as planned"),
    ):
        with engine.begin() as connection:
            connection.execute(
                text("UPDATE jobs SET state = 'SUCCEEDED', reason = 'Completed', message = :message"),
                {"message": message},
            )
        assert nlp.get(url).json()["words"] == words
