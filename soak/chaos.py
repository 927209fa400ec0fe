"""Kills, one after another, at moments that a seed chooses: which part, after how much of the jobs' work, how late.

A kill waits for conditions and not for a clock: that its victim is up, and that so many more lines stand in the jobs'
records since the last kill. One kill in four waits for its victim alone, so that parts die while others come up.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from soak.parts import LOOK_S, Gate, until
from soak.records import Records

PARTS = ("worker", "serve", "temporal", "postgres", "agent")
HASTY = 0.25  # of all kills: without waiting for work
LONGEST_LATE_S = 0.5
MOST_LINES = 4
UP_S = 60.0  # for the victim to be up; then another one's turn comes
WORK_S = 8.0  # for the lines; then the kill comes all the same


@dataclass
class Chaos:
    """Runs in a thread of its own until `kills` are done."""

    gate: Gate
    records: Records
    seed: int
    kills: int
    say: Callable[[str], None]
    done: Counter[str] = field(default_factory=Counter)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """All kills. The parts come in a shuffled round each, so that none is spared."""
        draw = random.Random(self.seed)
        order: list[str] = []
        while self.done.total() < self.kills and not self.stop.is_set():
            if not order:
                order = draw.sample(PARTS, len(PARTS))
            part, hasty = order.pop(), draw.random() < HASTY
            lines, late_s = draw.randint(1, MOST_LINES), draw.uniform(0, LONGEST_LATE_S)
            began = time.monotonic()
            if not hasty:
                self._wait_for_work(lines)
            if not self._is_up(part):
                continue
            waited_s = time.monotonic() - began
            self.stop.wait(late_s)
            if self._kill(part, draw):
                self.done[part] += 1
                self.say(f"kill {self.done.total()}: {part} after {waited_s:.1f} s{' (at once)' if hasty else ''}")

    def _wait_for_work(self, lines: int) -> None:
        """Until members have begun or ended `lines` times."""
        deadline = time.monotonic() + WORK_S
        size = self.records.size()
        while lines and time.monotonic() < deadline and not self.stop.is_set():
            grown = self.records.size()
            lines, size = lines - (grown > size), grown
            self.stop.wait(2 * LOOK_S)

    def _is_up(self, part: str) -> bool:
        """Once it is; False when that takes too long."""
        up = {"serve": self.gate.serves, "worker": self.gate.arbitrates, "agent": lambda: bool(self.gate.agents.busy())}
        return until(up.get(part) or self.gate.part(part).alive, UP_S, self.stop)

    def _kill(self, name: str, draw: random.Random) -> bool:
        """False when there was nothing of that name to kill."""
        if name != "agent":
            part = self.gate.part(name)
            if not part.alive():
                return False
            part.kill()
            return True
        busy = self.gate.agents.busy()
        if not busy:
            return False
        victim = draw.choice(busy)
        whom = draw.choice(("agent", "agent", "supervisor"))  # the agent's death, or that of the machine around it
        with suppress(ProcessLookupError):
            os.kill(int(victim[whom]), signal.SIGKILL)
        return True
