"""`placement.prefer` decides among what is allowed, before the price, and never costs a job its start."""

from typing import Any

import pytest

from policies.snapshot import Placed, PlacementWish
from tests.builders.policies import decide, flavor, job, nodes, pool, snapshot

TWO = (
    flavor("cheap", price=1, labels={"rack": "r1"}),
    flavor("dear", price=9, labels={"rack": "r2", "fabric": "nvlink"}),
)


def where(prefer: dict[str, str], *, dear: int = 1, **wish: Any) -> str:
    """The pool of a job of one GPU; `dear` GPUs are in the pool of the dear flavor."""
    pools = (pool(nodes(1, 1, "c"), "cheap", "cheap"), pool(nodes(1, dear, "d"), "dear", "dear"))
    queued = (job("j", placement=PlacementWish(prefer=prefer, **wish)),)
    placed: tuple[Placed, ...] = decide(snapshot(flavors=TWO, pools=pools, queued=queued)).admits["j"].placed
    return placed[0].pool


@pytest.mark.parametrize(
    ("prefer", "expected"),
    [
        ({}, "cheap"),
        ({"rack": "r1"}, "cheap"),
        ({"rack": "r2"}, "dear"),
        ({"fabric": "nvlink"}, "dear"),
        ({"rack": "r1", "fabric": "nvlink"}, "cheap"),  # one wish each: then the price
        ({"rack": "r9"}, "cheap"),  # nobody has it
    ],
)
def test_the_most_wishes_met_and_then_the_price(prefer: dict[str, str], expected: str) -> None:
    assert where(prefer) == expected


def test_a_preference_is_no_condition() -> None:
    assert where({"rack": "r2"}, dear=0) == "cheap"


def test_an_order_that_is_asked_for_stands_before_a_preference() -> None:
    assert where({"rack": "r2"}, ordered=True, pools=("cheap", "dear")) == "cheap"
