"""`run --wait`: the job's own exit code, its output, a bounded wait, a result that a program can read."""

import json
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gate import FakeGate, Lost, Refuse, attempt, problem
from tests.harness.waiting import eventually
from tests.unit.cli.conftest import Cli

Program = Callable[..., "subprocess.Popen[str]"]


def ends(gate: FakeGate, state: str, **more: Any) -> None:
    gate.script = deque([{"state": "QUEUED"}, {"state": "RUNNING"}, {"state": state, **more}])
    gate.script_attempts.append(attempt(1, "FAILED" if state == "FAILED" else "SUCCEEDED"))


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (("SUCCEEDED", 0), 0),
        (("FAILED", 1), 1),
        (("FAILED", 2), 2),
        (("FAILED", 42), 42),
        (("FAILED", 64), 64),
        (("FAILED", 128 + signal.SIGSEGV), 139),
        (("FAILED", 137), 137),
        (("FAILED", None), 1),
        (("FAILED", 0), 1),
        (("CANCELLED", None), 130),
        (("REJECTED", None), 65),
    ],
)
def test_the_program_exits_as_the_job_did(
    gate: FakeGate, cli: Cli, hello: str, end: tuple[str, int | None], code: int
) -> None:
    state, job_code = end
    ends(gate, state, exit_code=job_code)
    assert cli("run", hello, "--wait", "--no-logs").code == code


def test_the_output_is_streamed_to_standard_output_and_remarks_to_standard_error(
    gate: FakeGate, cli: Cli, hello: str
) -> None:
    ends(gate, "SUCCEEDED", exit_code=0)
    gate.script_logs[1, 0] = "epoch 1\nepoch 2\n"
    done = cli("run", hello, "--wait")
    assert done.out == "epoch 1\nepoch 2\n"
    assert "SUCCEEDED" in done.err


def test_the_output_of_every_attempt_is_shown_once(gate: FakeGate, cli: Cli, hello: str) -> None:
    gate.script = deque([{"state": "RUNNING"}, {"state": "SUCCEEDED"}])
    gate.script_attempts.extend([attempt(1, "REVOKED"), attempt(2)])
    gate.script_logs.update({(1, 0): "step 1\nstep 2\n", (2, 0): "step 2\nstep 3\n"})
    gate.cut_streams_after.extend([1])
    assert cli("run", hello, "--wait").out == "step 1\nstep 2\nstep 2\nstep 3\n"


def test_the_result_file_carries_state_reason_and_codes_per_rank(
    gate: FakeGate, cli: Cli, hello: str, tmp_path: Path
) -> None:
    gate.script = deque([{"state": "FAILED", "reason": "NonZeroExit", "message": "rank 3", "exit_code": 7}])
    gate.script_attempts.append(attempt(1, "FAILED", exit_code=7, failed_rank=3, codes={"0": 143, "3": 7}))
    done = cli("run", hello, "--wait", "--no-logs", "--result", "out.json")
    result = json.loads((tmp_path / "out.json").read_text())
    assert done.code == result["exit_code"] == result["job_exit_code"] == 7
    assert (result["state"], result["reason"], result["message"]) == ("FAILED", "NonZeroExit", "rank 3")
    assert result["attempts"][0]["codes"] == {"0": 143, "3": 7}
    assert "tidegate logs" in done.err
    assert "--rank 3" in done.err
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name] == []


def test_the_result_of_an_array_names_the_tasks_that_failed(
    gate: FakeGate, cli: Cli, hello: str, tmp_path: Path
) -> None:
    gate.script = deque([{"state": "FAILED", "array_size": 3, "array_ended": 3, "array_failed": 1, "exit_code": 9}])
    gate.script_tasks.extend(
        {"index": n, "state": "FAILED" if n == 1 else "SUCCEEDED", "reason": "", "exit_code": 9 * (n == 1)}
        for n in range(3)
    )
    assert cli("run", hello, "--wait", "--result", "out.json").code == 9
    array = json.loads((tmp_path / "out.json").read_text())["array"]
    assert (array["size"], array["ended"], array["failed"]) == (3, 3, 1)
    assert array["failed_tasks"] == [{"index": 1, "reason": "", "exit_code": 9}]


def test_with_json_standard_output_is_one_document(gate: FakeGate, cli: Cli, hello: str) -> None:
    ends(gate, "SUCCEEDED", exit_code=0)
    gate.script_logs[1, 0] = "not json\n"
    done = cli("run", hello, "--wait", "--json")
    assert (done.json["state"], done.json["exit_code"]) == ("SUCCEEDED", 0)
    assert "not json" in done.err


