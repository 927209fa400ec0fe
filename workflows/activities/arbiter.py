"""The arbiter's loop: wait for work, gather wake-ups, take a snapshot, plan, commit. One bad cycle never ends it.

Leaves when it is fenced: another arbiter has the epoch. Decides nothing itself: `plan` is pure and injected.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from temporalio import activity

from policies.decisions import Plan
from policies.snapshot import Snapshot
from workflows.activities.acting import heartbeats
from workflows.activities.turns import Turn
from workflows.messages import Duty
from workflows.store import FencedError, Store

log = logging.getLogger(__name__)
Planner = Callable[[Snapshot, int], Plan]
FENCED: Final = "fenced"
_AFTER_BAD_CYCLE_S: Final = 1.0
_AFTER_FENCE_S: Final = 1.0


@dataclass(slots=True)
class Cycles:
    """Counters of this process, for metrics."""

    done: int = 0
    failed: int = 0
    dropped: int = 0
    last_ms: int = 0


class ArbiterActivity:
    """`plan(snapshot, now_ms)` decides; the store commits or fences."""

    def __init__(
        self, store: Store, plan: Planner, *, holder: str, idle_s: float = 1.0, debounce_s: float = 0.05
    ) -> None:
        self._store = store
        self._plan = plan
        self._holder = holder
        self._idle_s = idle_s
        self._debounce_s = debounce_s
        self.cycles = Cycles()

    @activity.defn(name="duty_arbiter")
    def run(self, _duty: Duty) -> str:
        """One turn as the arbiter."""
        turn = Turn()
        try:
            with heartbeats():
                epoch = self._store.take_epoch(self._holder)
                self._cycle(epoch)
                while turn.goes_on():
                    if self._store.wait_for_work(self._idle_s):
                        time.sleep(self._debounce_s)
                    self._cycle(epoch)
        except FencedError:
            log.warning("arbiter %s is fenced; another one has taken over", self._holder)
            time.sleep(_AFTER_FENCE_S)  # two workers that disagree must not fence each other in a tight loop
            return FENCED
        return "turn"

    def _cycle(self, epoch: int) -> None:
        began = time.monotonic()
        try:
            cycle = self._store.cycle()
            plan = self._plan(cycle.snapshot, cycle.now_ms)
            if plan.acts or plan.rejects or plan.waits:
                report = self._store.commit(epoch, cycle, plan)
                self.cycles.dropped += len(report.dropped)
                for what, why in report.dropped.items():
                    log.info("dropped as stale: %s: %s", what, why)
            else:
                self._store.beat(epoch)
            self.cycles.done += 1
        except FencedError:
            raise
        except Exception:
            self.cycles.failed += 1
            log.exception("a cycle failed; the next one starts from a new snapshot")
            time.sleep(_AFTER_BAD_CYCLE_S)
        self.cycles.last_ms = int(1000 * (time.monotonic() - began))
