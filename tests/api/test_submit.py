"""Submitting, reading, listing and cancelling over HTTP."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session
from sqlmodel import col

from gateway.api.app import create_app
from gateway.api.deps import Deps
from gateway.api.routes import jobs as routes
from gateway.ledger.submit import submit_many
from gateway.ledger.tables.access import IdempotencyKey
from gateway.ledger.tables.work import Event, JobRow
from tests.api.conftest import Client
from tests.harness.federation import Federation, job
from tests.harness.server import serving


def jobs_stored(engine: Engine) -> int:
    with Session(engine) as session:
        return int(session.execute(select(func.count()).select_from(JobRow)).scalar_one())


def submit(client: httpx.Client, body: object, key: str | None = None) -> "tuple[int, dict[str, object]]":
    answer = client.post("/v1/jobs", json=body, headers={"Idempotency-Key": key} if key else {})
    return answer.status_code, answer.json()


def test_a_job_is_accepted_and_can_be_read_back(as_: Client, engine: Engine) -> None:
    nlp = as_("nlp")
    answer = nlp.post("/v1/jobs", json=job("first", env={"A": "b"}, labels={"team": "x"}))
    assert answer.status_code == 202
    made = answer.json()
    assert made["state"] == "QUEUED"
    assert made["replayed"] is False
    assert answer.headers["Location"] == f"/v1/jobs/{made['id']}"
    shown = nlp.get(f"/v1/jobs/{made['id']}").json()
    assert shown["name"] == "first"
    assert shown["tenant"] == "acme/nlp"
    assert shown["principal"] == "nlp"
    assert shown["spec"]["env"] == {"A": "b"}
    assert shown["labels"] == {"team": "x"}
    with Session(engine) as session:
        kinds = session.execute(select(col(Event.kind)).where(col(Event.job_id) == UUID(made["id"]))).scalars().all()
    assert kinds == ["QUEUED"]


def test_a_queued_job_is_cancelled_at_once_and_stays_so(as_: Client) -> None:
    nlp = as_("nlp")
    _, made = submit(nlp, job())
    first = nlp.post(f"/v1/jobs/{made['id']}:cancel?message=changed+my+mind")
    assert (first.status_code, first.json()["state"]) == (202, "CANCELLED")
    again = nlp.post(f"/v1/jobs/{made['id']}:cancel")
    assert (again.status_code, again.json()["version"]) == (202, first.json()["version"])
    assert nlp.get(f"/v1/jobs/{made['id']}").json()["reason"] == "UserCancelled"


def test_rs_01_a_the_same_key_and_body_twice_is_one_job(as_: Client, engine: Engine) -> None:
    nlp = as_("nlp")
    _, first = submit(nlp, job(), "k")
    answer = nlp.post("/v1/jobs", json=job(), headers={"Idempotency-Key": "k"})
    assert answer.json() == {"id": first["id"], "state": "QUEUED", "replayed": True}
    assert answer.headers["Idempotency-Replayed"] == "true"
    assert jobs_stored(engine) == 1


def test_rs_01_b_twenty_parallel_calls_with_one_key_make_one_job(as_: Client, engine: Engine) -> None:
    clients = [as_("nlp") for _ in range(20)]
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda client: submit(client, job(), "one"), clients))
    assert {status for status, _ in answers} == {202}
    assert len({made["id"] for _, made in answers}) == 1
    assert sorted(bool(made["replayed"]) for _, made in answers) == [False] + [True] * 19
    assert jobs_stored(engine) == 1


def test_rs_01_c_the_same_key_with_another_body_is_409_and_makes_nothing(as_: Client, engine: Engine) -> None:
    nlp = as_("nlp")
    submit(nlp, job("a"), "k")
    answer = nlp.post("/v1/jobs", json=job("b"), headers={"Idempotency-Key": "k"})
    assert answer.status_code == 409
    assert answer.json()["field"] == "Idempotency-Key"
    assert answer.json()["remedy"]
    assert jobs_stored(engine) == 1


def test_rs_01_d_the_same_key_of_two_tenants_makes_two_jobs(as_: Client, engine: Engine) -> None:
    made = {submit(as_(who), job(), "k")[1]["id"] for who in ("nlp", "vision")}
    assert len(made) == 2
    assert jobs_stored(engine) == 2


def test_rs_01_e_order_of_keys_and_spelling_of_numbers_do_not_matter(as_: Client, engine: Engine) -> None:
    nlp = as_("nlp")
    bodies = (
        '{"name":"x","run":"true","num_nodes":1,"resources":{"cpus":1,"accelerators":"H100:1"}}',
        '{"run":"true","resources":{"accelerators":"H100:1","cpus":1.0},"num_nodes":1.0,"name":"x"}',
    )
    headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
    answers = [nlp.post("/v1/jobs", content=body, headers=headers) for body in bodies]
    assert [a.status_code for a in answers] == [202, 202]
    assert answers[0].json()["id"] == answers[1].json()["id"]
    assert jobs_stored(engine) == 1


def test_rs_01_f_another_process_replays_the_key(as_: Client, deps: Deps, engine: Engine) -> None:
    nlp = as_("nlp")
    _, first = submit(nlp, job(), "k")
    with serving(create_app(deps)) as url, httpx.Client(base_url=url, headers=nlp.headers) as other:
        assert submit(other, job(), "k")[1] == {"id": first["id"], "state": "QUEUED", "replayed": True}


def test_rs_01_g_a_transaction_that_dies_leaves_neither_key_nor_job(
    as_: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(session: Session, **wished: Any) -> None:
        submit_many(session, **wished)
        raise RuntimeError("the process is gone")

    monkeypatch.setattr(routes, "submit_many", dies)
    nlp = as_("nlp")
    assert submit(nlp, job(), "k")[0] == 500
    monkeypatch.undo()
    with Session(engine) as session:
        assert session.execute(select(func.count()).select_from(IdempotencyKey)).scalar_one() == 0
    status, made = submit(nlp, job(), "k")
    assert (status, made["replayed"]) == (202, False)
    assert jobs_stored(engine) == 1


def test_rs_01_h_a_replay_shows_the_old_jobs_end(as_: Client) -> None:
    nlp = as_("nlp")
    _, made = submit(nlp, job(), "k")
    nlp.post(f"/v1/jobs/{made['id']}:cancel")
    assert submit(nlp, job(), "k") == (202, {"id": made["id"], "state": "CANCELLED", "replayed": True})


def test_a_known_key_is_replayed_though_the_configuration_would_refuse_it_now(
    as_: Client, federation: Federation
) -> None:
    nlp, root = as_("nlp"), as_("root")
    _, made = submit(nlp, job(placement={"pools": ["spot"]}), "k")
    assert root.delete("/v1/pools/spot").status_code == 204
    assert submit(nlp, job(placement={"pools": ["spot"]}), "other")[0] == 422
    assert submit(nlp, job(placement={"pools": ["spot"]}), "k")[1]["id"] == made["id"]


def test_a_batch_is_stored_whole_or_not_at_all(as_: Client, engine: Engine) -> None:
    nlp = as_("nlp")
    good = {"jobs": [job(f"n{n}") for n in range(50)]}
    answer = nlp.post("/v1/jobs:batch", json=good, headers={"Idempotency-Key": "b"})
    assert answer.status_code == 202
    again = nlp.post("/v1/jobs:batch", json=good, headers={"Idempotency-Key": "b"})
    assert [j["id"] for j in again.json()["jobs"]] == [j["id"] for j in answer.json()["jobs"]]
    assert jobs_stored(engine) == 50
    bad = {"jobs": [job("fine"), job("huge", resources={"accelerators": "H100:64"})]}
    refused = nlp.post("/v1/jobs:batch", json=bad)
    assert (refused.status_code, refused.json()["field"]) == (422, "jobs.1.resources.accelerators")
    assert jobs_stored(engine) == 50


def test_a_subtenant_may_be_named_and_a_stranger_may_not(as_: Client, engine: Engine) -> None:
    assert submit(as_("acme-admin"), job(tenant="acme/nlp"))[0] == 202
    for foreign in ("other", "acme/nothing"):
        status, problem = submit(as_("acme-admin"), job(tenant=foreign))
        assert (status, problem["field"]) == (422, "tenant")
    assert submit(as_("nlp"), job(tenant="acme"))[0] == 422
    assert jobs_stored(engine) == 1


def test_hold_unhold_and_labels(as_: Client) -> None:
    nlp = as_("nlp")
    _, made = submit(nlp, job())
    url = f"/v1/jobs/{made['id']}"
    assert nlp.post(f"{url}:hold").json()["on_hold"] is True
    assert nlp.get(f"{url}/explain").json()["why"]["token"] == "OnHold"
    assert nlp.post(f"{url}:unhold").json()["on_hold"] is False
    assert nlp.patch(url, json={"labels": {"a": "b"}}).json()["labels"] == {"a": "b"}
    assert nlp.patch(url, json={"priority": "P0"}).status_code == 422
    assert nlp.get(f"{url}/explain").json()["why"]["token"] == "PendingEvaluation"


def test_what_a_job_cannot_do_is_refused_with_its_field(as_: Client) -> None:
    nlp = as_("nlp")
    _, made = submit(nlp, job())
    url = f"/v1/jobs/{made['id']}"
    save = nlp.post(f"{url}:checkpoint")
    assert (save.status_code, save.json()["field"]) == (409, "checkpoint")
    size = nlp.post(f"{url}:resize", json={"replicas": 3})
    assert (size.status_code, size.json()["field"]) == (422, "replicas")


def test_sl_11_names_and_environment_arrive_intact(as_: Client) -> None:
    nlp = as_("nlp")
    names = ["crazy|name", "Big simulation", "two\nlines", "az'", 'x" --uid=0', "--wrap=id", "$(touch /tmp/gw-pwned)"]
    names += ["`id`", "名前"]
    env = {"LIST": "a,b", "MSG": "it's $HOME", "NL": "l1\nl2", "EQ": "k=v"}
    for name in names:
        status, made = submit(nlp, job(name, env=env))
        assert status == 202
        shown = nlp.get(f"/v1/jobs/{made['id']}").json()
        assert shown["name"] == name
        assert shown["spec"]["env"] == env
    assert {j["name"] for j in nlp.get("/v1/jobs").json()["items"]} == set(names)
    for bad in ("", "x" * 300):
        status, problem = submit(nlp, job(bad))
        assert (status, problem["field"]) == (422, "name")


def test_the_app_is_the_one_under_test(app: FastAPI) -> None:
    assert app.openapi()["openapi"].startswith("3.1")
