"""`tidegate backends`, `backends forget` and `cancel --index` against the real API."""

import json
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, text

from tests.api.conftest import Client
from tests.harness.federation import Federation, job
from tidegate.cli.main import run

Ran = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ran(url: str, federation: Federation, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Ran:
    """`ran("root", "backends")`."""

    def call(principal: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("TIDEGATE_URL", url)
        monkeypatch.setenv("TIDEGATE_TOKEN", federation.tokens[principal])
        capfd.readouterr()
        code = run(list(arguments))
        return code, *capfd.readouterr()

    return call


def test_backends_are_shown_as_before(ran: Ran) -> None:
    code, out, _ = ran("root", "backends")
    assert (code, "cluster" in out, "steady" in out) == (0, True, True)
    code, out, _ = ran("root", "backends", "--json")
    assert (code, [one["name"] for one in json.loads(out)["backends"]]) == (0, ["cluster"])


def test_forgetting_needs_a_reason_and_a_yes_and_a_dark_backend(ran: Ran, engine: Engine) -> None:
    forget = ("backends", "forget", "cluster")
    assert ran("root", *forget, "--yes")[0] == 64
    code, _, err = ran("root", *forget, "--reason", "burnt")
    assert (code, "--yes" in err) == (64, True)
    code, _, err = ran("root", *forget, "--reason", "burnt", "--yes")
    assert (code, "answers" in err) == (65, True)
    with engine.begin() as connection:
        connection.execute(text("UPDATE backends SET dark_since = now()"))
    code, out, _ = ran("root", *forget, "--reason", "burnt", "--yes")
    assert (code, out) == (0, "cluster is forgotten: 0 attempts over, 0 told to stop elsewhere\n")
    code, out, _ = ran("root", *forget, "--reason", "burnt", "--yes", "--force", "--json")
    assert (code, json.loads(out)["pools"]) == (0, ["spot", "steady"])


def test_one_index_is_cancelled_from_the_command_line(ran: Ran, as_: Client) -> None:
    made = as_("nlp").post("/v1/jobs", json=job(array={"indexes": 3})).json()["id"]
    code, out, _ = ran("nlp", "cancel", made, "--index", "2", "-m", "broken input", "--json")
    assert (code, json.loads(out)["state"], json.loads(out)["array_ended"]) == (0, "QUEUED", 1)
    code, _, err = ran("nlp", "cancel", made, "--index", "3")
    assert (code, "between 0 and 2" in err) == (65, True)
