"""Resizes that a cycle decides: shrink before anyone is stopped, grow into what nobody else needs (POLICIES §7, §9)."""

from typing import Any

import pytest

from policies.decisions import Resize
from policies.elastic.sizes import Sizes
from policies.settings import HOUR_MS, MINUTE_MS
from policies.snapshot import Elastic, LiveAttempt
from policies.vocabulary import JobKind
from tests.builders.policies import (
    NOW_MS,
    P0,
    P1,
    P2,
    Answers,
    decide,
    group,
    job,
    live,
    nodes,
    placed,
    pool,
    quota,
    snapshot,
)


def elastic(
    on: dict[str, int], least: int = 1, most: int = 8, step: int = 1, name: str = "e", **more: Any
) -> LiveAttempt:
    """A running job with one-GPU members that may be relaunched at another size; `target` is `most` unless named."""
    of_live = {key: more.pop(key) for key in list(more) if key in LiveAttempt.__dataclass_fields__}
    size = sum(on.values())
    sizes = Sizes(least, more.pop("target", most), most, step)
    values: dict[str, Any] = {"able": True, **more}
    return live(name, placed(on), elastic=Elastic("main", sizes, size, **values), **of_live)


def resizes(found: Answers) -> dict[str, Resize]:
    return {one.attempt: one for act in found.plan.acts for one in act.resizes}


def test_an_elastic_job_shrinks_before_anyone_is_stopped() -> None:
    world = snapshot(
        pools=(pool(nodes(2, 8)),),
        live=(elastic({"n000": 8}, least=4), live("rigid", placed({"n001": 8}))),
        queued=(job("urgent", group(1, 4), klass=P1),),
    )
    found = decide(world)
    assert not found.preempts
    assert resizes(found)["e"].replicas == 4
    assert resizes(found)["e"].placed == (placed({"n000": 4}),)
    assert resizes(found)["e"].grace_ms == 300_000
    assert found.admits["urgent"].contingent_on == ("e",)
    assert found.admits["urgent"].placed[0].nodes == (("n000", 1),)
    assert len(found.plan.acts) == 1, "the waiter and what makes room for it hold only together"


def test_it_gives_no_more_than_is_needed_in_whole_steps() -> None:
    world = snapshot(
        pools=(pool(nodes(1, 8)),),
        live=(elastic({"n000": 8}, least=2, step=2),),
        queued=(job("urgent", group(3, 1), klass=P1),),
    )
    assert resizes(decide(world))["e"].replicas == 4


def test_of_several_the_cheapest_shrinks_and_who_need_not_does_not() -> None:
    world = snapshot(
        pools=(pool(nodes(2, 8)),),
        live=(
            elastic({"n000": 8}, least=4, name="dear", restart_ms=HOUR_MS),
            elastic({"n001": 8}, least=4, name="cheap", restart_ms=MINUTE_MS),
        ),
        queued=(job("urgent", group(4, 1), klass=P1),),
    )
    assert {name: one.replicas for name, one in resizes(decide(world)).items()} == {"cheap": 4}


def test_two_shrink_where_one_is_not_enough_and_a_stop_comes_only_after_that() -> None:
    both = (elastic({"n000": 4}, least=2, name="a"), elastic({"n000": 4}, least=2, name="b"))
    four = snapshot(pools=(pool(nodes(1, 8)),), live=both, queued=(job("urgent", group(4, 1), klass=P1),))
    assert {name: one.replicas for name, one in resizes(decide(four)).items()} == {"a": 2, "b": 2}
    five = snapshot(pools=(pool(nodes(1, 8)),), live=both, queued=(job("urgent", group(5, 1), klass=P1),))
    found = decide(five)
    assert not resizes(found)
    assert set(found.preempts) == {"a", "b"}


@pytest.mark.parametrize("klass", [P2])
def test_an_equal_class_shrinks_nobody_except_to_take_back_what_is_its_own(klass: Any) -> None:
    full = snapshot(
        pools=(pool(nodes(1, 8)),),
        live=(elastic({"n000": 8}, least=4, tenant="b"),),
        queued=(job("equal", group(4, 1), klass=klass),),
    )
    assert not resizes(decide(full))
    owner = snapshot(
        pools=full.pools,
        live=full.live,
        queued=full.queued,
        quotas=(quota("a", 4, None, 4), quota("b", 4, None)),
    )
    assert resizes(decide(owner))["e"].replicas == 4


