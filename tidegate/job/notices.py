"""Hearing of notices: the file that the agent writes, the signal that says it is there, and SIGTERM.

The signal is a hint to look; the file says what is wanted. A signal without a file (a scheduler of its own will) means
save and leave. SIGTERM means the same; a second SIGTERM ends the process as it would have without this module.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Callable, Optional

log = logging.getLogger("tidegate.job")

POLL_S = 0.25
#: A signal this long around a notice belongs to it; agents signal processes that begin to listen late again.
BELONGS_S = 15.0
#: How long a signal waits for its file.
FILE_S = 1.0
LEAVING = frozenset({"preempt", "revoke", "resize", "stop"})
SAVING = frozenset({"checkpoint", "rebalance"})


@dataclass(frozen=True)
class Notice:
    """What a member is told. `deadline` in epoch seconds, None for none; `key` tells two notices apart."""

    kind: str
    deadline: Optional[float]
    grace_s: Optional[float]
    key: str

    @property
    def leaving(self) -> bool:
        """Save and leave, as against save and go on. Unknown kinds mean leave: the safe reading."""
        return self.kind not in SAVING

    def left_s(self, now: Optional[float] = None) -> Optional[float]:
        """Seconds until the deadline, never below 0; None without one."""
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - (time.time() if now is None else now))


def read(path: Path) -> Optional[Notice]:
    """The notice in a file; None when there is none or it is not whole (the writer renames, so that is another's)."""
    try:
        text = path.read_text()
        raw = json.loads(text)
        deadline, grace_s = raw.get("deadline"), raw.get("grace_s")
        return Notice(
            kind=str(raw["kind"]),
            deadline=None if deadline is None else float(deadline),
            grace_s=None if grace_s is None else float(grace_s),
            key=f"{raw.get('id', '')}|{raw['kind']}|{deadline}",
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


class Watcher:
    """Calls `tell` from its own thread, once per notice."""

    def __init__(self, path: Optional[Path], signal_name: str, tell: Callable[[Notice], None]) -> None:
        self._path = path
        self._signal = getattr(signal, f"SIG{signal_name.upper().replace('SIG', '', 1)}", signal.SIGUSR1)
        self._tell = tell
        self._wake = threading.Event()
        self._signalled_at: Optional[float] = None
        self._terminated = False
        self._heard_at = float("-inf")
        self._heard = ""
        self._closed = False

    def start(self) -> None:
        """Install the handlers where that is possible (the main thread), and begin to look."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(self._signal, self._on_signal)
            signal.signal(signal.SIGTERM, self._on_term)
        else:
            log.warning("not in the main thread: signals are not heard, only the notice file")
        threading.Thread(target=self._run, name="tidegate-notice", daemon=True).start()

    def close(self) -> None:
        """End the thread; the handlers stay, for a default would kill the process."""
        self._closed = True
        self._wake.set()

    def _on_signal(self, _number: int, _frame: Optional[FrameType]) -> Any:
        self._signalled_at = time.monotonic()
        self._wake.set()

    def _on_term(self, number: int, _frame: Optional[FrameType]) -> Any:
        if self._terminated:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._terminated = True
        self._wake.set()

    def _run(self) -> None:
        told_of_term = False
        while not self._closed:
            self._look()
            if self._terminated and not told_of_term:
                told_of_term = True
                self._tell(Notice("stop", None, None, "SIGTERM"))
            self._wake.wait(POLL_S)
            self._wake.clear()

    def _look(self) -> None:
        found = read(self._path) if self._path is not None else None
        now = time.monotonic()
        if found is not None and found.key != self._heard:
            self._heard, self._heard_at = found.key, now
            self._tell(found)
        signalled = self._signalled_at
        if signalled is None:
            return
        if abs(signalled - self._heard_at) < BELONGS_S:
            self._signalled_at = None
        elif self._path is None or now - signalled >= FILE_S:
            self._signalled_at = None
            self._tell(Notice("preempt", None, None, f"signal|{signalled}"))
