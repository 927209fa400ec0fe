"""One rank's side of an agreement: which steps it has passed, and where the gang stops or saves.

The rule: a freeze fixes `last`, the highest step for which a poll has returned, and makes later polls wait. The gang's
step S is one more than the highest `last` of all ranks. The rank with that `last` is already inside step S and needs
all others for its collectives; every other rank goes on to S once S is known. So all end step S, and none hangs.
"""

from __future__ import annotations

import threading
import time
from typing import Optional

STOP = "stop"
SAVE = "save"


class Gate:
    """Thread-safe. Polled by the training thread, moved by the agreement's thread."""

    def __init__(self, patience_s: float = 60.0) -> None:
        self._changed = threading.Condition()
        self._patience_s = patience_s
        self._last = -1
        self._frozen: Optional[int] = None
        self._settled = 0  # rounds up to this one are decided
        self._stop_at: Optional[int] = None
        self._save_at: Optional[int] = None

    def freeze(self, round_id: int) -> int:
        """Hold every poll of a later step until the round is decided; the last step that a poll has returned for."""
        with self._changed:
            if round_id > self._settled:
                self._frozen = round_id
            return self._last

    def decide(self, round_id: int, kind: str, step: int) -> None:
        """The gang's answer. Repeated and older answers change nothing."""
        with self._changed:
            if round_id <= self._settled:
                return
            self._settled = round_id
            if self._frozen is not None and self._frozen <= round_id:
                self._frozen = None
            if kind == STOP:
                self._stop_at = step if self._stop_at is None else min(self._stop_at, step)
            else:
                self._save_at = step
            self._changed.notify_all()

    def stop(self, step: int) -> bool:
        """True for the agreed step and every later one."""
        with self._changed:
            if not self._pass(step):
                return True
            return self._stop_at is not None and step >= self._stop_at

    def save(self, step: int) -> bool:
        """True once, at the agreed step."""
        with self._changed:
            if not self._pass(step) or self._save_at is None or step < self._save_at:
                return False
            self._save_at = None
            return True

    def _pass(self, step: int) -> bool:
        """Wait out a freeze; False when its answer never came: the coordinator is gone and the gang with it."""
        deadline = time.monotonic() + self._patience_s
        while self._frozen is not None and step > self._last:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._changed.wait(left)
        self._last = max(self._last, step)
        return True
