"""Nodes that the last attempt lost are avoided by the next one: a preference, and no wall."""

from dataclasses import replace

from policies.snapshot import Node, PlacementWish, QueuedJob
from tests.builders.policies import decide, group, job, live, nodes, placed, pool, snapshot

WARY = PlacementWish(avoid_nodes=("n000",))


def wary(replicas: int, each: int = 8) -> QueuedJob:
    return job("wary", group(replicas, each), placement=WARY)


def test_the_other_node_is_taken_while_there_is_one() -> None:
    found = decide(snapshot(pools=(pool(nodes(2, 8)),), queued=(wary(1),)))
    assert found.admits["wary"].placed[0].nodes == (("n001", 1),)


def test_a_gang_that_needs_the_whole_pool_uses_the_node_that_it_avoids() -> None:
    found = decide(snapshot(pools=(pool(nodes(2, 8)),), queued=(wary(2),)))
    assert dict(found.admits["wary"].placed[0].nodes) == {"n000": 1, "n001": 1}


def test_while_the_lost_node_is_away_the_gang_waits_for_capacity() -> None:
    first, second = nodes(2, 8)
    found = decide(snapshot(pools=(pool((replace(first, schedulable=False), second)),), queued=(wary(2),)))
    assert found.token("wary") == "WaitingForCapacity"


def test_while_the_other_node_is_busy_it_waits_for_that_one() -> None:
    busy = live("busy", placed({"n001": 1}, each=8))
    found = decide(snapshot(pools=(pool(nodes(2, 8)),), live=(busy,), queued=(wary(1),)))
    assert found.token("wary") == "WaitingForCapacity"


def test_another_pool_that_would_do_is_waited_for_as_well() -> None:
    small = pool((Node("n000", nodes(1, 8)[0].capacity),), name="small")
    large = pool(nodes(1, 8, prefix="m"), name="large")
    busy = live("busy", placed({"m000": 1}, each=8, pool="large"))
    found = decide(snapshot(pools=(small, large), live=(busy,), queued=(wary(1),)))
    assert found.token("wary") == "WaitingForCapacity"


def test_a_job_that_fits_nowhere_even_so_still_says_that_nothing_matches() -> None:
    found = decide(snapshot(pools=(pool(nodes(2, 8)),), queued=(wary(3),)))
    assert found.token("wary") == "NoMatchingFlavor"
