"""When a standing loop leaves: its turn is over, it was cancelled, or its worker is going down."""

import time
from collections.abc import Callable
from typing import Final

from temporalio import activity

TURN_S: Final = 590.0  # shorter than the workflow's own limit, so that a turn ends by itself
BEAT_EVERY_S: Final = 2.0


class Turn:
    """Heartbeats and says whether to go on. Used from the loop's own thread; outside an activity it only counts."""

    def __init__(self, turn_s: float = TURN_S, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends = clock() + turn_s
        self._beat_at = clock()

    def goes_on(self) -> bool:
        """Call at least every few seconds: it is also the heartbeat."""
        if not activity.in_activity():
            return self._clock() < self._ends
        if self._clock() >= self._beat_at:
            activity.heartbeat()
            self._beat_at = self._clock() + BEAT_EVERY_S
        return self._clock() < self._ends and not activity.is_cancelled() and not activity.is_worker_shutdown()