def test_a_wait_that_is_over_exits_124_and_leaves_the_job_alone(
    gate: FakeGate, cli: Cli, hello: str, tmp_path: Path
) -> None:
    gate.script = deque([{"state": "RUNNING"}])
    done = cli("run", hello, "--wait", "--timeout", "1s", "--result", "out.json")
    assert done.code == 124
    assert "goes on" in done.err
    assert not [seen for seen in gate.seen if "cancel" in seen.path]
    result = json.loads((tmp_path / "out.json").read_text())
    assert (result["exit_code"], result["state"]) == (124, "RUNNING")
    assert result["job"] in gate.jobs


def test_what_is_refused_at_submit_exits_65(gate: FakeGate, cli: Cli, hello: str, tmp_path: Path) -> None:
    gate.fail(Refuse(422, body=problem(422, "no-matching-flavor", "no pool", field="resources", remedy="take less")))
    done = cli("run", hello, "--wait", "--result", "out.json")
    assert done.code == 65
    assert "resources: no pool; take less" in done.err
    result = json.loads((tmp_path / "out.json").read_text())
    assert (result["exit_code"], result["job"], result["problem"]["field"]) == (65, None, "resources")


def test_a_gate_that_does_not_answer_exits_69(cli: Cli, hello: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    done = cli("--url", url, "run", hello, "--wait", "--result", "out.json")
    assert done.code == 69
    assert json.loads((tmp_path / "out.json").read_text())["exit_code"] == 69


def test_a_gate_that_is_away_for_a_while_is_waited_for(gate: FakeGate, cli: Cli, hello: str) -> None:
    ends(gate, "SUCCEEDED", exit_code=0)
    for _ in range(3):
        gate.fail(Refuse(503, path="/v1/jobs/"), Lost(path="/v1/jobs/"))
    assert cli("run", hello, "--wait", "--no-logs").code == 0


def test_output_that_cannot_be_followed_does_not_end_the_wait(gate: FakeGate, cli: Cli, hello: str) -> None:
    ends(gate, "SUCCEEDED", exit_code=0)
    gate.fail(Refuse(202, body=b'{"id": "gone", "state": "QUEUED"}'))
    assert cli("run", hello, "--wait").code == 65  # the job itself is unknown: 404
    gate.faults.clear()
    gate.fail(Refuse(403, path="/logs"))
    done = cli("run", hello, "--wait")
    assert done.code == 0


def test_without_wait_the_id_is_printed(gate: FakeGate, cli: Cli, hello: str) -> None:
    done = cli("run", hello)
    assert done.code == 0
    assert done.out.strip() in gate.jobs
    assert cli("run", hello, "--result", "x").code == 64


def test_ctrl_c_cancels_the_job_and_waits_for_its_end(gate: FakeGate, program: Program, hello: str) -> None:
    gate.script = deque([{"state": "RUNNING"}])
    process = program("run", hello, "--wait", "--result", "out.json")
    eventually(lambda: len([s for s in gate.seen if s.method == "GET"]) > 2, what="the program to watch")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert [seen for seen in gate.seen if seen.path.endswith(":cancel")]
    assert "CANCELLED" in err


def test_a_terminated_pipeline_cancels_too_and_a_second_signal_leaves_at_once(
    gate: FakeGate, program: Program, hello: str
) -> None:
    gate.script = deque([{"state": "RUNNING"}])
    process = program("run", hello, "--wait")
    eventually(lambda: len([s for s in gate.seen if s.method == "GET"]) > 2, what="the program to watch")
    (job,) = gate.jobs.values()
    process.send_signal(signal.SIGTERM)
    eventually(lambda: [s for s in gate.seen if s.path.endswith(":cancel")], what="the cancel")
    job.states = deque([{"state": "STOPPING"}])
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 130


def test_with_leave_ctrl_c_lets_the_job_go_on(gate: FakeGate, program: Program, hello: str, tmp_path: Path) -> None:
    gate.script = deque([{"state": "RUNNING"}])
    process = program("run", hello, "--wait", "--leave", "--result", "out.json")
    eventually(lambda: len([s for s in gate.seen if s.method == "GET"]) > 2, what="the program to watch")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "goes on. To end it: tidegate cancel" in err
    assert not [seen for seen in gate.seen if seen.path.endswith(":cancel")]
    assert json.loads((tmp_path / "out.json").read_text())["exit_code"] == 130
