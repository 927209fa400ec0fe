"""Importing the helper costs a job nothing, and the examples are jobs."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tidegate.wire.spec import JobSpec

ROOT = Path(__file__).parents[3]
EXAMPLES = [*sorted((ROOT / "examples").glob("*.yaml")), ROOT / "examples" / "train" / "train.yaml"]


def modules_after(program: str, *options: str) -> set[str]:
    """What a fresh interpreter has loaded."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{program}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_the_helper_pulls_in_none_of_the_clients_packages() -> None:
    found = modules_after("from tidegate import job; job.context(); job.Session; job.Stager")
    tops = {name.partition(".")[0] for name in found - modules_after("pass")}
    assert tops - set(sys.stdlib_module_names) == {"tidegate"}


def test_a_keeper_starts_without_what_only_jobs_and_agents_need() -> None:
    found = modules_after("import tidegate.agent.keeper", "-S", "-I")
    assert "tidegate.agent.child" in found
    assert not found & {"dataclasses", "urllib.request", "http.client", "socket", "logging", "shutil", "subprocess"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_a_job_that_would_be_accepted(path: Path) -> None:
    spec = JobSpec.model_validate(yaml.safe_load(path.read_text()))
    assert spec.gang_size >= 1
    assert spec.max_duration, "an example says how long it may run"
