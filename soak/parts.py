"""The gate as separate processes, each killed and started again on its own, as a supervisor in production would.

A part is `alive` as a process, `start`s with what it finds on disk, and is `kill`ed -9. Ports, folders and settings
stay the same over all its lives. Decides nothing about when.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psycopg

from gateway.embedded import postgres, temporal, whereabouts
from gateway.embedded.processes import Child, spawn
from gateway.ledger.migrate import migrate
from gateway.operators.first import first_operator

LOOK_S = 0.05
RESTART_S = 0.5  # a supervisor's pause before it starts again what would not come up


class Part(Protocol):
    """One process of the gate."""

    name: str

    def start(self) -> None:
        """Bring it up, or raise what kept it down."""
        ...

    def alive(self) -> bool:
        """Whether its process lives."""
        ...

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        ...

    def stop(self) -> None:
        """In an orderly way, at the end."""
        ...


class Postgres:
    """The ledger's server. Its postmaster is killed; what it leaves behind ends by itself."""

    name = "postgres"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: postgres.EmbeddedPostgres | None = None

    @property
    def server(self) -> postgres.EmbeddedPostgres:
        """The server of this life."""
        assert self._server is not None
        return self._server

    def start(self) -> None:
        self._server = postgres.start(self._folder)

    def alive(self) -> bool:
        return self._server is not None and _lives(self._server.pid)

    def kill(self) -> None:
        _kill(self.server.pid)

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()


class Temporal:
    """The workflows' server on its SQLite file, always on the same port."""

    name = "temporal"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: temporal.EmbeddedTemporal | None = None

    @property
    def address(self) -> str:
        """host:port of its frontend."""
        assert self._server is not None
        return self._server.address

    def start(self) -> None:
        self._server = temporal.start(self._folder)

    def alive(self) -> bool:
        return self._server is not None and self._server.alive()

    def kill(self) -> None:
        assert self._server is not None
        _kill(self._server.pid)
        until(lambda: not self.alive(), 10)

    def forget(self) -> None:
        """Take its file away: all workflows are gone. Only while it is down."""
        for path in self._folder.glob("temporal.sqlite*"):
            path.unlink()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()


class Process:
    """`tidegate serve` or `tidegate worker`."""

    def __init__(self, verb: str, environment: Mapping[str, str], log: Path) -> None:
        self.name = verb
        self._environment = environment
        self._log = log
        self._child: Child | None = None

    def start(self) -> None:
        self._child = spawn(self.name, [sys.executable, "-m", "tidegate", self.name], self._environment, self._log)

    @property
    def pid(self) -> int:
        """Of this life."""
        assert self._child is not None
        return self._child.process.pid

    def alive(self) -> bool:
        return self._child is not None and self._child.process.poll() is None

    def kill(self) -> None:
        assert self._child is not None
        self._child.process.kill()
        self._child.process.wait()

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop(15)


class Agents:
    """The local backend's instances. Killing one takes its members with it; the backend makes another by itself."""

    name = "agent"

    def __init__(self, instances: Path) -> None:
        self._instances = instances

    def busy(self) -> list[dict[str, int | str]]:
        """Instances that live and have a member that has not ended: {id, agent, supervisor} with process ids."""
        found: list[dict[str, int | str]] = []
        for path in sorted(self._instances.glob("i-*/state.json")):
            with suppress(OSError, ValueError):
                state = json.loads(path.read_text())
                if state["state"] == "running" and _lives(state["agent"][0]) and self._works(path.parent):
                    found.append({"id": state["id"], "agent": state["agent"][0], "supervisor": state["supervisor"][0]})
        return found

    @staticmethod
    def _works(folder: Path) -> bool:
        for status in folder.glob("agent/members/*/*/status.json"):
            with suppress(OSError, ValueError):
                if json.loads(status.read_text())["state"] != "ended":
                    return True
        return False


