"""The training example: interrupted at any step and resumed, it ends with the same loss to the last bit."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.ports import free_port
from tests.harness.waiting import eventually

ROOT = Path(__file__).parents[3]
TRAIN = ROOT / "examples" / "train" / "train.py"


class Run:
    """The ranks of one attempt as local processes."""

    def __init__(self, folder: Path, attempt: int, ranks: int = 2, **env: str) -> None:
        self.folder = folder / f"run-{attempt}"
        self.folder.mkdir(parents=True)
        port = free_port()
        self.processes = []
        for rank in range(ranks):
            with self.log(rank).open("w") as out:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, str(TRAIN)],
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        cwd=self.folder,
                        env={
                            **os.environ,
                            "PYTHONPATH": str(ROOT),
                            "STEPS": "60",
                            "SAVE_EVERY": "20",
                            "MASTER_ADDR": "127.0.0.1",
                            "MASTER_PORT": str(port),
                            "TIDEGATE_NODE_RANK": str(rank),
                            "TIDEGATE_NUM_NODES": str(ranks),
                            "TIDEGATE_ATTEMPT": str(attempt),
                            "TIDEGATE_CHECKPOINT_URL": str(folder / "ck" / f"attempt-{attempt}"),
                            "TIDEGATE_NOTICE_FILE": str(self.folder / f"notice-{rank}.json"),
                            **env,
                        },
                    )
                )

    def log(self, rank: int) -> Path:
        return self.folder / f"log-{rank}"

    def notice(self, rank: int, kind: str, number: int = 1) -> None:
        path = self.folder / f"notice-{rank}.json"
        path.with_suffix(".new").write_text(json.dumps({"kind": kind, "deadline": None, "grace_s": 60, "id": number}))
        path.with_suffix(".new").replace(path)
        self.processes[rank].send_signal(signal.SIGUSR1)

    def reaches(self, step: int) -> None:
        def there() -> bool:
            steps = [int(found) for found in re.findall(r"^step (\d+) ", self.log(0).read_text(), re.MULTILINE)]
            return bool(steps) and max(steps) >= step

        eventually(there, timeout_s=60, what=f"step {step}")

    def codes(self) -> list[int]:
        return [process.wait(90) for process in self.processes]

    def loss(self) -> str:
        found = re.search(r"^final_loss=(.+)$", self.log(0).read_text(), re.MULTILINE)
        assert found, self.log(0).read_text()
        return found[1]


@contextmanager
def run(folder: Path, attempt: int, ranks: int = 2, **env: str) -> Iterator[Run]:
    found = Run(folder, attempt, ranks, **env)
    try:
        yield found
    finally:
        for process in found.processes:
            process.kill()
            process.wait(10)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> str:
    with run(tmp_path_factory.mktemp("unbroken"), 1) as whole:
        assert whole.codes() == [0, 0]
        return whole.loss()


@pytest.mark.parametrize("told", [0, 1])
def test_a_run_that_one_rank_is_told_to_leave_ends_with_the_same_loss(tmp_path: Path, unbroken: str, told: int) -> None:
    with run(tmp_path, 1, STEP_MS="20") as first:
        first.reaches(20)
        first.notice(told, "revoke")
        assert first.codes() == [75, 75]
        left = [re.findall(r"told to leave, saved after step (\d+)", first.log(rank).read_text()) for rank in (0, 1)]
        assert left[0] == left[1]
        assert len(left[0]) == 1
        assert int(left[0][0]) >= 20
    with run(tmp_path, 2) as second:
        assert second.codes() == [0, 0]
        assert f"resumed from step {left[0][0]} of attempt 1" in second.log(1).read_text()
        assert second.loss() == unbroken
    assert (tmp_path / "ck" / "attempt-2" / "FINAL").exists()


def test_a_run_that_is_killed_without_notice_resumes_from_its_last_save(tmp_path: Path, unbroken: str) -> None:
    with run(tmp_path, 1, STEP_MS="10", SAVE_EVERY="7") as first:
        first.reaches(30)
        for process in first.processes:
            process.kill()
    with run(tmp_path, 2) as second:
        assert second.codes() == [0, 0]
        assert "resumed from step 27 of attempt 1" in second.log(0).read_text()
        assert second.loss() == unbroken


def test_interrupted_three_times_and_asked_to_save_in_between(tmp_path: Path, unbroken: str) -> None:
    for attempt, step in ((1, 10), (2, 20), (3, 40)):
        with run(tmp_path, attempt, STEP_MS="15", SAVE_EVERY="1000") as part:
            part.reaches(step)
            if attempt == 2:
                part.notice(0, "checkpoint", 1)
                eventually(lambda: list(tmp_path.glob("ck/attempt-2/step-*/manifest.json")), timeout_s=30)
            part.notice(1, "preempt", 2)
            assert part.codes() == [75, 75]
    with run(tmp_path, 4) as last:
        assert last.codes() == [0, 0]
        assert last.loss() == unbroken


def test_a_run_that_goes_on_with_fewer_ranks_and_then_with_more_ends_with_the_same_loss(
    tmp_path: Path, unbroken: str
) -> None:
    sizes: tuple[tuple[int, int, int, dict[str, str]], ...] = (
        (1, 4, 10, {}),
        (2, 2, 30, {"TIDEGATE_TARGET_REPLICAS": "2", "TIDEGATE_GRAD_ACCUM": "2"}),
    )
    for attempt, ranks, step, told in sizes:
        with run(tmp_path, attempt, ranks, STEP_MS="20", **told) as part:
            part.reaches(step)
            part.notice(ranks - 1, "resize")
            assert part.codes() == [75] * ranks
    with run(tmp_path, 3, 4, TIDEGATE_TARGET_REPLICAS="4", TIDEGATE_LR_SCALE="1") as last:
        assert last.codes() == [0, 0, 0, 0]
        assert "of attempt 2" in last.log(3).read_text()
        assert float(last.loss()) == pytest.approx(float(unbroken), rel=1e-9)
