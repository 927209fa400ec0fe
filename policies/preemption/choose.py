"""The cheapest set of victims that frees the shape: exact for few candidates, else greedy without redundant members.

What "frees the shape" means is a predicate of the caller; it must be monotone (more victims never fit worse).
"""

from collections.abc import Callable, Sequence
from itertools import combinations

from policies.preemption.cost import Cost

Suffices = Callable[[Sequence[Cost]], bool]


def cheapest_set(costs: Sequence[Cost], need_milli_gpu: int, suffices: Suffices, exact: int) -> tuple[Cost, ...] | None:
    """The victims, cheapest first, or None if even all of them do not suffice. The empty set is never an answer."""
    ordered = sorted(costs, key=lambda cost: (cost.gpu_ms, cost.attempt))
    if not ordered or not suffices(ordered):
        return None
    if len(ordered) <= exact:
        return _exact(ordered, suffices)
    return _greedy(ordered, need_milli_gpu, suffices)


def _exact(costs: Sequence[Cost], suffices: Suffices) -> tuple[Cost, ...]:
    sets = [
        (sum(cost.gpu_ms for cost in chosen), size, tuple(cost.attempt for cost in chosen), chosen)
        for size in range(1, len(costs) + 1)
        for chosen in combinations(costs, size)
    ]
    # Cheapest first, then fewest: a proper subset costs no more and is smaller, so it comes before its superset.
    sets.sort(key=lambda found: found[:3])
    return next(chosen for *_, chosen in sets if suffices(chosen))


def _greedy(costs: Sequence[Cost], need_milli_gpu: int, suffices: Suffices) -> tuple[Cost, ...]:
    # min(GPUs, need)/cost, descending, compared crosswise in integers; a free victim comes first.
    scale = 1 << 40
    ranked = sorted(
        costs,
        key=lambda cost: (-(min(cost.milli_gpu, max(1, need_milli_gpu)) * scale // max(1, cost.gpu_ms)), cost.attempt),
    )
    low, high = 1, len(ranked)
    while low < high:  # the shortest prefix that suffices
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(ranked[:middle]) else (middle + 1, high)
    chosen = list(ranked[:low])
    for cost in sorted(chosen, key=lambda found: (-found.gpu_ms, found.attempt)):
        rest = [other for other in chosen if other is not cost]
        if rest and suffices(rest):
            chosen = rest
    return tuple(sorted(chosen, key=lambda found: (found.gpu_ms, found.attempt)))
