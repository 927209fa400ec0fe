"""The job's side: what an attempt's own token may do, and that it may do nothing else."""

import hashlib
import threading
from uuid import UUID

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import Engine, func, update
from sqlalchemy.orm import Session
from sqlmodel import col

from gateway.api.auth import Requires, RequiresAttempt
from gateway.api.deps import Deps
from gateway.archives import location, store_of
from gateway.ledger.tables.work import AttemptRow, CheckpointRow, JobRow
from tests.api.conftest import Client
from tests.api.test_access import filled, routes
from tests.harness.federation import Federation, job
from tests.harness.waiting import eventually

URL = "s3://ckpt/acme/nlp/run"


@pytest.fixture
def running(as_: Client, federation: Federation, url: str) -> "tuple[str, str, httpx.Client]":
    made = as_("nlp").post("/v1/jobs", json=job(checkpoint={"url": URL})).json()["id"]
    attempt = federation.attempt(made)
    with Session(federation.engine) as session, session.begin():
        session.execute(update(JobRow).where(col(JobRow.id) == UUID(made)).values(state="RUNNING"))
    return made, attempt, as_(attempt)


Running = tuple[str, str, httpx.Client]


def test_progress_and_checkpoints_are_stored(running: Running, engine: Engine) -> None:
    made, attempt, itself = running
    assert itself.post("/v1/attempt/progress", json={"step": 7, "samples": 70}).status_code == 204
    manifest = {"step": 7, "url": f"{URL}/attempt-1/step-7", "size": 10, "parts": ["model"], "world_size": 2}
    for _ in range(2):
        assert itself.post("/v1/attempt/checkpoints", json=manifest).status_code == 201
    with Session(engine) as session:
        row = session.get(AttemptRow, attempt)
        assert row is not None
        assert row.progress["step"] == 7
        saved = session.get(CheckpointRow, (UUID(made), -1, 1, 7))
        assert saved is not None
        assert saved.verified == 1
    outside = itself.post("/v1/attempt/checkpoints", json={**manifest, "url": "s3://ckpt/acme/vision/x"})
    assert (outside.status_code, outside.json()["field"]) == (422, "url")


def test_what_the_provider_told_an_instance_becomes_an_event(running: Running, as_: Client) -> None:
    made, attempt, itself = running
    told = {"kind": "revoke", "deadline": 1_900_000_000.5, "instance": "i-0aaa"}
    assert itself.post("/v1/attempt/notices", json=told).status_code == 204
    last = as_("nlp").get(f"/v1/jobs/{made}/events").json()["items"][-1]
    assert (last["kind"], last["attempt"], last["data"]["instance"]) == ("Notice", attempt, "i-0aaa")


def test_the_notice_comes_while_the_attempt_waits(running: Running, as_: Client) -> None:
    made, _, itself = running
    assert itself.get("/v1/attempt/notice", params={"wait_s": 0}).json()["kind"] == ""
    heard: list[dict[str, object]] = []

    def wait() -> None:
        heard.append(itself.get("/v1/attempt/notice", params={"wait_s": 20}).json())

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert as_("nlp").post(f"/v1/jobs/{made}:checkpoint").status_code == 202
    waiting.join(15)
    assert heard[0]["kind"] == "checkpoint"
    same = f"checkpoint/{heard[0]['number']}"
    assert itself.get("/v1/attempt/notice", params={"wait_s": 0, "seen": same}).json()["kind"] == "checkpoint"
    as_("nlp").post(f"/v1/jobs/{made}:cancel")
    assert itself.get("/v1/attempt/notice", params={"wait_s": 10, "seen": same}).json()["kind"] == "stop"


def test_the_token_dies_with_its_attempt(running: Running, engine: Engine) -> None:
    _, attempt, itself = running
    with Session(engine) as session, session.begin():
        session.execute(update(AttemptRow).where(col(AttemptRow.id) == attempt).values(ended_at=func.now()))
    assert itself.post("/v1/attempt/progress", json={"step": 1}).status_code == 401


def test_an_attempts_token_opens_no_other_route_and_no_api_token_opens_its_own(
    running: Running, as_: Client, app: FastAPI
) -> None:
    _, _, itself = running
    root = as_("root")
    tried = 0
    for method, path, dependency in routes(app):
        if isinstance(dependency, Requires):
            assert itself.request(method, filled(path), json={}).status_code in {403, 422}, path
            tried += 1
        if isinstance(dependency, RequiresAttempt):
            assert root.request(method, filled(path), json={}).status_code in {403, 422}, path
    assert tried > 40


def test_an_archive_is_kept_under_its_tenant_and_digest(as_: Client, deps: Deps, federation: Federation) -> None:
    nlp = as_("nlp")
    body = b"an archive " * 1000
    sha256 = hashlib.sha256(body).hexdigest()
    assert nlp.put(f"/v1/workdirs/{sha256}", content=body).status_code == 201
    assert nlp.put(f"/v1/workdirs/{sha256}", content=body).status_code == 200
    kept = location(store_of(deps.settings), federation.tenants["acme/nlp"], sha256).removeprefix("file://")
    with open(kept, "rb") as file:  # noqa: PTH123
        assert file.read() == body
    assert nlp.post("/v1/jobs", json=job(workdir=sha256)).status_code == 202
    stranger = as_("vision").post("/v1/jobs", json=job(workdir=sha256))
    assert (stranger.status_code, stranger.json()["field"]) == (422, "workdir")


def test_an_archive_with_another_digest_or_too_large_leaves_nothing(
    as_: Client, deps: Deps, federation: Federation
) -> None:
    nlp = as_("nlp")
    wrong = nlp.put(f"/v1/workdirs/{'0' * 64}", content=b"something else")
    assert (wrong.status_code, wrong.json()["field"]) == (422, "sha256")

    def endless() -> "object":
        for _ in range(40):
            yield b"x" * 100_000

    try:
        large = nlp.put(f"/v1/workdirs/{'1' * 64}", content=endless())  # type: ignore[arg-type]
        assert large.status_code == 413
    except httpx.WriteError:
        pass  # answered and closed before all was sent
    folder = deps.settings.data_dir / "workdirs" / str(federation.tenants["acme/nlp"])
    eventually(lambda: [p.name for p in folder.iterdir()] == [], what="the folder to be empty")
