"""GPU time and money of one lease, as functions of integer times: what is posted and what is held follow from
(used_ms, held_ms) alone, so that any number of partial postings adds up to exactly one final amount.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.ledger.accounts import Key, Line
from policies.vocabulary import Account, Payer

HOUR_MS: Final = 3_600_000
GPU_MS: Final = "gpu_ms"
MICRO_USD: Final = "micro_usd"


@dataclass(frozen=True, slots=True)
class Times:
    """How long a lease has been used and how much is still held ahead, in milliseconds."""

    used_ms: int = 0
    held_ms: int = 0


@dataclass(frozen=True, slots=True)
class Meter:
    """What a lease's time costs: milli-GPU per flavor and micro-dollars per hour, at each tenant level above it."""

    tenants: tuple[int, ...]
    gpu_milli: Mapping[str, int]
    price: int

    def gpu_ms(self, ms: int) -> int:
        """GPU-milliseconds of so much time, each flavor rounded down by itself."""
        return sum(milli * ms // 1000 for milli in self.gpu_milli.values())

    def money(self, ms: int) -> int:
        """Micro-dollars of so much time, rounded down."""
        return self.price * ms // HOUR_MS

    def keys(self) -> Iterator[Key]:
        """Every account that a posting may touch, for locking them at once."""
        for flavor in self.gpu_milli:
            for tenant in (*self.tenants, None):
                yield Key(Account.GPU_TIME, tenant, flavor, GPU_MS)
            yield Key(Account.CLEARING, None, flavor, GPU_MS)
        for tenant in (*self.tenants, None):
            yield Key(Account.MONEY, tenant, "", MICRO_USD)
        yield Key(Account.CLEARING, None, "", MICRO_USD)

    def lines(self, before: Times, after: Times, payer: Payer = Payer.TENANT) -> list[Line]:
        """From `before`, which tenants paid, to `after`, which `payer` pays."""
        found: list[Line] = []
        for flavor, milli in self.gpu_milli.items():
            found += self._unit(Account.GPU_TIME, flavor, GPU_MS, _amounts(milli, 1000, before, after), payer)
        found += self._unit(Account.MONEY, "", MICRO_USD, _amounts(self.price, HOUR_MS, before, after), payer)
        return found

    def _unit(
        self, kind: Account, flavor: str, unit: str, amounts: tuple[int, int, int, int], payer: Payer
    ) -> list[Line]:
        used_before, used_after, held_before, held_after = amounts
        tenant_after = used_after if payer is Payer.TENANT else 0
        platform = used_after if payer is Payer.PLATFORM else 0
        clearing = Key(Account.CLEARING, None, flavor, unit)
        levels = len(self.tenants)
        found = [Line(Key(kind, tenant, flavor, unit), tenant_after - used_before) for tenant in self.tenants]
        found += [Line(Key(kind, tenant, flavor, unit), held_after - held_before, True) for tenant in self.tenants]
        found.append(Line(Key(kind, None, flavor, unit), platform))
        found.append(Line(clearing, -levels * (tenant_after - used_before) - platform))
        found.append(Line(clearing, -levels * (held_after - held_before), True))
        return found


def _amounts(rate: int, per: int, before: Times, after: Times) -> tuple[int, int, int, int]:
    return (
        rate * before.used_ms // per,
        rate * after.used_ms // per,
        rate * before.held_ms // per,
        rate * after.held_ms // per,
    )


def gpu_milli_of(items: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """milli-GPU per flavor of a lease's items."""
    found: dict[str, int] = {}
    for item in items:
        if item["resource"] == "accelerators":
            found[item["flavor"]] = found.get(item["flavor"], 0) + item["amount"]
    return found
