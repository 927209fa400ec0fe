"""Gangs, placement, tokens and order, through `plan()`."""

from dataclasses import replace
from typing import Any

import pytest

from policies.order.standing import Key
from policies.registry import ORDERS, order_named, rank_factor
from policies.settings import HOUR_MS, MINUTE_MS, PolicySettings
from policies.snapshot import Node, PlacementWish, QueuedJob, Resources, Snapshot, Tenant
from policies.vocabulary import CapacityType, CapacityWish, Pending, Reason
from tests.builders.policies import (
    NOW_MS,
    P0,
    P1,
    P2,
    decide,
    flavor,
    gpus,
    group,
    job,
    live,
    nodes,
    placed,
    pool,
    quota,
    snapshot,
)


def test_two_gangs_of_1000_on_1000_one_runs_whole_and_the_other_waits() -> None:
    quotas = (quota("a", 500, None, 500), quota("b", 500, None, 500))
    queued = (job("one", group(1_000), tenant="a", submitted_ms=1), job("two", group(1_000), tenant="b"))
    answers = decide(snapshot(pools=(pool(nodes(125, 8)),), quotas=quotas, queued=queued))
    assert sum(part.replicas for part in answers.admits["one"].placed) == 1_000
    assert answers.token("two") == "WaitingForCapacity"
    assert not answers.preempts


def test_all_groups_of_a_job_start_or_none() -> None:
    wish = job("wish", group(2, 4, "worker"), group(1, 8, "head"))
    alone = decide(snapshot(pools=(pool(nodes(1, 8)),), queued=(wish,)))
    assert set(alone.waits) == {"wish"}
    both = decide(snapshot(pools=(pool(nodes(2, 8)),), queued=(wish,)))
    assert {part.group: part.replicas for part in both.admits["wish"].placed} == {"worker": 2, "head": 1}


def test_a_gang_that_does_not_fit_leaves_its_room_to_the_next() -> None:
    queued = (job("big", group(3, 4), submitted_ms=1), job("small", group(2, 4)))
    assert set(decide(snapshot(pools=(pool(nodes(1, 8)),), queued=queued)).admits) == {"small"}


def test_groups_that_no_one_pool_takes_go_whole_to_different_pools() -> None:
    wish = job("wish", group(1, 8, "old", accelerator="V100"), group(1, 8, "new", accelerator="H100"))
    found = snapshot(
        flavors=(flavor(), flavor("v100", "V100")),
        pools=(pool(nodes(1, 8)), pool(nodes(1, 8, "m"), "there", "v100")),
        queued=(wish,),
    )
    assert {(part.group, part.pool) for part in decide(found).admits["wish"].placed} == {
        ("old", "there"),
        ("new", "pool"),
    }


def test_an_elastic_group_starts_at_the_largest_size_that_fits() -> None:
    busy = live("busy", placed({"n000": 8}), tenant="b")
    wish = job("wish", group(64, 1, min_replicas=16))
    answers = decide(snapshot(pools=(pool(nodes(8, 8)),), live=(busy,), queued=(wish,)))
    assert answers.admits["wish"].placed[0].replicas == 56


def test_a_member_goes_where_it_leaves_the_least() -> None:
    found = snapshot(
        pools=(pool((Node("big", gpus(8)), Node("small", gpus(4)), Node("tiny", gpus(2)))),),
        queued=(job("wish", group(1, 3)),),
    )
    assert decide(found).admits["wish"].placed[0].nodes == (("small", 1),)


def test_cpus_and_memory_are_hard_limits_too() -> None:
    shape = Resources(8_000, 16_000, 64)
    member = replace(group(), per_member=Resources(1_000, 8_000, 16))
    found = snapshot(pools=(pool((Node("n", shape),)),), queued=tuple(job(f"j{n}", member) for n in range(3)))
    assert len(decide(found).admits) == 2


def test_8_free_as_8_times_1_for_an_8_on_one_shape_is_topology_and_never_quota() -> None:
    busy = tuple(live(f"r{n}", placed({f"n00{n}": 7}), tenant="b") for n in range(8))
    found = snapshot(
        pools=(pool(nodes(8, 8)),),
        quotas=(quota("a", 8, 64, 8), quota("b", 56, 64, 8)),
        live=busy,
        queued=(job("wish", group(1, 8)),),
    )
    assert decide(found).token("wish") == "TopologyUnavailable"


