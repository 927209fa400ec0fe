"""Every verb: JSON that is only JSON, words for people, exit codes, text that does nothing to a terminal."""

import json
import os
import pty
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest

from tests.fakes.gate import FakeGate, Refuse, event, problem
from tests.unit.cli.conftest import ROOT, Cli
from tidegate.cli import main, output, server_verbs
from tidegate.cli.text import one_line, plain
from tidegate.wire.enums import JobState

NASTY = "\x1b[2J\x1b]0;title\x07evil\u202ename\x9b31m\r"


@pytest.mark.parametrize("verb", ["show", "explain", "cancel", "hold", "unhold", "checkpoint", "requeue"])
def test_a_verb_on_a_job_answers_in_words_and_in_json(gate: FakeGate, cli: Cli, verb: str) -> None:
    job = gate.add()
    words, document = cli(verb, job.id), cli(verb, job.id, "--json")
    assert (words.code, document.code) == (0, 0)
    assert words.out.strip()
    assert job.id in json.dumps(document.json)


def test_resize_and_update_send_what_was_asked(gate: FakeGate, cli: Cli) -> None:
    job = gate.add()
    cli("resize", job.id, "4", "--group", "workers")
    assert json.loads(gate.seen[-1].body) == {"group": "workers", "replicas": 4}
    cli("update", job.id, "--priority", "P1", "--label", "a=b", "--max-duration", "90m")
    assert json.loads(gate.seen[-1].body) == {"priority": "P1", "labels": {"a": "b"}, "max_duration": 5400}
    assert cli("update", job.id).code == 64
    assert cli("update", job.id, "--max-duration", "soon").code == 64


def test_list_shows_live_jobs_and_json_has_all_fields(gate: FakeGate, cli: Cli) -> None:
    gate.add("first", states=deque([{"state": "QUEUED", "pending": {"token": "WaitingForQuota"}}]))
    done = cli("list")
    assert "WaitingForQuota" in done.out
    assert gate.seen[-1].query["state"] == ["QUEUED", "ADMITTED", "RUNNING", "STOPPING"]
    assert cli("list", "--all", "--json").json[0]["name"] == "first"
    assert "state" not in gate.seen[-1].query
    cli("list", "--state", "FAILED", "--limit", "1")
    assert gate.seen[-1].query["state"] == [JobState.FAILED]


def test_an_empty_list_is_an_empty_document(cli: Cli) -> None:
    assert cli("list", "--json").json == []
    assert cli("list").out == ""


def test_names_in_tables_do_nothing_to_a_terminal(gate: FakeGate, cli: Cli) -> None:
    gate.add(NASTY)
    for done in (cli("list"), cli("show", next(iter(gate.jobs)))):
        assert "evilname" in done.out
        assert not set("\x1b\x9b\x07\u202e\r") & set(done.out)


def test_log_text_is_stripped_on_a_terminal_and_whole_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output.print_log("a\x1b[31mred\x1b[0m\n")
    assert capsys.readouterr().out == "a\x1b[31mred\x1b[0m\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.print_log("a\x1b[31mred\x1b[0m\n\x1b]52;c;aGk=\x07tail\n")
    assert capsys.readouterr().out == "ared\ntail\n"


def test_a_real_terminal_gets_no_control_sequence_of_a_job(gate: FakeGate) -> None:
    job = gate.add(logs={(1, 0): f"before {NASTY}\nafter\n"}, states=deque([{"state": "SUCCEEDED"}]))
    terminal, side = pty.openpty()
    try:
        command = [sys.executable, "-m", "tidegate", "logs", job.id]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, stdout=side, stderr=subprocess.PIPE, env=environment, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        shown = os.read(terminal, 65_536).decode()
    finally:
        os.close(terminal)
        os.close(side)
    assert "before evilname" in shown
    assert "after" in shown
    assert not set("\x1b\x9b\x07\u202e") & set(shown)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ñ 名前\ttab\n", "plain ñ 名前\ttab\n"),
        ("\x1b[1;31mred\x1b[m", "red"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0;2\x1b\\x", "x"),
        ("10%\r20%\r\n", "10%\n20%\n"),
        ("\x9b2Jx\x90abc\x9cy", "xy"),
        ("a\x1b", "a"),
        ("\x1b(0lqk\x1b(B", "lqk"),
        ("\u202eabc\u2066", "abc"),
    ],
)
def test_control_sequences_are_taken_out_and_nothing_else(text: str, shown: str) -> None:
    assert plain(text) == shown
    assert "\n" not in one_line(text)


