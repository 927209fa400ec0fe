"""Every command and example of the README's first page works as printed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import Gate
from tidegate.wire.spec import JobSpec

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    return [
        line.strip().split("  #")[0].strip() for line in README.splitlines() if line.startswith("    ") and "#" in line
    ]


def test_the_commands_are_those_that_are_tested_here() -> None:
    assert commands() == [
        "make demo",
        "make test",
        "tidegate run examples/hello.yaml --wait",
        "tidegate explain JOB",
    ]


def test_make_runs_the_demo_and_the_tests_that_this_suite_belongs_to() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^demo: .*\n\t@\$\(BIN\)/tidegate demo$", makefile, re.MULTILINE)
    assert re.search(r"^test: .*\n\t@\$\(BIN\)/pytest \$\(PARALLEL\) \$\(ARGS\)$", makefile, re.MULTILINE)


def test_the_job_file_shown_is_the_one_shipped() -> None:
    (shown,) = blocks("yaml")
    assert JobSpec.model_validate(yaml.safe_load(shown)) == JobSpec.model_validate(
        yaml.safe_load((ROOT / "examples" / "hello.yaml").read_text())
    )


def test_run_wait_streams_and_exits_with_the_jobs_code(gate: Gate) -> None:
    done = gate.cli("run", "examples/hello.yaml", "--wait", "--tenant", "acme/research")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "hello from rank 0 of 2\n"
    listed = json.loads(gate.cli("list", "--all", "--json").stdout)
    explained = gate.cli("explain", listed[0]["id"])
    assert explained.returncode == 0, explained.stderr
    assert "SUCCEEDED" in explained.stdout


def test_the_python_example_works_as_printed(gate: Gate) -> None:
    (shown,) = blocks("python")
    shown = shown.replace('run="echo hello"', 'run="echo hello", tenant="acme/research"')  # an operator names a tenant
    done = subprocess.run(
        [sys.executable, "-c", shown], env=gate.environment(), capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "SUCCEEDED"