@pytest.mark.parametrize(
    "wish",
    [
        {"groups": (group(1, 9),)},
        {"groups": (group(9, 8),)},
        {"groups": (group(1, 1, accelerator="A100"),)},
        {"placement": PlacementWish(zones=("z9",))},
        {"placement": PlacementWish(require={"rack": "r9"})},
        {"capacity": CapacityWish.SPOT},
        {"max_price": 10},
    ],
)
def test_what_no_pool_could_ever_serve_says_so(wish: dict[str, Any]) -> None:
    full = live("busy", placed({f"n00{n}": 8 for n in range(8)}), tenant="b")
    found = snapshot(pools=(pool(nodes(8, 8)),), live=(full,), queued=(replace(job("wish"), **wish),))
    assert decide(found).token("wish") == "NoMatchingFlavor"


def test_required_labels_are_looked_for_on_nodes_and_flavors() -> None:
    racks = (Node("n1", gpus(8), labels={"rack": "r1"}), Node("n2", gpus(4), labels={"rack": "r2"}))
    wish = job("wish", placement=PlacementWish(require={"rack": "r1", "zone": "z1"}))
    found = decide(snapshot(pools=(pool(racks),), queued=(wish,)))
    assert found.admits["wish"].placed[0].nodes == (("n1", 1),)


def test_a_node_that_failed_is_avoided() -> None:
    wish = job("wish", placement=PlacementWish(avoid_nodes=("n000",)))
    assert decide(snapshot(pools=(pool(nodes(2, 8)),), queued=(wish,))).admits["wish"].placed[0].nodes == (("n001", 1),)


def test_a_backend_that_does_not_serve_the_tenant_is_passed_by_and_is_the_reason_where_it_is_the_only_one() -> None:
    away = PlacementWish(refused_by=(("here", "name a common tenant in trust_below"),))
    pools = (pool(nodes(1, 8), "a"), pool(nodes(1, 8), "b"))
    told = decide(snapshot(pools=pools, queued=(job("wish", placement=away), job("other", tenant="b"))))
    assert told.token("wish") == "Misconfigured"
    found = told.waits["wish"]
    assert (found.blocker, found.why.remedy) == ("here", "name a common tenant in trust_below")
    assert "other" in told.admits, "a job of another tenant with the same wish is not held up"
    elsewhere = (*pools, pool(nodes(1, 8), "c", backend="there"))
    found_room = decide(snapshot(pools=elsewhere, queued=(job("wish", placement=away),)))
    assert found_room.admits["wish"].placed[0].pool == "c"


def test_capacity_types_are_what_was_asked_for_and_the_cheapest_goes_first() -> None:
    kinds = {
        "spot": flavor("spot", capacity_type=CapacityType.SPOT, price=1),
        "od": flavor("od", capacity_type=CapacityType.ON_DEMAND, price=3),
        "own": flavor("own", capacity_type=CapacityType.RESERVED, price=9),
    }
    pools = tuple(pool(nodes(1, 8, name), name, name) for name in kinds)
    chosen = {}
    for wish in CapacityWish:
        found = snapshot(flavors=tuple(kinds.values()), pools=pools, queued=(job("wish", capacity=wish),))
        chosen[wish.value] = decide(found).admits["wish"].placed[0].pool
    assert chosen == {"spot": "spot", "on_demand": "own", "mixed": "own", "reserved": "own"}


def test_an_ordered_wish_is_tried_in_its_order_and_falls_through() -> None:
    flavors = (flavor("cheap", price=1), flavor("dear", price=9))
    pools = (pool(nodes(1, 8, "c"), "c", "cheap"), pool(nodes(1, 8, "d"), "d", "dear"))
    wish = PlacementWish(flavors=("dear", "cheap"), ordered=True)
    queued = (job("first", group(1, 8), placement=wish, submitted_ms=1), job("second", group(1, 8), placement=wish))
    answers = decide(snapshot(flavors=flavors, pools=pools, queued=queued))
    assert {name: admit.placed[0].pool for name, admit in answers.admits.items()} == {"first": "d", "second": "c"}


@pytest.mark.parametrize(
    ("state", "token"),
    [
        ({"dark": True}, "BackendUnreachable"),
        ({"draining": True}, "WaitingForCapacity"),
        ({"rested_until_ms": NOW_MS + 1}, "WaitingForCapacity"),
    ],
)
def test_a_dark_draining_or_rested_pool_gives_nothing(state: dict[str, Any], token: str) -> None:
    answers = decide(snapshot(pools=(pool(nodes(1, 8), **state),), queued=(job("wish"),)))
    assert answers.token("wish") == token


