"""The fingerprint of what a cycle reads: any write that matters changes it, and what is no news does not."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from backends.types import PoolCapacity
from gateway.ledger import wishes
from policies.snapshot import Node, Resources
from tests.builders.ledger import POOL
from tests.unit.store.world import Gate, write

NODE = Resources(8_000, 64_000, 512 << 30, 1 << 40)


def test_nothing_new_is_the_same_number(gate: Gate) -> None:
    gate.tenant("acme")
    gate.runs(gate.admit(gate.submit("acme"), 1))
    gate.submit("acme")
    before = gate.store.fingerprint()
    gate.store.capacity("b", [PoolCapacity(POOL, (Node("n1", NODE), Node("n2", NODE)), datetime.now(UTC))])
    gate.store.answered("b")
    gate.store.cycle()
    assert gate.store.fingerprint() == before


CHANGES: dict[str, Callable[[Gate, str, str], object]] = {
    "a job": lambda gate, _job, _attempt: gate.submit("acme"),
    "a hold": lambda gate, job, _attempt: gate.wish(wishes.hold, job),
    "a cancel": lambda gate, job, _attempt: gate.wish(wishes.cancel, job),
    "an end": lambda gate, _job, attempt: gate.ends(attempt),
    "a tenant": lambda gate, _job, _attempt: gate.tenant("acme/new"),
    "a quota": lambda gate, _job, _attempt: gate.tenant("limited", max_gpus=1),
    "a dark backend": lambda gate, _job, _attempt: gate.store.dark("b", "no answer"),
    "a pool that rests": lambda gate, _job, _attempt: gate.store.rest_pool(POOL, 60, "NoCapacity"),
    "a lost node": lambda gate, _job, _attempt: gate.store.capacity(
        "b", [PoolCapacity(POOL, (Node("n1", NODE),), datetime.now(UTC))]
    ),
    "a price": lambda gate, _job, _attempt: write(gate.engine, "UPDATE flavors SET price = price + 1"),
    "draining": lambda gate, _job, _attempt: write(gate.engine, "UPDATE backends SET draining = true"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_news_is_another_number(gate: Gate, change: str) -> None:
    gate.tenant("acme")
    attempt = gate.admit(gate.submit("acme"), 1)
    gate.runs(attempt)
    waiting = gate.submit("acme")
    before = gate.store.fingerprint()
    CHANGES[change](gate, waiting, attempt)
    assert gate.store.fingerprint() != before
