"""Who lends what an admission borrows: the nearest common ancestor first, then the largest idle guarantee.

What no tenant guarantees (unallocated capacity, or the part of an ancestor's min that it gave to no child) is used
before anybody's guarantee at that level and makes nobody a lender.
"""

from collections.abc import Iterable, Mapping

from policies.decisions import Loan
from policies.quota.tree import Level, Tree
from policies.snapshot import Borrowing


class Lent:
    """What every tenant has lent out, by (lender, flavor): the intervals that are open, and those of this cycle."""

    def __init__(self, borrowings: Iterable[Borrowing], now_ms: int) -> None:
        self.by_lender: dict[tuple[str, str], int] = {}
        for loan in borrowings:
            if loan.since_ms <= now_ms and (loan.until_ms is None or loan.until_ms > now_ms):
                self.add(Loan(loan.lender, loan.flavor, loan.amount))

    def add(self, loan: Loan) -> None:
        """Count one loan."""
        key = (loan.lender, loan.flavor)
        self.by_lender[key] = self.by_lender.get(key, 0) + loan.amount

    def split(self, tree: Tree, tenant: str, flavor: str, amount: int) -> tuple[Loan, ...]:
        """Lenders of `amount`, which `tenant` is about to take above its guarantee; asked before it is counted."""
        loans: list[Loan] = []
        child: Level | None = tree.level(tenant)
        left = amount
        while child is not None and left:
            parent = child.parent
            siblings = parent.children if parent else tree.roots
            left -= min(left, self._unallocated(tree, parent, siblings))
            lenders = sorted(
                ((self._idle(level, flavor), level.path) for level in siblings if level is not child),
                key=lambda pair: (-pair[0], pair[1]),
            )
            for idle, path in lenders:
                if left and idle:
                    loans.append(Loan(path, flavor, min(left, idle)))
                    left -= loans[-1].amount
            child = parent
        return tuple(loans)

    def _idle(self, level: Level, flavor: str) -> int:
        lent = self.by_lender.get((level.path, flavor), 0)
        # A lender that has since taken more of its own has less left than it lent: nothing more from it.
        return max(0, min(level.idle_lendable, level.lendable - lent, level.min - level.use - lent))

    @staticmethod
    def _unallocated(tree: Tree, parent: Level | None, siblings: Iterable[Level]) -> int:
        whole = parent.min if parent else (tree.capacity or 0)
        levels = list(siblings)
        excess = sum(level.excess for level in levels)
        return max(0, whole - sum(level.min for level in levels) - excess)


def debts(borrowings: Iterable[Borrowing], now_ms: int, half_life_ms: int) -> Mapping[tuple[str, str], int]:
    """Debt per (borrower, flavor) in milli-GPU × ms: amount × time, faded by its half-life.

    In integers, so that replays agree: the fading is exact at whole half-lives and straight between them.
    """
    found: dict[tuple[str, str], int] = {}
    for loan in borrowings:
        until = min(now_ms, loan.until_ms if loan.until_ms is not None else now_ms)
        if until > loan.since_ms:
            faded = _faded(now_ms - loan.since_ms, half_life_ms) - _faded(now_ms - until, half_life_ms)
            key = (loan.borrower, loan.flavor)
            found[key] = found.get(key, 0) + loan.amount * faded
    return found


def _faded(age_ms: int, half_life_ms: int) -> int:
    """The integral of the weight from now back to `age_ms` ago."""
    whole, rest = divmod(age_ms, half_life_ms)
    total = 0
    for n in range(min(whole, 62)):
        total += (half_life_ms * 3 // 4) >> n
    if whole < 62:  # noqa: PLR2004 - beyond it the weight is 0 in integers
        total += (rest * (4 * half_life_ms - rest) // (4 * half_life_ms)) >> whole
    return total
