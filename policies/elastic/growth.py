"""Whether a growth is worth its restart, and whether it is kept. Integers only.

Rates are in any unit (samples per second in thousandths), the same for both sizes, measured after warm-up.
"""

from typing import Final

KEEP_PERMILLE: Final = 700
RESTARTS: Final = 3


def keeps(before: tuple[int, int], after: tuple[int, int], keep_permille: int = KEEP_PERMILLE) -> bool:
    """(size, rate) before and after: kept only if rate₂/rate₁ ≥ 0.7 · n₂/n₁ (1.4 where the size doubled)."""
    (n1, rate1), (n2, rate2) = before, after
    return 1000 * rate2 * n1 >= keep_permille * n2 * rate1


def gain_ms(size: int, larger: int, remaining_ms: int) -> int:
    """Time saved if what would take `remaining_ms` at `size` scales as well as it can."""
    return remaining_ms - remaining_ms * size // larger


def worthwhile(size: int, larger: int, remaining_ms: int | None, restart_ms: int) -> bool:
    """A growth by relaunch gains more over the remaining time than three restarts cost. Without an end: it does."""
    return remaining_ms is None or gain_ms(size, larger, remaining_ms) > RESTARTS * restart_ms
