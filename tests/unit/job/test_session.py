"""What a job calls: its place, reports that never hold it up, and how it ends."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.builders.checkpoints import a_checkpoint, shard
from tests.harness.waiting import eventually
from tidegate import job
from tidegate.job.reports import Reporter

Report = tuple[str, str, dict[str, Any]]


@contextmanager
def gateway(status: int = 202, location: str = "") -> Iterator[tuple[str, list[Report]]]:
    """(URL, reports as (path, authorization, body))."""
    heard: list[Report] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            heard.append((self.path, self.headers["Authorization"], body))
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def session(tmp_path: Path, **env: str) -> Iterator[job.Session]:
    found = job.Session(job.context({"TIDEGATE_CHECKPOINT_URL": str(tmp_path / "attempt-1"), **env}))
    try:
        yield found
    finally:
        found.close()


def test_the_environment_of_a_member_is_its_context() -> None:
    found = job.context(
        {
            "TIDEGATE_JOB_ID": "j",
            "TIDEGATE_ATTEMPT": "3",
            "TIDEGATE_NODE_RANK": "1",
            "TIDEGATE_NUM_NODES": "2",
            "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": "29500",
            "TIDEGATE_TARGET_REPLICAS": "6",
            "TIDEGATE_GRAD_ACCUM": "4",
            "TIDEGATE_LR_SCALE": "3/4",
        }
    )
    assert (found.rank, found.world_size, found.attempt, found.coord_port) == (1, 2, 3, 29501)
    assert (found.target_replicas, found.grad_accum, found.lr_scale) == (6, 4, 0.75)


def test_under_torchrun_processes_are_the_ranks() -> None:
    found = job.context({"TIDEGATE_NODE_RANK": "1", "TIDEGATE_NUM_NODES": "2", "RANK": "13", "WORLD_SIZE": "16"})
    assert (found.rank, found.world_size, found.node_rank, found.num_nodes) == (13, 16, 1, 2)


def test_outside_tidegate_a_process_is_alone() -> None:
    found = job.context({})
    assert (found.rank, found.world_size, found.attempt, found.url) == (0, 1, 1, "")


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"MASTER_PORT": "http"}, "MASTER_PORT"),
        ({"TIDEGATE_NODE_RANK": "-1"}, "TIDEGATE_NODE_RANK"),
        ({"TIDEGATE_LR_SCALE": "1/0"}, "TIDEGATE_LR_SCALE"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "WORLD_SIZE"),
    ],
)
def test_a_variable_that_is_wrong_is_named(env: dict[str, str], named: str) -> None:
    with pytest.raises(job.ContextError, match=named):
        job.context(env)


def test_a_checkpoint_url_that_is_no_folder_says_what_to_do() -> None:
    with pytest.raises(job.ContextError, match="mount it"):
        job.Checkpoints("s3://bucket/run", ctx=job.context({}))
    with pytest.raises(job.ContextError, match=r"set checkpoint\.url"):
        job.Checkpoints(ctx=job.context({}))


def test_progress_and_checkpoints_are_reported_with_the_attempts_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0k\n")
    with (
        gateway() as (url, heard),
        session(tmp_path, TIDEGATE_URL=url, TIDEGATE_TOKEN_FILE=str(tmp_path / "token")) as member,
    ):
        saved = member.checkpoints().save(
            7, {"model": b"seven"}, parts=("model", "rng"), reshardable=True, parallelism={"tp": 2, "dp": 1}
        )
        member.report(7, 700)
        member.flush()
        assert heard[0] == (
            "/v1/attempt/checkpoints",
            "Bearer t0k",
            {
                "step": 7,
                "url": str(saved.path),
                "size": 5,
                "save_ms": saved.manifest.save_ms,
                "parts": ["model", "rng"],
                "reshardable": True,
                "world_size": 1,
                "parallelism": {"tp": 2, "dp": 1},
                "verified": 1,
            },
        )
        eventually(lambda: heard[-1] == ("/v1/attempt/progress", "Bearer t0k", {"step": 7, "samples": 700}))


def test_a_checkpoint_is_reported_in_the_words_of_its_url(tmp_path: Path) -> None:
    with gateway() as (url, heard):
        where = f"file://{tmp_path}/attempt-1"
        with session(tmp_path, TIDEGATE_URL=url, TIDEGATE_CHECKPOINT_URL=where) as member:
            member.checkpoints().save(7, {"model": b"seven"})
            member.flush()
        assert heard[0][2]["url"] == f"{where}/step-7"


def test_a_checkpoint_that_does_not_read_back_is_reported_as_broken(tmp_path: Path) -> None:
    a_checkpoint(tmp_path / "attempt-1", 5)
    shard(a_checkpoint(tmp_path / "attempt-1", 6), 0).write_bytes(b"STATE of rank 0 after step 6")
    a_checkpoint(tmp_path / "attempt-1", 7, name="step_7.tmp")  # nobody believes in this one
    with gateway() as (url, heard):
        where = f"file://{tmp_path}/attempt-2"
        env = {"TIDEGATE_URL": url, "TIDEGATE_ATTEMPT": "2", "TIDEGATE_CHECKPOINT_URL": where}
        with session(tmp_path, **env) as member:
            found = member.checkpoints().resume()
            assert found is not None
            assert found.step == 5
            member.flush()
        body = {"url": f"file://{tmp_path}/attempt-1/step_6"}
        assert [(path, report) for path, _, report in heard] == [("/v1/attempt/checkpoints:broken", body)]


def test_many_reports_are_few_requests_and_the_last_one_counts(tmp_path: Path) -> None:
    with gateway() as (url, heard), session(tmp_path, TIDEGATE_URL=url) as member:
        for step in range(1000):
            member.report(step, step)
        eventually(lambda: heard and heard[-1][2]["step"] == 999)
        assert len(heard) < 20


def test_ranks_other_than_0_do_not_report(tmp_path: Path) -> None:
    with gateway() as (url, heard):
        env = {"TIDEGATE_URL": url, "RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}
        with session(tmp_path, **env) as member:
            member.report(1, 1)
            member.flush()
        assert heard == []


@pytest.mark.parametrize("answer", ["refused", "silent"])
def test_a_gateway_that_is_away_holds_nobody_up(tmp_path: Path, answer: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        if answer == "refused":
            server.close()
        with session(tmp_path, TIDEGATE_URL=url) as member:
            began = time.monotonic()
            for step in range(200):
                member.report(step, step)
                member.checkpoints().save(step, {"model": b"x"}) if step % 100 == 0 else None
            assert time.monotonic() - began < 2
            member.finish()
            assert time.monotonic() - began < 6


def test_a_refused_report_is_dropped_and_the_next_one_is_sent() -> None:
    with gateway(status=422) as (url, heard):
        reporter = Reporter(url, lambda: "t", interval_s=0.01)
        reporter.checkpoint({"step": 1})
        reporter.checkpoint({"step": 2})
        assert reporter.flush(5)
        reporter.close()
        assert [report[2]["step"] for report in heard] == [1, 2]


def test_a_checkpoint_is_reported_again_once_the_gateway_is_back() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    reporter = Reporter(f"http://127.0.0.1:{port}", lambda: "t", interval_s=0.01)
    reporter.checkpoint({"step": 1})
    assert not reporter.flush(5)
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", port)) as back:
        back.settimeout(20)
        connection, _ = back.accept()
        heard.append(connection.recv(65536))
        connection.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        connection.close()
        eventually(lambda: reporter.flush(0.1))
    reporter.close()
    assert heard[0].startswith(b"POST /v1/attempt/checkpoints ")


def test_the_token_does_not_follow_a_redirect() -> None:
    with gateway() as (elsewhere, stolen), gateway(status=307, location=f"{elsewhere}/steal") as (url, heard):
        reporter = Reporter(url, lambda: "t", interval_s=0.01)
        reporter.progress(1, 1)
        eventually(lambda: heard)
        reporter.flush(5)
        reporter.close()
        assert stolen == []


def test_the_final_mark_lies_beside_the_newest_checkpoint(tmp_path: Path) -> None:
    with session(tmp_path) as member:
        member.checkpoints().save(9, {"model": b"nine"})
        member.should_stop(9)
        path = member.finish()
        assert path == tmp_path / "attempt-1" / "FINAL"
        assert json.loads((tmp_path / "attempt-1" / "FINAL").read_text())["step"] == 9


def test_saved_and_leaving_is_code_75(tmp_path: Path) -> None:
    with session(tmp_path) as member, pytest.raises(SystemExit) as ended:
        member.exit_saved()
    assert ended.value.code == 75


def test_a_gang_without_a_port_to_agree_on_says_which_variable_is_missing(tmp_path: Path) -> None:
    with session(tmp_path, RANK="1", WORLD_SIZE="2") as member, pytest.raises(job.ContextError, match="MASTER_PORT"):
        member.should_stop(0)


def test_a_lone_job_hears_a_notice_file_and_stops_or_saves(tmp_path: Path) -> None:
    path = tmp_path / "notice.json"
    with session(tmp_path, TIDEGATE_NOTICE_FILE=str(path)) as member:
        steps = iter(range(100_000))
        assert not member.should_stop(next(steps))
        path.write_text(json.dumps({"kind": "checkpoint", "deadline": None, "id": 1}))
        eventually(lambda: member.should_save(next(steps)))
        assert not member.should_stop(next(steps))
        assert not member.should_save(next(steps))
        path.write_text(json.dumps({"kind": "revoke", "deadline": time.time() + 30, "id": 2}))
        eventually(lambda: member.should_stop(next(steps)))
        notice = member.notice()
        assert notice is not None
        assert notice.kind == "revoke"
