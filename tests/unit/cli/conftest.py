"""The command line run in this process against a fake gate, and as a program of its own where signals matter."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gate import FakeGate
from tidegate.cli.main import run

ROOT = Path(__file__).parents[3]
CI_VARIABLES = ("GITHUB_RUN_ID", "CI_JOB_ID", "BUILDKITE_JOB_ID", "CIRCLE_WORKFLOW_JOB_ID", "SYSTEM_JOBID", "BUILD_TAG")
HELLO = "name: hello\nrun: echo hello\n"


@dataclass
class Done:
    """How a run of the command line ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Done]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeGate]:
    for name in CI_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with FakeGate.running() as running:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("TIDEGATE_URL", running.url)
        monkeypatch.setenv("TIDEGATE_TOKEN", "tg_secret_of_the_cli")
        monkeypatch.chdir(tmp_path)
        yield running


@pytest.fixture
def cli(gate: FakeGate, capfd: pytest.CaptureFixture[str]) -> Cli:
    """`cli("list", "--json")`."""

    def call(*arguments: str) -> Done:
        capfd.readouterr()
        code = run(list(arguments))
        out, err = capfd.readouterr()
        return Done(code, out, err)

    return call


@pytest.fixture
def hello(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(HELLO)
    return str(path)


@pytest.fixture
def program(gate: FakeGate, tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """The program, started and left to the test; killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "tidegate", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
