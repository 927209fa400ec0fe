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
from policies.quiet import quiet_ms
from policies.snapshot import Snapshot
from workflows.activities.acting import heartbeats
from workflows.activities.turns import Turn
from workflows.messages import Duty
from workflows.store import CommitReport, FencedError, Store

log = logging.getLogger(__name__)
Planner = Callable[[Snapshot, int], Plan]
FENCED: Final = "fenced"
_AFTER_BAD_CYCLE_S: Final = 1.0
_AFTER_FENCE_S: Final = 1.0


@dataclass(slots=True)
class Cycles:
    """Counters of this process, for metrics."""

    done: int = 0
    quiet: int = 0
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
        self._quiet = ("", 0.0)  # the fingerprint under which nothing was decided, and until when that holds

    @activity.defn(name="duty_arbiter")
    def run(self, _duty: Duty) -> str:
        """One turn as the arbiter."""
        turn = Turn()
        try:
            with heartbeats():
                epoch = self._store.take_epoch(self._holder)
                self._cycle(epoch)
                while turn.goes_on():
                    woken = self._store.wait_for_work(self._idle_s)
                    if woken:
                        # Under load as long as a cycle lasts: half of the time is left to those who act on it.
                        time.sleep(min(self._idle_s, max(self._debounce_s, self.cycles.last_ms / 1000)))
                    self._cycle(epoch, woken=woken)
        except FencedError:
            log.warning("arbiter %s is fenced; another one has taken over", self._holder)
            time.sleep(_AFTER_FENCE_S)  # two workers that disagree must not fence each other in a tight loop
            return FENCED
        return "turn"

    def _cycle(self, epoch: int, *, woken: bool = False) -> None:
        """woken: there is news, so that nothing is spent on asking whether there is."""
        began = time.monotonic()
        try:
            # Taken first: what is written while the snapshot is read counts as news in the next cycle.
            mark = "" if woken else self._store.fingerprint()
            if mark and mark == self._quiet[0] and began < self._quiet[1]:
                self._store.beat(epoch)
                self.cycles.quiet += 1
            else:
                self._decide(epoch, mark, began)
            self.cycles.done += 1
        except FencedError:
            raise
        except Exception:
            self.cycles.failed += 1
            log.exception("a cycle failed; the next one starts from a new snapshot")
            time.sleep(_AFTER_BAD_CYCLE_S)
        self.cycles.last_ms = int(1000 * (time.monotonic() - began))

    def _decide(self, epoch: int, mark: str, began: float) -> None:
        cycle = self._store.cycle()
        plan = self._plan(cycle.snapshot, cycle.now_ms)
        report = CommitReport()
        if plan.acts or plan.rejects or plan.waits:
            report = self._store.commit(epoch, cycle, plan)
            self.cycles.dropped += len(report.dropped)
            for what, why in report.dropped.items():
                log.info("dropped as stale: %s: %s", what, why)
        else:
            self._store.beat(epoch)
        if mark and report == CommitReport():
            self._quiet = (mark, began + quiet_ms(cycle.snapshot, cycle.now_ms) / 1000)
