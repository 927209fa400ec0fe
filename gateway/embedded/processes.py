"""Child processes of the embedded stack: started in sessions of their own, output to a file, ended with certainty."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class ProcessFailedError(RuntimeError):
    """A child of the stack ended by itself; the message holds the end of its log."""


@dataclass(slots=True)
class Child:
    """One running child and where its output goes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raise ProcessFailedError if it has ended."""
        code = self.process.poll()
        if code is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
            raise ProcessFailedError(f"{self.name} ended with code {code}; the end of {self.log}:\n{tail}")

    def stop(self, patience_s: float = 10) -> None:
        """SIGTERM, then SIGKILL to the whole session when patience is over."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(patience_s)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


def spawn(name: str, argv: Sequence[str], env: Mapping[str, str], log: Path) -> Child:
    """Start `argv` with `env` on top of ours; its session is its own, so that a Ctrl-C reaches only the parent."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(argv),
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Child(name, process, log)


def wait_until(ready: "Ready", children: Sequence[Child], timeout_s: float, what: str) -> None:
    """Poll `ready` until it is true; a child that ends meanwhile or the timeout raises ProcessFailedError."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        for child in children:
            child.check()
        if time.monotonic() > deadline:
            raise ProcessFailedError(f"{what} was not ready within {timeout_s:.0f} s")
        time.sleep(0.05)


class Ready:
    """A readiness probe over HTTP: true once the URL answers 200."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self) -> bool:
        import httpx  # noqa: PLC0415  (only the embedded stack needs a client here)

        try:
            return httpx.get(self.url, timeout=1).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False
