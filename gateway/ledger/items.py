"""What a placement takes, as a lease holds it, and what that costs by the hour. Reads flavors; takes nothing."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from policies.snapshot import Placed
from policies.vocabulary import Resource


def items_of(placed: Iterable[Placed]) -> list[dict[str, Any]]:
    """What a placement takes, as a lease's items, none of it held yet."""
    sums: dict[tuple[str, str, str], int] = {}
    flavors: set[str] = set()
    for part in placed:
        total = part.total
        amounts = {
            Resource.ACCELERATORS: total.accelerators,
            Resource.CPUS: total.cpus,
            Resource.MEMORY: total.memory,
            Resource.JOBS: 0 if part.flavor in flavors else 1,  # one job per flavor, however many groups and pools
        }
        flavors.add(part.flavor)
        for resource, amount in amounts.items():
            key = (part.pool, part.flavor, resource.value)
            sums[key] = sums.get(key, 0) + amount
    return [
        {"pool": pool, "flavor": flavor, "resource": resource, "amount": amount, "held": 0}
        for (pool, flavor, resource), amount in sorted(sums.items())
        if amount
    ]


def price_of(session: Session, placed: Sequence[Placed]) -> int:
    """Micro-dollars per hour. The FLAVOR says what is counted: its cards, or its CPUs where it has no accelerator.

    A job without cards on a flavor that is priced by the card takes no card from anybody, and costs nothing.
    """
    rows = session.execute(
        text("SELECT name, price, accelerator <> '' AS by_card FROM flavors WHERE name = ANY(:names)"),
        {"names": sorted({part.flavor for part in placed})},
    )
    prices = {row.name: row for row in rows}
    total = 0
    for part in placed:
        if (known := prices.get(part.flavor)) is not None:
            counted = part.total.accelerators if known.by_card else part.total.cpus
            total += known.price * counted // 1000
    return total
