"""How an array is cut into chunks and what its end is. Knows no task's state but the counts of those that ended."""

from typing import Final

from policies.vocabulary import JobState

MAX_CHUNK: Final = 1_000
"""One chunk is one lease, one attempt and one workflow (DESIGN §9)."""


def chunks(size: int, limit: int = MAX_CHUNK) -> tuple[tuple[int, int], ...]:
    """`[first, last]` index ranges that cover 0..size-1, each at most min(limit, 1,000) long and nearly equal.

    `limit` is the backend's own cap on an array. Raises ValueError for a size or a limit below 1.
    """
    if size < 1 or limit < 1:
        raise ValueError(f"an array has at least one index and a chunk too: size {size}, limit {limit}")
    most = min(limit, MAX_CHUNK)
    count = -(-size // most)
    bounds = [size * n // count for n in range(count + 1)]
    return tuple((bounds[n], bounds[n + 1] - 1) for n in range(count))


def array_end(*, size: int, ended: int, failed: int, max_failed: int, cancelled: bool = False) -> JobState | None:
    """The job's end once every task has ended, None before: SUCCEEDED if failed ≤ max_failed."""
    if ended < size:
        return None
    if cancelled:
        return JobState.CANCELLED
    return JobState.SUCCEEDED if failed <= max_failed else JobState.FAILED