def test_a_rested_spot_pool_says_when_it_is_tried_again() -> None:
    found = snapshot(
        flavors=(flavor(capacity_type=CapacityType.SPOT),),
        pools=(pool(nodes(1, 8), rested_until_ms=NOW_MS + 60_000),),
        queued=(job("wish"),),
    )
    wait = decide(found).waits["wish"]
    assert (wait.pending, wait.starts_ms) == (Pending.NO_SPOT_CAPACITY, NOW_MS + 60_000)


def test_foreign_load_and_unschedulable_nodes_are_taken_off() -> None:
    shapes = (
        Node("n0", gpus(8), foreign=gpus(3)),
        Node("n1", gpus(8), schedulable=False),
        Node("n2", gpus(8), foreign=gpus(9)),
    )
    queued = tuple(job(f"j{n}") for n in range(8))
    assert len(decide(snapshot(pools=(pool(shapes),), queued=queued)).admits) == 5


def test_a_pool_that_places_by_itself_gets_no_nodes_and_no_more_than_fits() -> None:
    runs = live("r", replace(placed({"x": 1}, each=8), nodes=()), tenant="b")
    found = snapshot(
        pools=(pool((Node("node", gpus(8), count=3),), places_nodes=False),),
        live=(runs,),
        queued=tuple(job(f"j{n}", group(1, 8)) for n in range(3)),
    )
    answers = decide(found)
    assert len(answers.admits) == 2
    assert all(admit.placed[0].nodes == () for admit in answers.admits.values())


def test_what_the_backend_packed_otherwise_still_counts_in_the_total() -> None:
    """Two leases of 5 do not fit two nodes with 4 foreign each: they are taken off the total all the same."""
    runs = tuple(live(f"r{n}", replace(placed({"x": 1}, each=5), nodes=()), tenant="b") for n in range(2))
    shapes = (Node("n", gpus(8), foreign=gpus(4), count=3),)
    found = snapshot(pools=(pool(shapes, places_nodes=False),), live=runs, queued=tuple(job(f"j{n}") for n in range(4)))
    assert len(decide(found).admits) == 2


def test_every_job_of_an_inactive_tenant_on_hold_or_not_due_waits_with_its_reason() -> None:
    queued = (
        job("off", tenant="off/team"),
        job("held", on_hold=True),
        job("after", waits_for=("x",)),
        job("later", not_before_ms=NOW_MS + 5),
    )
    tenants = (Tenant("a"), Tenant("off", active=False), Tenant("off/team"))
    answers = decide(snapshot(tenants=tenants, pools=(pool(nodes(1, 8)),), queued=queued))
    assert {name: wait.pending.value for name, wait in answers.waits.items()} == {
        "off": "Deactivated",
        "held": "OnHold",
        "after": "WaitingForDependency",
        "later": "CoolingDown",
    }
    assert answers.waits["later"].starts_ms == NOW_MS + 5


def test_rejections_have_their_reasons() -> None:
    queued = (
        job("orphan", dependency_impossible=True),
        job("late", deadline_ms=NOW_MS + 5, estimated_ms=6),
        job("slow", group(1, 8), max_queue_ms=30_000),
        job("quick", max_queue_ms=120_000),
    )
    busy = live("busy", placed({"n000": 7}), tenant="b")
    answers = decide(snapshot(pools=(pool(nodes(1, 8)),), live=(busy,), queued=queued))
    assert {name: one.reason for name, one in answers.rejects.items()} == {
        "orphan": Reason.DEPENDENCY_IMPOSSIBLE,
        "late": Reason.DEADLINE_INFEASIBLE,
        "slow": Reason.QUEUE_SLO,
    }
    assert set(answers.admits) == {"quick"}


def test_a_requeued_job_is_not_rejected_for_the_time_it_ran() -> None:
    busy = live("busy", placed({"n000": 8}), tenant="b")
    back = job("back", submitted_ms=NOW_MS - HOUR_MS, queued_ms=NOW_MS - 1_000, max_queue_ms=30_000)
    assert set(decide(snapshot(pools=(pool(nodes(1, 8)),), live=(busy,), queued=(back,))).waits) == {"back"}


def first_of(*queued: QueuedJob, **settings: Any) -> str:
    """Who gets the only GPU."""
    answers = decide(snapshot(pools=(pool(nodes(1, 1)),), queued=queued), **settings)
    (winner,) = answers.admits
    return winner


def test_class_goes_before_age_and_ageing_never_overtakes_a_class() -> None:
    ancient = job("ancient", klass=P2, submitted_ms=NOW_MS - 10_000 * HOUR_MS)
    assert first_of(ancient, job("new", klass=P1)) == "new"
    assert first_of(job("p1", klass=P1, submitted_ms=1), job("p0", klass=P0)) == "p0"