def test_events_and_logs_are_json_lines(gate: FakeGate, cli: Cli) -> None:
    ended = deque([{"state": "SUCCEEDED"}])
    job = gate.add(events=[event(1), event(2)], logs={(1, 0): "x\ny\n"}, states=ended)
    assert [json.loads(line)["id"] for line in cli("events", job.id, "--json").out.splitlines()] == [1, 2]
    assert [json.loads(line)["id"] for line in cli("events", job.id, "-f", "--json").out.splitlines()] == [1, 2]
    assert [json.loads(line)["text"] for line in cli("logs", job.id, "--json").out.splitlines()] == ["x\n", "y\n"]
    assert cli("logs", job.id, "--offset", "2").out == "y\n"
    assert "RUNNING" in cli("events", job.id).out


def test_a_job_that_is_not_there_is_a_refusal_with_words(cli: Cli) -> None:
    done = cli("show", "unknown")
    assert done.code == 65
    assert "there is no job 'unknown'" in done.err


def test_errors_with_json_are_a_problem_on_standard_error(cli: Cli) -> None:
    done = cli("show", "unknown", "--json")
    assert done.out == ""
    assert json.loads(done.err)["status"] == 404


@pytest.mark.parametrize(("status", "code"), [(400, 65), (401, 65), (403, 65), (409, 65), (500, 70)])
def test_refusals_have_codes(gate: FakeGate, cli: Cli, status: int, code: int) -> None:
    gate.fail(Refuse(status, body=problem(status, "x", "no")))
    assert cli("whoami").code == code


