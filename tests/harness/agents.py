"""Real agent processes with a short socket path, asked over it, and killed at the end."""

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness.waiting import eventually

ROOT = Path(__file__).parents[2]
Answer = dict[str, Any]


class Agent:
    """One agent; `folder` outlives it until the context ends, so that another can take it over."""

    def __init__(self, folder: Path, options: Sequence[str] = (), command: Sequence[str] = ()) -> None:
        self.folder = folder
        run = list(command) or [sys.executable, "-m", "tidegate.agent"]
        with (folder / "agent.err").open("ab") as errors:
            self.process = subprocess.Popen(
                [*run, "--dir", str(folder), "--instance", folder.name, *options],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline()

    def call(self, method: str, path: str, body: Answer | None = None) -> tuple[int, Answer]:
        connection = http.client.HTTPConnection("agent")
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.settimeout(30)
            connection.sock.connect(str(self.folder / "agent.sock"))
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def start(self, launch: str, rank: int = 0, **fields: Any) -> Answer:
        status, member = self.call("POST", "/members", {"launch": launch, "rank": rank, **fields})
        assert status in {200, 201}, member
        return member

    def member(self, launch: str, rank: int = 0) -> Answer:
        _, answer = self.call("GET", f"/members?launch={launch}")
        return next(member for member in answer["members"] if member["rank"] == rank)

    def reaches(self, state: str, launch: str, rank: int = 0, timeout_s: float = 15) -> Answer:
        def there() -> Answer | None:
            member = self.member(launch, rank)
            return member if member["state"] == state else None

        return eventually(there, timeout_s=timeout_s, what=f"{launch}/{rank} being {state}") or {}

    def stop(self, launch: str, grace_s: float, **fields: Any) -> Answer:
        status, answer = self.call("POST", "/stop", {"launch": launch, "grace_s": grace_s, "kind": "preempt", **fields})
        assert status == 200, answer
        return answer

    def log(self, launch: str, rank: int = 0) -> str:
        return (self.folder / "members" / launch / str(rank) / "log").read_text()

    def says(self, text: str, launch: str, rank: int = 0) -> None:
        path = self.folder / "members" / launch / str(rank) / "log"
        eventually(lambda: path.exists() and text in path.read_text(), what=f"{text!r} in the log")

    def end(self, *, kill: bool = False) -> None:
        if self.process.poll() is None:
            (self.process.kill if kill else self.process.terminate)()
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def agents(count: int, options: Sequence[str] = (), command: Sequence[str] = ()) -> Iterator[list[Agent]]:
    """So many agents with folders of their own, in a place that every user may pass through."""
    base = Path(tempfile.mkdtemp(prefix="tg-"))
    base.chmod(0o711)
    found: list[Agent] = []
    try:
        for number in range(count):
            (base / f"i{number}").mkdir()
            found.append(Agent(base / f"i{number}", options, command))
        yield found
    finally:
        for agent in found:
            agent.end()
        shutil.rmtree(base, ignore_errors=True)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def gone(*pids: int) -> bool:
    """Whether all of them have ended."""
    return not any(alive(pid) for pid in pids)


IS_ROOT = os.geteuid() == 0