@dataclass
class Gate:
    """All parts over one folder, and the supervisor that starts again whatever is down, until it is told to leave."""

    folder: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.postgres = Postgres(self.folder / "postgres")
        self.temporal = Temporal(self.folder / "temporal")
        self.agents = Agents(self.folder / "backends" / "here" / "instances")
        self._leave = threading.Event()
        self._watchers: list[threading.Thread] = []
        self.problems: list[str] = []

    def up(self) -> None:
        """Start everything, then supervise."""
        self.postgres.start()
        self.temporal.start()
        migrate(self.database_url)
        self.token = "tg_soak_operator"
        first_operator(self.database_url, self.token)
        self.environment = {
            "TIDEGATE_DATABASE_URL": self.database_url,
            "TIDEGATE_TEMPORAL_ADDRESS": self.temporal.address,
            "TIDEGATE_DATA_DIR": str(self.folder),
            "TIDEGATE_LISTEN_PORT": str(self.port),
            "TIDEGATE_PUBLIC_URL": self.url,
            **self.settings,
        }
        whereabouts.write(self.folder, self.environment)
        logs = self.folder / "logs"
        self.serve = Process("serve", self.environment, logs / "serve.log")
        self.worker = Process("worker", self.environment, logs / "worker.log")
        for part in (self.serve, self.worker):
            part.start()
        self.supervise()

    @property
    def database_url(self) -> str:
        """Where the ledger is; it carries the password."""
        return self.postgres.server.url()

    @property
    def parts(self) -> list[Part]:
        """Those that the supervisor starts again, in the order in which they depend on each other."""
        return [self.postgres, self.temporal, self.serve, self.worker]

    def part(self, name: str) -> Part:
        """The part of this name."""
        return next(part for part in self.parts if part.name == name)

    def supervise(self, *names: str) -> None:
        """Watch these parts (all by default), each from a thread of its own."""
        self._leave.clear()
        for part in self.parts:
            if not names or part.name in names:
                thread = threading.Thread(target=self._watch, args=(part,), name=f"watch-{part.name}", daemon=True)
                thread.start()
                self._watchers.append(thread)

    def unsupervised(self) -> None:
        """Leave dead what dies from now on."""
        self._leave.set()
        for thread in self._watchers:
            thread.join()
        self._watchers.clear()

    def _watch(self, part: Part) -> None:
        while not self._leave.wait(LOOK_S):
            if part.alive():
                continue
            try:
                part.start()
                self.restarts[part.name] = self.restarts.get(part.name, 0) + 1
            except Exception as error:  # noqa: BLE001  (a supervisor tries again whatever it was)
                self.problems.append(f"{part.name} did not start: {error}")
            self._leave.wait(RESTART_S)

    def down(self) -> None:
        """Stop everything in reverse order; instances are their backend's."""
        self.unsupervised()
        for part in reversed(self.parts):
            part.stop()

    def serves(self) -> bool:
        """Whether the API answers that it is ready."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/v1/readyz")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def arbitrates(self) -> bool:
        """Whether the worker of this life is the arbiter and beats."""
        if not (self.worker.alive() and self.postgres.alive()):
            return False
        try:
            with self.postgres.server.connect() as connection:
                row = connection.execute("SELECT holder FROM arbiter WHERE beat > now() - interval '3 s'").fetchone()
        except psycopg.Error:
            return False
        return row is not None and str(row[0]).endswith(f":{self.worker.pid}")

    def check(self) -> str:
        """What `tidegate check` says; empty when the books balance."""
        argv = [sys.executable, "-m", "tidegate", "check", "--data-dir", str(self.folder)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
        return "" if done.returncode == 0 else (done.stdout + done.stderr).strip()


def until(true: Callable[[], bool], timeout_s: float, stop: threading.Event | None = None) -> bool:
    """Poll until it holds; False after the timeout, or once `stop` is set."""
    leave = stop or threading.Event()
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline or leave.wait(2 * LOOK_S):
            return False
    return True


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    while _lives(pid):
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    """Not gone, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