@pytest.mark.parametrize(
    "spared",
    [
        {"able": False},
        {"under_way": True},
        {"resized_ms": NOW_MS - 29 * MINUTE_MS},
        {"klass": P0},
        {"min_runtime_ms": 3 * HOUR_MS, "started_ms": NOW_MS - MINUTE_MS},
    ],
)
def test_who_may_not_be_resized_or_disturbed_is_left_alone(spared: dict[str, Any]) -> None:
    world = snapshot(
        pools=(pool(nodes(1, 8)),),
        live=(elastic({"n000": 8}, least=4, **spared),),
        queued=(job("urgent", group(4, 1), klass=P1),),
    )
    assert not resizes(decide(world))


def test_the_cool_down_between_resizes_is_a_setting() -> None:
    world = snapshot(
        pools=(pool(nodes(1, 8)),),
        live=(elastic({"n000": 8}, least=4, resized_ms=NOW_MS - 20 * MINUTE_MS),),
        queued=(job("urgent", group(4, 1), klass=P1),),
    )
    assert not resizes(decide(world))
    assert resizes(decide(world, resize_cool_down_ms=20 * MINUTE_MS))


def test_what_is_being_made_smaller_covers_its_waiter_and_no_more() -> None:
    shrinking = live("e", placed({"n000": 6}), keeps=(placed({"n000": 4}),))
    waiter = live("w", placed({"n000": 4}), contingent_on=("e",), klass=P1)
    world = snapshot(pools=(pool(nodes(1, 8)),), live=(shrinking, waiter), queued=(job("next", group(1, 1)),))
    assert decide(world).token("next") == "WaitingForCapacity", "the two that were free are the waiter's too"


def test_it_grows_into_free_capacity_up_to_its_target() -> None:
    world = snapshot(pools=(pool(nodes(2, 4)),), live=(elastic({"n000": 4}, step=2, target=7),))
    found = resizes(decide(world))["e"]
    assert (found.replicas, found.why.token) == (6, "Grown")
    assert found.placed == (placed({"n000": 4, "n001": 2}),)


def test_members_stay_in_their_order_when_more_come() -> None:
    world = snapshot(pools=(pool(nodes(2, 4)),), live=(elastic({"n001": 4}),))
    assert resizes(decide(world))["e"].placed[0].nodes == (("n001", 4), ("n000", 4))


def test_it_does_not_grow_where_somebody_of_its_class_waits_for_that_capacity() -> None:
    running = elastic({"n000": 4}, least=4)
    rival = job("wide", group(1, 8))
    taken = live("other", placed({"n001": 4}), ends_by_ms=NOW_MS + HOUR_MS)
    world = snapshot(pools=(pool(nodes(2, 8)),), live=(running, taken), queued=(rival,))
    assert not resizes(decide(world)), "the head waits for a whole node, which a growth would keep broken"
    alone = snapshot(pools=world.pools, live=world.live)
    assert resizes(decide(alone))["e"].replicas == 8


def test_a_lower_class_that_waits_is_in_nobodys_way() -> None:
    running = elastic({"n000": 4}, klass=P1)
    world = snapshot(pools=(pool(nodes(1, 8)),), live=(running,), queued=(job("wide", group(1, 8)),))
    assert resizes(decide(world))["e"].replicas == 8


def test_no_growth_takes_a_guarantee_that_its_owner_does_not_lend() -> None:
    world = snapshot(
        pools=(pool(nodes(1, 8)),),
        live=(elastic({"n000": 4}),),
        quotas=(quota("a", 4, None), quota("owner", 4, None, lendable=1)),
    )
    found = resizes(decide(world))["e"]
    assert found.replicas == 5
    assert [(loan.lender, loan.amount) for loan in found.loans] == [("owner", 1000)]


def test_a_growth_by_relaunch_must_pay_for_three_restarts() -> None:
    def grows(ends_in_ms: int) -> bool:
        running = elastic({"n000": 4}, restart_ms=10 * MINUTE_MS, ends_by_ms=NOW_MS + ends_in_ms)
        return bool(resizes(decide(snapshot(pools=(pool(nodes(1, 8)),), live=(running,)))))

    assert not grows(HOUR_MS)
    assert grows(HOUR_MS + MINUTE_MS)


