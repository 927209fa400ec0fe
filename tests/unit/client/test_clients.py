"""Both clients offer the same; a spec arrives as it was written; a code folder is packed and sent."""

import gzip
import json
from pathlib import Path

import pytest

import tidegate
from tests.fakes.gate import FakeGate
from tests.unit.client.conftest import Ask
from tidegate import AsyncClient, Client, JobSpec
from tidegate.client import UsageError
from tidegate.client.bind import _Method

WANTED = [
    "submit",
    "submit_batch",
    "get",
    "list",
    "cancel",
    "hold",
    "unhold",
    "resize",
    "checkpoint",
    "update",
    "requeue",
    "explain",
    "events",
    "logs",
    "wait",
    "tasks",
    "whoami",
    "quotas",
    "usage",
    "credits",
    "statement",
    "tenants",
    "flavors",
    "pools",
    "backends",
    "tokens",
    "grants",
    "audit",
    "apply",
    "diff",
    "upload_workdir",
]
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


def bound(client: type) -> dict[str, object]:
    return {name: method._build for name, method in vars(client).items() if isinstance(method, _Method)}


def test_both_clients_have_the_same_methods_built_by_the_same_functions() -> None:
    assert bound(Client) == bound(AsyncClient)
    for client in (Client, AsyncClient):
        assert not [name for name in WANTED if not callable(getattr(client, name, None))]


def test_every_method_is_documented_where_people_look() -> None:
    for name in WANTED:
        assert (getattr(Client, name).__doc__ or "").strip(), name


def test_arguments_that_can_never_be_right_are_named_before_anything_is_sent(gate: FakeGate, ask: Ask) -> None:
    with pytest.raises(UsageError, match="replicas"):
        ask("resize", "j", 0)
    with pytest.raises(UsageError, match="max_duration"):
        ask("update", "j", max_duration=-1)
    with pytest.raises(UsageError, match="jobs"):
        ask("submit_batch", [])
    for key in ("", "two words", "x" * 256, "a\r\nHost: evil"):
        with pytest.raises(UsageError, match="key"):
            ask("submit", JobSpec(name="n", run="r"), key=key)
    assert not gate.seen


@pytest.mark.parametrize("name", NAMES)
def test_sl_11_names_arrive_intact(gate: FakeGate, ask: Ask, name: str) -> None:
    env = {"LIST": "a,b", "MSG": "it's $HOME", "NL": "l1\nl2", "EQ": "k=v"}
    ask("submit", JobSpec(name=name, run="true", env=env))
    sent = json.loads(gate.seen[0].body)
    assert (sent["name"], sent["env"]) == (name, env)


def test_fields_that_were_not_given_are_not_sent(gate: FakeGate, ask: Ask) -> None:
    ask("submit", JobSpec.model_validate({"name": "n", "run": "r", "max_duration": "90m", "resources": {"cpus": 0.5}}))
    assert json.loads(gate.seen[0].body) == {
        "name": "n",
        "run": "r",
        "max_duration": "90m",
        "resources": {"cpus": "0.5"},
    }


def test_what_only_a_newer_server_says_is_passed_over(gate: FakeGate, ask: Ask) -> None:
    job = gate.add("old")
    job.body |= {"invented": 1, "resources": {"cpus": "2", "qubits": 3}, "groups": [{"name": "a", "spin": "up"}]}
    found = ask("get", job.id)
    assert (found.name, found.spec.resources.cpus, found.spec.groups[0].name) == ("old", 2000, "a")


def test_an_identifier_never_leaves_its_place_in_the_path(gate: FakeGate, ask: Ask) -> None:
    with pytest.raises(tidegate.client.ProblemError):
        ask("get", "../../v1/me?x=1#y")
    assert gate.seen[0].path == "/v1/jobs/..%2F..%2Fv1%2Fme%3Fx%3D1%23y"
    for nothing in ("", ".", ".."):
        with pytest.raises(ValueError, match="name is missing"):
            ask("get", nothing)


def test_a_batch_is_one_request_with_one_key(gate: FakeGate, ask: Ask) -> None:
    made = ask("submit_batch", [JobSpec(name=f"j{n}", run="true") for n in range(3)], key="k")
    assert [gate.jobs[job.id].body["name"] for job in made.jobs] == ["j0", "j1", "j2"]
    assert ask("submit_batch", [JobSpec(name=f"j{n}", run="true") for n in range(3)], key="k").jobs[0].replayed


def test_a_code_folder_is_sent_under_its_digest(gate: FakeGate, ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n" * 100_000)
    (tmp_path / ".gitignore").write_text("secret\n")
    (tmp_path / "secret").write_text("x")
    digest = ask("upload_workdir", tmp_path, tenant="acme/nlp")
    assert b"train.py" in gzip.decompress(gate.archives[digest])
    assert gate.seen[0].query == {"tenant": ["acme/nlp"]}
    assert ask("upload_workdir", tmp_path) == digest


def test_the_package_offers_its_three_names_and_no_others() -> None:
    assert tidegate.JobSpec is JobSpec
    with pytest.raises(AttributeError, match="Clinet"):
        _ = tidegate.Clinet
