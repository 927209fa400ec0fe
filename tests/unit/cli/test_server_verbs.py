"""The server's verbs without and beside a database: what they conclude, what they say and how they exit."""

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from gateway.embedded import whereabouts
from gateway.verbs import words_of
from tests.harness.ports import free_port
from tidegate.cli.main import run
from workflows.recover import RecoverReport

Ran = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ran(capfd: pytest.CaptureFixture[str]) -> Ran:
    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(list(arguments))
        return code, *capfd.readouterr()

    return call


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """What a verb writes into the environment is taken back after the test."""
    for name in ("TIDEGATE_DATABASE_URL", "TIDEGATE_TEMPORAL_ADDRESS", "TIDEGATE_DATA_DIR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize("verb", ["check", "migrate", "recover", "serve", "worker"])
def test_without_a_database_a_verb_says_where_it_looked_in_one_line_and_exits_69(
    ran: Ran, environment: pytest.MonkeyPatch, verb: str
) -> None:
    port = free_port()
    url = f"postgresql+psycopg://tidegate:hunter2@127.0.0.1:{port}/tidegate"
    environment.setenv("TIDEGATE_DATABASE_URL", url)
    code, out, err = ran(verb)
    assert (code, out) == (69, "")
    assert len(err.strip().splitlines()) == 1
    assert f"127.0.0.1:{port}/tidegate does not answer" in err
    assert "TIDEGATE_DATABASE_URL" in err
    assert "hunter2" not in err


def test_check_finds_the_books_of_a_folder_and_tells_right_from_wrong(
    ran: Ran, environment: pytest.MonkeyPatch, tmp_path: Path, database_url: str, engine: Engine
) -> None:
    found = {"TIDEGATE_DATABASE_URL": database_url, "TIDEGATE_TEMPORAL_ADDRESS": "127.0.0.1:1", "TIDEGATE_DATA_DIR": ""}
    whereabouts.write(tmp_path, {**found, "TIDEGATE_OTHER": "not kept"})
    assert stat.S_IMODE((tmp_path / "stack.json").stat().st_mode) == 0o600
    assert whereabouts.read(tmp_path) == found
    code, out, _ = ran("check", "--data-dir", str(tmp_path))
    assert (code, "balances" in out) == (0, True)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO accounts (kind, unit, flavor, posted) VALUES ('money', 'x', '', 7)"))
    code, out, _ = ran("check", "--data-dir", str(tmp_path), "--json")
    assert code == 1
    (found_wrong,) = json.loads(out)
    assert set(found_wrong) == {"rule", "subject", "message"}
    assert found_wrong["rule"] == "balance"
    assert "stored (7, 0), entries give (0, 0)" in found_wrong["message"]
    code, out, _ = ran("check", "--data-dir", str(tmp_path))
    assert (code, out.strip()) == (1, ": ".join(found_wrong[part] for part in ("rule", "subject", "message")))


def test_a_folder_without_a_stack_and_one_that_is_down_say_what_to_type(
    ran: Ran, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, _, err = ran("check", "--data-dir", str(tmp_path))
    assert (code, "tidegate up" in err) == (64, True)
    url = f"postgresql+psycopg://tidegate:hunter2@/tidegate?host={tmp_path}"
    whereabouts.write(
        tmp_path, {"TIDEGATE_DATABASE_URL": url, "TIDEGATE_TEMPORAL_ADDRESS": "x", "TIDEGATE_DATA_DIR": str(tmp_path)}
    )
    for verb in ("check", "recover"):
        code, _, err = ran(verb, "--data-dir", str(tmp_path))
        assert (code, f"tidegate up --data-dir {tmp_path}" in err) == (69, True)
        assert "hunter2" not in err
    (tmp_path / "stack.json").write_text("{")
    assert ran("check", "--data-dir", str(tmp_path))[0] == 64


def test_a_database_without_a_ledger_is_no_disagreement(
    ran: Ran, environment: pytest.MonkeyPatch, database_url: str, engine: Engine
) -> None:
    environment.setenv("TIDEGATE_DATABASE_URL", database_url.rpartition("/")[0] + "/postgres" + _query(database_url))
    code, _, err = ran("check")
    assert (code, "tidegate migrate" in err) == (69, True)


def _query(url: str) -> str:
    return "?" + url.partition("?")[2] if "?" in url else ""


@pytest.mark.parametrize("verb", ["recover", "worker"])
def test_without_temporal_a_verb_that_needs_it_exits_69(
    ran: Ran, environment: pytest.MonkeyPatch, database_url: str, verb: str
) -> None:
    address = f"127.0.0.1:{free_port()}"
    environment.setenv("TIDEGATE_DATABASE_URL", database_url)
    environment.setenv("TIDEGATE_TEMPORAL_ADDRESS", address)
    code, _, err = ran(verb)
    assert code == 69
    assert f"Temporal at {address} does not answer; set TIDEGATE_TEMPORAL_ADDRESS" in err
    assert "Traceback" not in err


def test_recover_speaks_in_words() -> None:
    words = words_of(
        RecoverReport(epoch=7, workflows_ended=2, adopted=["tg-1"], settled=[], unreachable={"far": "timed out"})
    )
    assert "RecoverReport" not in words
    assert "epoch is 7" in words
    assert "taken in: 1\n  tg-1" in words
    assert "settled: 0" in words
    assert "backend far could not be asked (timed out); run `tidegate recover` again" in words
