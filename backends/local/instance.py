"""One instance: a detached process that serves the metadata endpoint and holds the agent, its only child.

It lives by itself: gateway and worker come and go. It ends when it is interrupted (notice, wait, kill), asked to, idle
for long, or when its agent dies; whatever is inside is killed with it. What it did stands in `state.json`. It decides
nothing about jobs. Standard library only, so that it is up in a blink.

    python -m backends.local.instance FOLDER        FOLDER/instance.json says who it is
"""

import contextlib
import ctypes
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, Final

from backends.local.files import Identity, LockTimeoutError, identity, locked, parents, read_json, write_json
from backends.local.metadata import Facts, serve

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
TICK_S: Final = 0.1
AGENT_READY_S: Final = 15.0
IDLE_CHECK_S: Final = 1.0
KILL_S: Final = 5.0


class Instance:
    """The supervisor's state and its loop. One thread; the metadata server has its own."""

    def __init__(self, folder: Path, spec: dict[str, Any]) -> None:
        self.folder = folder
        self.spec = spec
        self.facts = Facts(spec["id"], spec["zone"], spec["life_cycle"])
        self.server = serve(self.facts)
        self.agent = 0
        self.asked_to_end = False
        self.idle_since = time.monotonic()
        self.next_idle_check = 0.0
        me = identity(os.getpid())
        assert me is not None
        self.state: dict[str, Any] = {
            "state": "starting",
            "id": spec["id"],
            "supervisor": list(me),
            "agent": None,
            "metadata": f"http://127.0.0.1:{self.server.server_address[1]}",
            "interruption": None,
            "rebalance_at": None,
            "ended_at": None,
            "why": "",
            "sequence": 0,
        }

    def run(self) -> None:
        """From the first breath to the last record."""
        self._record()
        signal.signal(signal.SIGTERM, self._on_term)
        why = "agent_did_not_start"
        try:
            if self._start_agent():
                why = self._live()
        finally:
            ended_at = time.time()  # when it was lost, not when we had buried it
            kill_below(os.getpid())
            with contextlib.suppress(FileNotFoundError):
                self._record(state="ended", ended_at=ended_at, why=why)

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        self.asked_to_end = True

    def _start_agent(self) -> bool:
        """Start the agent from the main thread, which outlives it: its death signal hangs on the starting thread."""
        me = os.getpid()

        def die_with_me() -> None:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != me:
                os._exit(1)

        argv = [*self.spec["agent"], "--metadata", self.state["metadata"]]
        with (self.folder / "agent.log").open("ab") as log:
            agent = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                preexec_fn=die_with_me,  # noqa: PLW1509 - no other thread runs yet
            )
        assert agent.stdout is not None
        self.agent = agent.pid
        threading.Thread(target=self.server.serve_forever, name="metadata", daemon=True).start()
        readable, _, _ = select.select([agent.stdout], [], [], AGENT_READY_S)
        if not readable or not agent.stdout.readline().startswith(b"ready"):
            return False
        self._record(state="running", agent=list(identity(agent.pid) or Identity(agent.pid, 0)))
        return True

    def _live(self) -> str:
        """Until something ends it; returns what did."""
        while True:
            if self._reap():
                return "agent_died"
            if self.asked_to_end or (self.folder / "end.json").exists():
                return "asked"
            if not (self.folder / "instance.json").exists():
                return "forgotten"  # Nobody can find us again.
            self._take_orders()
            interruption = self.state["interruption"]
            if interruption is not None and time.time() >= interruption["deadline"]:
                return "interrupted"
            if interruption is None and self._idle():
                return "idle"
            time.sleep(TICK_S)

    def _reap(self) -> bool:
        """Collect dead children, orphans of members included; whether the agent is among them."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                if found == self.agent:
                    return True
        return False

    def _take_orders(self) -> None:
        """Orders are files, so that one given while we were still starting is not lost."""
        order = read_json(self.folder / "interrupt.json")
        if order is not None and self.state["interruption"] is None:
            deadline = time.time() + order["notice_s"]
            self._record(state="interrupted", interruption={"at": time.time(), "deadline": deadline})
            self.facts.action_at = deadline
        advice = read_json(self.folder / "rebalance.json")
        if advice is not None and self.facts.rebalance_at is None:
            self.facts.rebalance_at = advice["at"]
            self._record(rebalance_at=advice["at"])

    def _idle(self) -> bool:
        """Whether nothing has run for long. The slot's lock keeps a start from coming in between."""
        now = time.monotonic()
        if now < self.next_idle_check:
            return False
        self.next_idle_check = now + IDLE_CHECK_S
        if self._live_members() != 0:
            self.idle_since = now
        if now - self.idle_since < self.spec["idle_timeout_s"]:
            return False
        with contextlib.suppress(LockTimeoutError), locked(Path(self.spec["slot_lock"]), 0):
            if self._live_members() == 0:
                self._record(state="ended", ended_at=time.time(), why="idle")
                return True
        return False

    def _live_members(self) -> int:
        """As the agent counts them; one that does not answer is not called idle."""
        try:
            return int(ask(self.spec["socket"], "GET", "/health", None, 2.0)[1]["live"])
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return -1

    def _record(self, **changes: Any) -> None:
        self.state.update(changes)
        self.state["sequence"] += 1
        write_json(self.folder / "state.json", self.state)


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(path: str, method: str, url: str, body: Any, timeout_s: float) -> tuple[int, Any]:
    """(status, JSON body) of one call to an agent. Raises OSError or HTTPException when there is no answer."""
    connection = UnixConnection(path, timeout_s)
    try:
        data = None if body is None else json.dumps(body).encode("ascii")
        connection.request(method, url, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"null")
    finally:
        connection.close()


def below(root: int) -> set[int]:
    """Every descendant. As the subreaper `root` inherits those whose parents died, so none escapes."""
    table, found = parents(), {root}
    while grown := {pid for pid, parent in table.items() if parent in found} - found:
        found |= grown
    return found - {root}


def kill_below(root: int) -> None:
    """Kill every descendant until there is none.

    All are stopped before the first is killed: else a keeper would live to write down that its member was killed,
    which is not what happened to it. Its machine was lost.
    """
    deadline = time.monotonic() + KILL_S
    stopped: set[int] = set()
    while fresh := below(root) - stopped:
        _send(fresh, signal.SIGSTOP)
        stopped |= fresh
    while (left := below(root)) and time.monotonic() < deadline:
        _send(left, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        time.sleep(TICK_S / 10)


def _send(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def main(argv: list[str]) -> int:
    """Detach, then be the instance of the folder that the argument names."""
    folder = Path(argv[0])
    if os.fork() != 0:
        os._exit(0)  # Whoever started us need not collect us.
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    Instance(folder, read_json(folder / "instance.json")).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
