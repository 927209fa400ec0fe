"""Seats on virtual machines: whole gangs, whole GPUs, shares, foreign load."""

from dataclasses import replace

import pytest

from backends.environment import members
from backends.local.placing import Slot, choose_port, place, slot
from policies.snapshot import Resources
from tests.builders.launch import GIB, GPU, a_group, a_launch

NODE = Resources(2 * GPU, 8000, 16 * GIB)


def slots(count: int = 2, foreign: Resources | None = None) -> list[Slot]:
    return [slot(f"p-{index}", "p", NODE, foreign or Resources(), is_open=True) for index in range(count)]


def test_members_fill_one_node_before_the_next_and_share_no_gpu() -> None:
    seats = place(members(a_launch(a_group("p", ("x",), replicas=4))), slots())
    assert not isinstance(seats, str)
    assert [(seat.node, seat.gpus) for seat in seats] == [
        ("p-0", (0,)),
        ("p-0", (1,)),
        ("p-1", (0,)),
        ("p-1", (1,)),
    ]


def test_a_gang_that_does_not_fit_gets_no_seat_at_all() -> None:
    answer = place(members(a_launch(a_group("p", ("x",), replicas=5))), slots())
    assert answer == "no room for rank 4 on pool p"


def test_the_arbiters_nodes_are_binding() -> None:
    request = a_launch(a_group("p", ("x",), replicas=2, nodes=("p-1", "p-0")))
    seats = place(members(request), slots())
    assert not isinstance(seats, str)
    assert [seat.node for seat in seats] == ["p-1", "p-0"]
    crowded = a_launch(a_group("p", ("x",), replicas=3, nodes=("p-1",) * 3))
    assert place(members(crowded), slots()) == "no room for rank 2 on node p-1"


def test_shares_meet_on_one_gpu_so_that_whole_ones_stay_whole() -> None:
    half = Resources(500, 1000, GIB)
    launch = a_launch(
        a_group("p", ("x",), replicas=2, per_member=half, name="half"),
        a_group("p", ("x",), first_rank=2, name="whole"),
    )
    seats = place(members(launch), slots(1))
    assert not isinstance(seats, str)
    assert [(seat.gpus, seat.share) for seat in seats] == [((0,), 500), ((0,), 500), ((1,), 0)]


def test_foreign_load_takes_gpus_from_the_top_and_is_left_alone() -> None:
    seats = place(members(a_launch(a_group("p", ("x",)))), slots(1, Resources(1500)))
    assert seats == "no room for rank 0 on pool p", "half a GPU is free, a whole one was wanted"
    seats = place(members(a_launch(a_group("p", ("x",)))), slots(1, Resources(1000)))
    assert not isinstance(seats, str)
    assert seats[0].gpus == (0,)


def test_a_closed_node_takes_nothing() -> None:
    closed, other = slots()
    seats = place(members(a_launch(a_group("p", ("x",)))), [replace(closed, open=False), other])
    assert not isinstance(seats, str)
    assert seats[0].node == "p-1"


def test_ports_differ_and_run_out_loudly() -> None:
    first = choose_port(100, 102, frozenset(), 7)
    second = choose_port(100, 102, frozenset({first}), 7)
    assert first != second
    with pytest.raises(ValueError, match="every port"):
        choose_port(100, 102, frozenset({100, 101, 102}), 7)
