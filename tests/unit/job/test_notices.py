"""Hearing of notices by file, by signal and by SIGTERM, in real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.waiting import eventually
from tidegate.job.notices import Notice, read

ROOT = Path(__file__).parents[3]
LISTENER = """
import sys, time
from pathlib import Path
from tidegate.job.notices import Watcher
path = Path(sys.argv[1]) if sys.argv[1] else None
Watcher(path, sys.argv[2], lambda notice: print(notice.kind, notice.deadline, flush=True)).start()
print("listening", flush=True)
time.sleep(600)
"""


class Process:
    def __init__(self, path: Path, output: Path, signal_name: str, *, told_of_file: bool) -> None:
        self.path, self.output = path, output
        arguments = [sys.executable, "-c", LISTENER, str(path) if told_of_file else "", signal_name]
        with output.open("w") as out:
            self.process = subprocess.Popen(
                arguments, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": str(ROOT)}
            )
        self.says("listening")

    def says(self, line: str, times: int = 1) -> None:
        eventually(lambda: self.lines().count(line) >= times, what=f"{line!r} in {self.lines()}")

    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    def notice(self, kind: str, deadline: float | None, number: int) -> None:
        temporary = self.path.with_suffix(".new")
        temporary.write_text(json.dumps({"kind": kind, "deadline": deadline, "grace_s": 5, "id": number}))
        temporary.replace(self.path)


@contextmanager
def listening(folder: Path, signal_name: str = "USR1", *, told_of_file: bool = True) -> Iterator[Process]:
    found = Process(folder / "notice.json", folder / "output", signal_name, told_of_file=told_of_file)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait(10)


def test_a_notice_is_heard_once_with_and_without_its_signal(tmp_path: Path) -> None:
    with listening(tmp_path) as member:
        member.notice("checkpoint", None, 1)
        member.says("checkpoint None")
        member.process.send_signal(signal.SIGUSR1)  # comes after the file was seen: the same notice
        member.notice("preempt", 12.5, 2)
        member.process.send_signal(signal.SIGUSR1)
        member.says("preempt 12.5")
        member.notice("preempt", 12.5, 3)
        member.says("preempt 12.5", times=2)
        assert member.lines() == ["listening", "checkpoint None", "preempt 12.5", "preempt 12.5"]


def test_a_signal_without_a_file_means_save_and_leave(tmp_path: Path) -> None:
    with listening(tmp_path, "USR2", told_of_file=False) as member:
        member.process.send_signal(signal.SIGUSR2)
        member.says("preempt None")


def test_a_signal_whose_file_never_comes_means_save_and_leave(tmp_path: Path) -> None:
    with listening(tmp_path) as member:
        member.process.send_signal(signal.SIGUSR1)
        member.says("preempt None")


def test_sigterm_means_save_and_leave_and_a_second_one_ends_the_process(tmp_path: Path) -> None:
    with listening(tmp_path) as member:
        member.process.send_signal(signal.SIGTERM)
        member.says("stop None")
        member.process.send_signal(signal.SIGTERM)
        assert member.process.wait(10) == -signal.SIGTERM


@pytest.mark.parametrize("text", ["", "{", "[]", '{"deadline": 3}', '{"kind": "stop", "deadline": "soon"}'])
def test_a_file_that_is_no_notice_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notice.json"
    assert read(path) is None
    path.write_text(text)
    assert read(path) is None


@pytest.mark.parametrize(
    ("kind", "leaving"),
    [("checkpoint", False), ("rebalance", False), ("preempt", True), ("revoke", True), ("stop", True), ("new", True)],
)
def test_which_notices_mean_leave(kind: str, *, leaving: bool) -> None:
    notice = Notice(kind, time.time() + 30, 30, "1")
    assert notice.leaving is leaving
    left = notice.left_s()
    assert left is not None
    assert 29 < left <= 30
    assert notice.left_s(time.time() + 90) == 0