@pytest.mark.parametrize(("hours", "winner"), [(9, "first"), (10, "aged")])
def test_ageing_goes_in_steps_of_100_points(hours: int, winner: str) -> None:
    """Below the step the QAD, the turn and the kind's value decide; here the kind's own value does."""
    aged = job("aged", order_value=9, submitted_ms=NOW_MS - hours * HOUR_MS, user="u1")
    assert first_of(aged, job("first", order_value=1, user="u2")) == winner


def test_the_rate_of_ageing_is_a_setting() -> None:
    aged = job("aged", order_value=9, submitted_ms=NOW_MS - HOUR_MS, user="u1")
    assert first_of(aged, job("first", order_value=1, user="u2"), ageing_per_hour=100) == "aged"


def test_users_of_a_tenant_take_turns_and_running_jobs_count() -> None:
    many = tuple(job(f"many{n}", user="busy", submitted_ms=NOW_MS - 2 * MINUTE_MS + n) for n in range(3))
    assert first_of(*many, job("few", user="other")) == "many0"
    running = live("r", placed({"n000": 1}), user="busy")
    answers = decide(snapshot(pools=(pool(nodes(1, 2)),), live=(running,), queued=(*many, job("few", user="other"))))
    assert set(answers.admits) == {"few"}


def test_equal_jobs_go_by_age_and_then_by_id() -> None:
    assert first_of(job("b", user="u1"), job("a", user="u2")) == "a"
    assert first_of(job("b", user="u1", submitted_ms=1), job("a", user="u2")) == "b"


def test_fifo_is_a_name_in_the_registry_and_an_unknown_one_is_refused() -> None:
    aged = job("aged", order_value=9, submitted_ms=1)
    assert first_of(aged, job("first", order_value=1), order="fifo") == "aged"
    assert set(ORDERS) == {"default", "fifo"}
    with pytest.raises(ValueError, match="choose one of default, fifo"):
        order_named("lottery")


def test_the_rank_factor_is_the_first_element_that_differs() -> None:
    mine: Key = (-1_000, 0, 0, 0, 5, "a")
    assert rank_factor("default", mine, (-1_000, 0, 1, 0, 9, "b")) == "turn"
    assert rank_factor("default", mine, mine) == ""
    assert rank_factor("fifo", (-1_000, 5, "a"), (-1_000, 9, "b")) == "submitted"


@pytest.mark.parametrize(
    ("first", "second", "factor"),
    [
        ({"deadline_ms": NOW_MS + HOUR_MS}, {"deadline_ms": NOW_MS + 2 * HOUR_MS, "submitted_ms": 1}, "kind"),
        ({"deadline_ms": NOW_MS + HOUR_MS}, {"submitted_ms": 1}, "kind"),
        ({"submitted_ms": 1}, {}, "submitted"),
    ],
)
def test_of_two_p0_that_cannot_both_run_the_loser_learns_the_rival_and_its_rank_factor(
    first: dict[str, Any], second: dict[str, Any], factor: str
) -> None:
    queued = (
        job("wins", group(8), klass=P0, user="u1", **first),
        job("loses", group(8), klass=P0, user="u2", **second),
    )
    numbers = decide(snapshot(pools=(pool(nodes(1, 8)),), queued=queued)).waits["loses"].why.numbers
    assert (numbers["rival"], numbers["rival_class"], numbers["rank_factor"]) == ("wins", "P0", factor)


def test_chunks_of_an_array_are_answered_one_by_one() -> None:
    queued = tuple(job("array", group(4), chunk=(n * 4, n * 4 + 3)) for n in range(3))
    found = decide(snapshot(pools=(pool(nodes(1, 8)),), queued=queued)).plan
    assert [admit.chunk for act in found.acts for admit in act.admits] == [(0, 3), (4, 7)]
    assert [wait.chunk for wait in found.waits] == [(8, 11)]


def test_a_plan_names_its_policy_and_settings() -> None:
    name = decide(Snapshot()).plan.policy
    assert name == f"default@{PolicySettings().version}"
    assert decide(Snapshot(), max_wait_ms=1).plan.policy != name


def test_settings_survive_json() -> None:
    settings = PolicySettings(max_wait_ms=MINUTE_MS, grace_ms={P0: 1, P1: 2, P2: 3})
    assert PolicySettings.from_json(settings.as_json()) == settings
    assert PolicySettings.from_json(settings.as_json()).version == settings.version
    with pytest.raises(TypeError, match="max_weight"):
        PolicySettings.from_json({"max_weight": 1})
