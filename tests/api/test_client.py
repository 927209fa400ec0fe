"""The SDK and the command line against the real API on a real database."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from gateway.ledger.tables.work import JobRow
from tests.harness.federation import Federation
from tests.harness.waiting import eventually
from tidegate import AsyncClient, Client, JobSpec
from tidegate.cli.main import run
from tidegate.client import ProblemError
from tidegate.wire.enums import JobState, PriorityClass, Resource, Role
from tidegate.wire.operator import OPERATOR_DOC, Grant, QuotaDoc, TokenRequest

Gate = Callable[[str], Client]
NAMES = [
    "crazy|name",
    "Big simulation",
    "two\nlines",
    "az'",
    'x" --uid=0',
    "--wrap=id",
    "$(touch /tmp/gw-pwned)",
    "名前",
]


def spec(name: str = "train", **more: object) -> JobSpec:
    return JobSpec.model_validate({"name": name, "run": "true", "resources": {"accelerators": "H100:1"}, **more})


@pytest.fixture
def gate(url: str, federation: Federation) -> Iterator[Gate]:
    clients: list[Client] = []

    def of(principal: str) -> Client:
        clients.append(Client(url, federation.tokens[principal]))
        return clients[-1]

    yield of
    for client in clients:
        client.close()


def test_a_job_is_submitted_replayed_read_changed_and_cancelled(gate: Gate) -> None:
    nlp = gate("nlp")
    made = nlp.submit(spec(labels={"team": "x"}), key="k")
    again = nlp.submit(spec(labels={"team": "x"}), key="k")
    assert (again.id, again.replayed) == (made.id, True)
    with pytest.raises(ProblemError) as caught:
        nlp.submit(spec("other"), key="k")
    assert (caught.value.status, caught.value.slug) == (409, "key-conflict")
    found = nlp.get(made.id)
    assert (found.state, found.spec.resources.accelerators.count) == (JobState.QUEUED, 1000)
    assert nlp.hold(made.id).on_hold is True
    assert nlp.explain(made.id).why is not None
    assert nlp.unhold(made.id).on_hold is False
    assert nlp.update(made.id, labels={"team": "y"}, max_duration=60).labels == {"team": "y"}
    assert [job.id for job in nlp.list(state=[JobState.QUEUED], label=["team=y"])] == [made.id]
    assert not list(nlp.attempts(made.id))
    assert not list(nlp.tasks(made.id))
    assert nlp.cancel(made.id, message="enough").state is JobState.CANCELLED
    assert nlp.wait(made.id, timeout_s=10).state is JobState.CANCELLED


@pytest.mark.parametrize("name", NAMES)
def test_sl_11_names_arrive_intact_through_the_client(gate: Gate, name: str) -> None:
    env = {"LIST": "a,b", "MSG": "it's $HOME", "NL": "l1\nl2", "EQ": "k=v"}
    nlp = gate("nlp")
    found = nlp.get(nlp.submit(spec(name, env=env)).id)
    assert (found.name, found.spec.env) == (name, env)
    assert not Path("/tmp/gw-pwned").exists()


def test_rs_03_a_walk_sees_every_job_once_while_jobs_come_and_go(gate: Gate, engine: Engine) -> None:
    nlp = gate("nlp")
    made = [job.id for job in nlp.submit_batch([spec(f"j{n}") for n in range(25)]).jobs]
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {JobRow.__tablename__} SET submitted_at = now() - interval '1 hour'"))
    walk = nlp.list(page_size=10)
    seen = [next(walk).id for _ in range(10)]
    gone = seen[:3]
    with engine.begin() as connection:
        # As retention does it: the keys live as long as the row.
        for table, column in (("idempotency_keys", "job_id"), ("jobs", "id")):
            connection.execute(text(f"DELETE FROM {table} WHERE {column} = ANY(CAST(:ids AS uuid[]))"), {"ids": gone})
    nlp.submit_batch([spec(f"new{n}") for n in range(5)])
    seen += [job.id for job in walk]
    remaining = [job for job in made if job not in gone]
    assert sorted(job for job in seen if job in remaining) == sorted(remaining)
    assert len(seen) == len(set(seen))


def test_events_are_followed_to_the_jobs_end(gate: Gate) -> None:
    nlp = gate("nlp")
    job = nlp.submit(spec()).id
    seen: list[str] = []
    follower = threading.Thread(target=lambda: seen.extend(event.kind for event in nlp.events(job)))
    follower.start()
    eventually(lambda: list(nlp.past_events(job)))
    nlp.cancel(job)
    follower.join(timeout=20)
    assert not follower.is_alive()
    assert seen == [event.kind for event in nlp.past_events(job)]
    assert len(seen) >= 2


def test_code_is_sent_and_named_by_its_digest(gate: Gate, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")
    nlp = gate("nlp")
    digest = nlp.upload_workdir(tmp_path)
    assert nlp.upload_workdir(tmp_path) == digest
    assert nlp.get(nlp.submit(spec(workdir=digest)).id).spec.workdir == digest
    with pytest.raises(ProblemError) as caught:
        gate("vision").submit(spec(workdir=digest))
    assert caught.value.field == "workdir"


def test_operators_objects_quotas_grants_and_tokens(gate: Gate, url: str) -> None:
    root = gate("root")
    assert root.whoami().role is Role.OPERATOR
    assert {t.path for t in root.tenants()} >= {"acme", "acme/nlp"}
    assert {f.name for f in root.flavors()} == {"h100", "h100-spot"}
    assert {p.name for p in root.pools()} == {"steady", "spot"}
    assert [b.name for b in root.backends()] == ["cluster"]
    assert root.drain("cluster").draining is True
    assert root.drain("cluster", draining=False).draining is False
    assert [s.name for s in root.storages()] == ["main"]
    assert [a.priority for a in root.allowances()] == [PriorityClass.P1]
    quota = next(q for q in root.quotas(tenant="acme/nlp") if q.tenant == "acme/nlp")
    wanted = QuotaDoc(tenant="acme/nlp", flavor="h100", resource=Resource.ACCELERATORS, min=8, max=24)
    changed = root.set_quota(wanted, etag=quota.etag)
    assert (changed.min, changed.max) == ("8", "24")
    with pytest.raises(ProblemError) as caught:
        root.set_quota(wanted, etag=quota.etag)
    assert caught.value.status == 412
    grant = Grant.model_validate(
        {"tenant": "acme/nlp", "flavor": "h100", "delta_min": 2, "starts_at": "2026-01-01T00:00:00Z", "cause": "launch"}
    )
    made = root.make_grant(grant)
    assert [g.id for g in root.grants()] == [made.id]
    root.revoke_grant(made.id)
    token = root.make_token(TokenRequest(tenant="acme/nlp", principal="ci", role=Role.SUBMITTER, expires_in=3600))
    assert token.secret
    assert token.secret not in repr(token)
    with Client(url, token.secret) as ci:
        assert ci.whoami().principal == "ci"
        root.revoke_token(token.id)
        with pytest.raises(ProblemError) as refused:
            ci.whoami()
    assert refused.value.status == 401
    assert {"token.create", "token.revoke"} <= {act.action for act in root.audit()}
    for walk in (root.usage(), root.credits(), root.statement()):
        assert list(walk) is not None


def test_apply_is_the_same_twice(gate: Gate) -> None:
    documents = [OPERATOR_DOC.validate_python({"kind": "tenant", "path": path}) for path in ("acme/new", "acme/new/x")]
    root = gate("root")
    assert len(root.diff(documents).changes) == 2
    assert root.apply(documents).applied is True
    assert root.diff(documents).changes == ()
    root.put_document(OPERATOR_DOC.validate_python({"kind": "tenant", "path": "acme/new/y", "contact": "y"}))  # type: ignore[arg-type]
    root.delete_document("tenant", "acme/new/y")


def test_the_asyncio_client_does_the_same(url: str, federation: Federation) -> None:
    async def story() -> list[str]:
        async with AsyncClient(url, federation.tokens["nlp"]) as nlp:
            made = await nlp.submit(spec())
            await nlp.cancel(made.id)
            kinds = [event.kind async for event in nlp.events(made.id)]
            assert (await nlp.wait(made.id, timeout_s=10)).state is JobState.CANCELLED
            assert [job.id async for job in nlp.list()] == [made.id]
            return kinds

    assert len(asyncio.run(story())) >= 2


@pytest.fixture
def as_nlp(federation: Federation, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the command line."""
    monkeypatch.setenv("TIDEGATE_TOKEN", federation.tokens["nlp"])
    monkeypatch.setenv("TIDEGATE_URL", url)


@pytest.mark.usefixtures("as_nlp")
def test_run_with_wait_ends_as_the_job_does(gate: Gate, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: hello\nrun: 'true'\nresources: {accelerators: 'H100:1'}\n")
    nlp = gate("nlp")
    first = threading.Thread(
        target=lambda: nlp.cancel(eventually(lambda: list(nlp.list()), what="the job")[0].id), name="canceller"
    )
    first.start()
    assert run(["run", str(path), "--wait", "--result", str(tmp_path / "out.json")]) == 130
    first.join()
    assert json.loads((tmp_path / "out.json").read_text())["reason"] == "UserCancelled"
    path.write_text("name: hello\nrun: 'true'\nresources: {accelerators: 'NoSuchCard:1'}\n")
    assert run(["run", str(path), "--wait"]) == 65
    assert "resources.accelerators" in capfd.readouterr().err
    for verb in (["list", "--all"], ["quota"], ["usage"], ["credits"], ["statement"], ["backends"], ["whoami"]):
        capfd.readouterr()
        assert run([*verb, "--json"]) == 0, verb
        json.loads(capfd.readouterr().out)
