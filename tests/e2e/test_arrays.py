"""An array through the whole gate: every task knows its index, has its own log and end, and the job the sum of them."""

import pytest

from tests.e2e.conftest import Gate
from tidegate.wire.job import JobDetail
from tidegate.wire.spec import JobSpec

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
BAD = 4
SCRIPT = f'echo "I am ${{TIDEGATE_ARRAY_INDEX-nobody}}"; [ "$TIDEGATE_ARRAY_INDEX" != {BAD} ] || exit 9'


def run(gate: Gate, name: str, max_failed: int) -> JobDetail:
    """Six tasks, three at a time, of which one exits with 9."""
    spec = {
        "name": name,
        "tenant": "acme/research",
        "kind": "experiment",
        "run": SCRIPT,
        "array": {"indexes": 6, "parallelism": 3, "max_failed": max_failed},
        "resources": {"cpus": 1, "memory": "64Mi"},
        "max_duration": "2m",
    }
    return gate.operator.wait(gate.operator.submit(JobSpec.model_validate(spec)).id, timeout_s=120)


def logged(gate: Gate, job: str, index: int) -> str:
    return "".join(piece.text for piece in gate.operator.logs(job, index=index))


def test_each_task_sees_and_logs_its_own_index_and_one_failure_is_forgiven_where_the_spec_says_so(gate: Gate) -> None:
    job = run(gate, "array-forgiving", max_failed=1)
    assert [logged(gate, job.id, index) for index in range(6)] == [f"I am {index}\n" for index in range(6)]
    assert (job.state, job.array_size, job.array_ended, job.array_failed) == ("SUCCEEDED", 6, 6, 1)
    ends = {task.index: (task.state, task.exit_code) for task in gate.operator.tasks(job.id)}
    assert ends == {index: ("FAILED", 9) if index == BAD else ("SUCCEEDED", 0) for index in range(6)}


def test_one_failure_too_many_fails_the_job_after_every_task_has_had_its_turn(gate: Gate) -> None:
    job = run(gate, "array-strict", max_failed=0)
    assert (job.state, job.array_ended, job.array_failed) == ("FAILED", 6, 1)
    assert logged(gate, job.id, 5) == "I am 5\n", "the tasks behind the failed one ran all the same"
    ends = {task.index: task.state for task in gate.operator.tasks(job.id)}
    assert ends == {index: "FAILED" if index == BAD else "SUCCEEDED" for index in range(6)}


def test_a_job_that_is_no_array_sees_no_index(gate: Gate) -> None:
    spec = {"name": "single", "tenant": "acme/research", "run": SCRIPT, "resources": {"cpus": 1, "memory": "64Mi"}}
    job = gate.operator.wait(gate.operator.submit(JobSpec.model_validate(spec)).id, timeout_s=60)
    assert job.state == "SUCCEEDED"
    assert "".join(piece.text for piece in gate.operator.logs(job.id)) == "I am nobody\n"
