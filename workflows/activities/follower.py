"""The follower of one backend: its watch becomes observations in the ledger, its capacity too. Cost does not grow
with the number of jobs. Silence changes no state: a backend that does not answer is marked dark, and that is all.
"""

import logging
import queue
import threading
import time
from collections.abc import Mapping
from typing import Final

from temporalio import activity

from backends.errors import BackendError, Throttled
from backends.port import Backend
from backends.types import Handle, Observation
from workflows.activities.turns import Turn
from workflows.flows.duty import GONE
from workflows.messages import Duty
from workflows.store import Store

log = logging.getLogger(__name__)
RELIST_EVERY_S: Final = 30.0
BATCH: Final = 500
_PAUSE_S: Final = 1.0
_SLOWEST_S: Final = 30.0


class FollowerActivity:
    """One turn per backend at a time; `backends` is a live mapping."""

    def __init__(self, store: Store, backends: Mapping[str, Backend], *, capacity_every_s: float = 2.0) -> None:
        self._store = store
        self._backends = backends
        self._capacity_every_s = capacity_every_s

    @activity.defn(name="duty_follower")
    def run(self, duty: Duty) -> str:
        """Follow `duty.subject` for a turn; GONE when it is not configured any more."""
        turn = Turn()
        stop = threading.Event()
        follow = _Follow(self._store, duty.subject, self._backends, stop)
        threads = [
            threading.Thread(target=follow.watch, name=f"watch-{duty.subject}", daemon=True),
            threading.Thread(
                target=follow.measure, args=(self._capacity_every_s,), name=f"capacity-{duty.subject}", daemon=True
            ),
        ]
        for thread in threads:
            thread.start()
        try:
            while turn.goes_on():
                if duty.subject not in self._backends:
                    return GONE
                follow.store_some()
        finally:
            stop.set()
            for thread in threads:
                thread.join(timeout=5)
        return "turn"


class _Follow:
    """The three loops of one turn: watch fills a queue, store_some empties it, measure reads the capacity."""

    def __init__(self, store: Store, name: str, backends: Mapping[str, Backend], stop: threading.Event) -> None:
        self._store = store
        self._name = name
        self._backends = backends
        self._stop = stop
        self._seen: queue.Queue[Observation] = queue.Queue(maxsize=20_000)
        self._relisted_at = float("-inf")
        self._dark = False

    def watch(self) -> None:
        """Relist, then watch from now on; when the stream ends or breaks, the same again."""
        failures = 0
        while not self._stop.is_set():
            try:
                self._watch_once()
                failures = 0
            except BackendError as error:
                failures += 1
                self._is_dark(error)
                self._stop.wait(_delay_s(error, failures))
            except Exception:
                failures += 1
                log.exception("following %s failed; again", self._name)
                self._stop.wait(min(_SLOWEST_S, _PAUSE_S * failures))

    def _watch_once(self) -> None:
        backend = self._backends.get(self._name)
        if backend is None:
            self._stop.wait(_PAUSE_S)
            return
        self._relist(backend)
        self._relisted_at = float("-inf")  # again once the watch has told its cursor: nothing falls in between
        for _, observation in backend.watch(""):
            if self._stop.is_set() or self._backends.get(self._name) is not backend:
                return
            if observation is not None:
                self._seen.put(observation)
            if time.monotonic() - self._relisted_at > RELIST_EVERY_S:
                self._relist(backend)

    def _relist(self, backend: Backend) -> None:
        live = self._store.live_attempts(self._name)
        handles = [
            Handle(self._name, one.attempt_id, one.handles[self._name]) for one in live if self._name in one.handles
        ]
        for start in range(0, len(handles), BATCH):
            for observation in backend.observe(handles[start : start + BATCH]):
                self._seen.put(observation)
        self._relisted_at = time.monotonic()
        self._answers()

    def store_some(self) -> None:
        """What came in meanwhile, in one transaction; a batch that fails is split, so that one bad row is alone."""
        try:
            batch = [self._seen.get(timeout=0.5)]
        except queue.Empty:
            return
        while len(batch) < BATCH and not self._seen.empty():
            batch.append(self._seen.get_nowait())
        self._store_batch(batch)

    def _store_batch(self, batch: list[Observation]) -> None:
        try:
            self._store.observe(self._name, batch)
        except Exception:
            if len(batch) == 1:
                log.exception("an observation of %s could not be stored; the next relist brings it again", self._name)
                self._stop.wait(0.1)
                return
            middle = len(batch) // 2
            self._store_batch(batch[:middle])
            self._store_batch(batch[middle:])

    def measure(self, every_s: float) -> None:
        """Capacity, every so often; a failure is a dark backend and never an empty one."""
        failures = 0
        while not self._stop.is_set():
            pause_s = every_s
            try:
                backend = self._backends.get(self._name)
                if backend is not None:
                    self._store.capacity(self._name, backend.capacity(), backend.capabilities)
                    self._answers()
                failures = 0
            except BackendError as error:
                failures += 1
                self._is_dark(error)
                pause_s = max(every_s, _delay_s(error, failures))
            except Exception:
                log.exception("the capacity of %s could not be read", self._name)
            self._stop.wait(pause_s)

    def _answers(self) -> None:
        self._store.answered(self._name)
        self._dark = False

    def _is_dark(self, error: BackendError) -> None:
        if isinstance(error, Throttled):
            return  # it answers: "not now"
        if not self._dark:
            log.warning("%s does not answer: %s", self._name, error)
        self._store.dark(self._name, str(error))
        self._dark = True


def _delay_s(error: BackendError, failures: int) -> float:
    if isinstance(error, Throttled):
        return max(_PAUSE_S, error.retry_after_s)
    return min(_SLOWEST_S, _PAUSE_S * 2.0 ** min(failures - 1, 5))