def test_a_dark_gate_is_69(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert cli("--url", f"http://127.0.0.1:{port}", "whoami").code == 69


def test_a_broken_configuration_is_78(cli: Cli, tmp_path: Path) -> None:
    assert cli("--url", "no url", "whoami").code == 78


@pytest.mark.parametrize("arguments", [["run"], ["list", "--state", "NAPPING"], ["nonsense"], ["list", "--nope"]])
def test_wrong_usage_is_64_so_that_a_jobs_own_2_stays_its_own(cli: Cli, arguments: list[str]) -> None:
    assert cli(*arguments).code == 64


def test_an_argument_that_is_out_of_bounds_is_named(cli: Cli) -> None:
    done = cli("resize", "j", "99999999")
    assert (done.code, "replicas" in done.err) == (64, True)
    assert cli("show", "").code == 64


def test_apply_and_diff(gate: FakeGate, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "operators.yaml").write_text("kind: tenant\npath: acme\n---\nkind: tenant\npath: acme/nlp\n")
    different = cli("diff", "-f", "operators.yaml")
    assert (different.code, different.out) == (1, "+ tenant acme\n")
    assert cli("apply", "-f", str(tmp_path), "--json").json["applied"] is True
    same = cli("diff", "-f", "operators.yaml", "--json")
    assert (same.code, same.json["changes"]) == (0, [])
    assert [one["path"] for one in json.loads(gate.seen[-1].body)["documents"]] == ["acme", "acme/nlp"]
    assert cli("apply", "-f", "operators.yaml", "--prune").code == 0


def test_a_prune_that_deletes_asks_first(gate: FakeGate, cli: Cli, tmp_path: Path, stdin_is_no_terminal: None) -> None:
    (tmp_path / "operators.yaml").write_text("kind: tenant\npath: acme\n")
    doomed = {"changes": [{"action": "delete", "kind": "tenant", "name": "old"}], "applied": False}
    gate.fail(Refuse(200, body=json.dumps(doomed).encode()))
    done = cli("apply", "-f", "operators.yaml", "--prune")
    assert done.code == 64
    assert "- tenant old" in done.err
    assert not gate.applied


@pytest.fixture
def stdin_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.cli.operators.os.isatty", lambda _: False)


def test_a_tokens_secret_goes_to_a_private_file_when_asked(cli: Cli, tmp_path: Path) -> None:
    make = ("token", "create", "--tenant", "acme", "--principal", "ci", "--expires-in", "90d")
    assert cli(*make).out == "tg_made_secret\n"
    done = cli(*make, "--out", "token", "--json")
    assert "tg_made_secret" not in done.out + done.err
    assert (tmp_path / "token").read_text() == "tg_made_secret\n"
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    again = cli(*make, "--out", "token")
    assert again.code == 73


def test_no_file_is_left_when_the_token_could_not_be_made(gate: FakeGate, cli: Cli, tmp_path: Path) -> None:
    gate.fail(Refuse(403, body=problem(403, "forbidden", "no")))
    assert cli("token", "create", "--tenant", "acme", "--principal", "ci", "--out", "token").code == 65
    assert not (tmp_path / "token").exists()


def test_server_verbs_without_the_server_say_what_to_install(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_verbs, "entry_points", lambda group: ())
    for verb in server_verbs.VERBS:
        done = cli(verb, "--whatever", "x")
        assert done.code == 69, verb
        assert "pip install 'tidegate-server[server,embedded]'" in done.err


def test_a_defect_in_the_server_is_not_taken_for_a_missing_extra(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name = "server"

        def __init__(self, missing: str) -> None:
            self.missing = missing

        def load(self) -> object:
            raise ModuleNotFoundError(f"No module named {self.missing!r}", name=self.missing)

    monkeypatch.setattr(server_verbs, "entry_points", lambda group: (Point("sqlalchemy.orm"),))
    assert cli("serve").code == 69
    monkeypatch.setattr(server_verbs, "entry_points", lambda group: (Point("gatewya"),))
    with pytest.raises(ModuleNotFoundError):
        cli("serve")


def test_the_clients_verbs_do_not_load_the_server(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(group: str) -> object:
        raise AssertionError("looked up the server's verbs")

    monkeypatch.setattr(server_verbs, "entry_points", loaded)
    assert cli("list").code == 0


def test_version_and_whoami(gate: FakeGate, cli: Cli) -> None:
    assert cli("version").out.startswith("tidegate ")
    assert set(cli("version", "--json").json) == {"client", "server"}
    assert cli("whoami", "--json").json == {"principal": "me", "tenant": "acme", "role": "submitter", "url": gate.url}


def test_figures_are_cut_never_rounded_up() -> None:
    assert (output.gpu_hours(3_599_999), output.gpu_hours(5_400_000)) == ("0.99", "1.50")
    assert (output.dollars(1_999_999), output.dollars(-1_999_999)) == ("1.99", "-1.99")


def test_the_secret_of_the_environment_is_never_shown(gate: FakeGate, cli: Cli) -> None:
    gate.fail(Refuse(401, body=problem(401, "unauthorized", "no")))
    done = cli("whoami", "--json")
    assert "tg_secret_of_the_cli" not in done.out + done.err


def test_every_verb_of_the_client_takes_json() -> None:
    import typer

    commands = typer.main.get_group(main.build()).commands
    groups = {name: command for name, command in commands.items() if hasattr(command, "commands")}
    below = [(f"{name} {verb}", one) for name, group in groups.items() for verb, one in group.commands.items()]
    bare = {"token", "grant", "override"}  # they show what they have and do nothing by themselves
    without = [
        name
        for name, command in [*commands.items(), *below]
        if name not in bare and not any("--json" in parameter.opts for parameter in command.params)
    ]
    assert {"quota set", "grant create", "budget set", "token create"} <= {name for name, _ in below}
    assert without == []
