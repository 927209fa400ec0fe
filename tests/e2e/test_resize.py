"""An elastic training on the embedded stack: 4 members, 2, and 4 again by `tidegate resize`; the loss stays right."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.demo import story
from gateway.ledger.check import check
from gateway.ledger.engine import make_engine
from tests.e2e.conftest import ROOT, Gate
from tests.harness.waiting import eventually
from tidegate.wire.job import Attempt
from tidegate.wire.spec import JobSpec

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]
STEPS = "600"
TRAIN = ROOT / "examples" / "train"


def unbroken(folder: Path) -> float:
    """The loss of the same training in one process that nobody interrupts."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    done = subprocess.run(
        [sys.executable, str(TRAIN / "train.py")],
        cwd=folder,
        env={**env, "STEPS": STEPS, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return loss(done.stdout)


def loss(text: str) -> float:
    found = re.search(r"^final_loss=(.+)$", text, re.MULTILINE)
    assert found, text
    return float(found[1])


def attempts(gate: Gate, job: str) -> list[Attempt]:
    return sorted(gate.operator.attempts(job), key=lambda attempt: attempt.number)


def runs(gate: Gate, job: str, number: int) -> Attempt | None:
    """The attempt of that number, once it runs and has said so in its log."""
    found = [one for one in attempts(gate, job) if one.number == number and one.state == "RUNNING"]
    return found[0] if found and "step " in logged(gate, job, number) else None


def logged(gate: Gate, job: str, attempt: int) -> str:
    return "".join(piece.text for piece in gate.operator.logs(job, attempt=attempt))


def test_a_training_shrinks_from_four_to_two_and_grows_back_with_the_loss_still_right(
    gate: Gate, tmp_path: Path
) -> None:
    url = story.checkpoint_prefix(gate.stack.data_dir).as_uri()
    spec = {
        "name": "elastic",
        "tenant": "acme/research",
        "kind": "training",
        "workdir": gate.operator.upload_workdir(TRAIN, tenant="acme/research"),
        "run": f'exec "{sys.executable}" train.py',
        "env": {"STEPS": STEPS, "STEP_MS": "50", "SAVE_EVERY": "20"},
        "num_nodes": 4,
        "resources": {"accelerators": "V100:1", "cpus": 1, "memory": "256Mi"},
        "capacity": {"type": "on_demand"},
        "elastic": {"min": 2, "target": 4, "max": 4, "multiple_of": 2, "reshard": True},
        "checkpoint": {"url": f"{url}/elastic", "interval": "30m"},
        "max_duration": "1h",
        "gang_timeout": "2m",
        "grace": "60s",
    }
    job = gate.operator.submit(JobSpec.model_validate(spec)).id
    first = eventually(lambda: runs(gate, job, 1), timeout_s=90, every_s=0.5, what="four members to run")
    assert first is not None
    assert sum(part.replicas for part in first.placed) == 4

    refused = gate.cli("resize", job, "3")
    assert refused.returncode == 65, refused.stdout + refused.stderr
    assert "multiple of 2" in refused.stderr
    eventually(lambda: gate.cli("resize", job, "2").returncode == 0, timeout_s=60, every_s=1, what="a first save")
    second = eventually(lambda: runs(gate, job, 2), timeout_s=90, every_s=0.5, what="two members to run")
    assert second is not None
    assert sum(part.replicas for part in second.placed) == 2
    told = logged(gate, job, 2)
    assert "rank 0 of 2: 2 micro-batches, rate times 1" in told
    (left,) = re.findall(r"told to leave, saved after step (\d+)", logged(gate, job, 1))
    assert f"resumed from step {left} of attempt 1" in told, "from the same step"

    assert gate.cli("resize", job, "4").returncode == 0
    third = eventually(lambda: runs(gate, job, 3), timeout_s=90, every_s=0.5, what="four members to run again")
    assert third is not None
    assert sum(part.replicas for part in third.placed) == 4
    done = gate.operator.wait(job, timeout_s=180)
    assert (done.state, [one.state for one in attempts(gate, job)]) == (
        "SUCCEEDED",
        ["RESIZED", "RESIZED", "SUCCEEDED"],
    )
    assert loss(logged(gate, job, 3)) == pytest.approx(unbroken(tmp_path), rel=1e-9)
    engine = make_engine(gate.stack.database_url)
    try:
        assert check(engine) == []
    finally:
        engine.dispose()