def test_a_growth_that_was_not_kept_goes_back_and_is_not_tried_again_for_a_while() -> None:
    here = (pool(nodes(1, 8)),)
    grown = elastic({"n000": 8}, rate=1300, before=(4, 1000), resized_ms=NOW_MS - MINUTE_MS)
    back = resizes(decide(snapshot(pools=here, live=(grown,))))["e"]
    assert (back.replicas, back.why.token) == (4, "GrowthNotKept")
    assert not resizes(decide(snapshot(pools=here, live=(grown,)), keep_growth_permille=650))
    kept = elastic({"n000": 8}, rate=1400, before=(4, 1000))
    assert not resizes(decide(snapshot(pools=here, live=(kept,))))
    unmeasured = elastic({"n000": 8}, rate=0, before=(4, 1000))
    assert not resizes(decide(snapshot(pools=here, live=(unmeasured,))))
    again = elastic({"n000": 4}, unkept_ms=NOW_MS - 5 * HOUR_MS)
    assert not resizes(decide(snapshot(pools=here, live=(again,))))
    assert resizes(decide(snapshot(pools=here, live=(again,)), growth_retry_ms=5 * HOUR_MS))


def test_a_size_that_a_user_asked_for_comes_without_cool_down_and_waits_with_its_reason_where_there_is_no_room() -> (
    None
):
    soon: dict[str, Any] = {"wished": True, "resized_ms": NOW_MS - 1, "job_version": 5}
    smaller = elastic({"n000": 8}, target=4, **soon)
    assert resizes(decide(snapshot(pools=(pool(nodes(1, 8)),), live=(smaller,))))["e"].replicas == 4
    larger = elastic({"n000": 4}, target=8, **soon)
    assert resizes(decide(snapshot(pools=(pool(nodes(2, 4)),), live=(larger,))))["e"].replicas == 8
    found = decide(snapshot(pools=(pool(nodes(1, 4)),), live=(larger,)))
    assert not resizes(found)
    assert (found.token("job-of-e"), found.waits["job-of-e"].version) == ("WaitingForCapacity", 5)
    limited = snapshot(pools=(pool(nodes(2, 4)),), live=(larger,), quotas=(quota("a", 0, 4),))
    assert decide(limited).token("job-of-e") == "TenantLimit"


def test_a_queued_job_starts_at_the_largest_valid_size_that_fits() -> None:
    wish = group(64, 1, min_replicas=16, step=8)
    world = snapshot(pools=(pool(nodes(7, 8)),), queued=(job("wide", wish),))
    assert decide(world).admits["wide"].placed[0].replicas == 56
    odd = snapshot(pools=(pool(nodes(1, 59)),), queued=(job("wide", wish),))
    assert decide(odd).admits["wide"].placed[0].replicas == 56


def test_a_queued_job_takes_the_largest_size_that_its_quota_allows() -> None:
    wish = group(64, 1, min_replicas=16, step=8)
    world = snapshot(pools=(pool(nodes(8, 8)),), queued=(job("wide", wish),), quotas=(quota("a", 0, 42),))
    assert decide(world).admits["wide"].placed[0].replicas == 40


def test_a_job_whose_checkpoint_holds_for_one_size_waits_for_that_size() -> None:
    wish = group(8, 1, min_replicas=8, resumes_at=8)
    world = snapshot(
        pools=(pool(nodes(1, 8)),), live=(live("other", placed({"n000": 4})),), queued=(job("back", wish),)
    )
    found = decide(world)
    assert found.token("back") == "WaitingForSize"
    assert found.waits["back"].why.numbers["size"] == 8


def test_a_service_is_resized_in_place_and_pays_for_no_restart() -> None:
    service = elastic(
        {"n000": 4}, kind=JobKind.INFERENCE, in_place=True, restart_ms=HOUR_MS, ends_by_ms=NOW_MS + MINUTE_MS
    )
    found = resizes(decide(snapshot(pools=(pool(nodes(1, 8)),), live=(service,))))["e"]
    assert (found.replicas, found.in_place) == (8, True)
