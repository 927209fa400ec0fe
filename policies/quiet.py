"""How long a plan that decided nothing stays right while nothing changes. Pure.

Most of what moves a plan is a change of a row, which the ledger sees. What remains is time itself: instants that the
snapshot names, and slow quantities (age, debt), for which a look every few seconds is enough.
"""

from collections.abc import Iterator
from typing import Final

from policies.snapshot import Snapshot

MOST_MS: Final = 5_000


def quiet_ms(snapshot: Snapshot, now_ms: int) -> int:
    """Milliseconds until the next instant that the snapshot names, at most MOST_MS."""
    return min([MOST_MS, *(at - now_ms for at in _instants(snapshot) if at is not None and at > now_ms)])


def _instants(snapshot: Snapshot) -> Iterator[int | None]:
    for pool in snapshot.pools:
        yield pool.rested_until_ms
        yield pool.no_preemption_until_ms
    for job in snapshot.queued:
        yield job.not_before_ms
        yield job.deadline_ms
        if job.max_queue_ms is not None:
            yield job.submitted_ms + job.max_queue_ms
    for attempt in snapshot.live:
        yield attempt.leased_ms + attempt.min_runtime_ms
        yield attempt.ends_by_ms
        if attempt.started_ms is not None:
            yield attempt.started_ms + attempt.min_runtime_ms
    for override in snapshot.overrides:
        yield override.until_ms
