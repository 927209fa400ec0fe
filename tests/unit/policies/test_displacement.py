"""A P0 in the middle of somebody else's preemption: it waits for no grace but its own, which is none."""

from dataclasses import replace
from typing import Any

import pytest

from policies.decisions import Plan
from policies.plan import plan
from policies.settings import HOUR_MS, PolicySettings
from policies.snapshot import LiveAttempt, Override, Snapshot
from policies.vocabulary import AttemptState, PriorityClass, StopCause
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


def told(name: str, node: str, cause: StopCause = StopCause.PREEMPT, **more: Any) -> LiveAttempt:
    return live(name, placed({node: 1}, each=8), state=AttemptState.STOPPING, stopping=cause, **more)


def waiting(name: str, on: tuple[str, ...], *where: str, klass: PriorityClass = P1, **more: Any) -> LiveAttempt:
    return live(
        name,
        placed(dict.fromkeys(where, 1), each=8),
        klass=klass,
        state=AttemptState.PENDING,
        started_ms=None,
        contingent_on=on,
        **more,
    )


def urgent(replicas: int = 1, each: int = 8, **more: Any) -> Any:
    return job("urgent", group(replicas, each), klass=P0, **{"tenant": "c", **more})


def world(*running: LiveAttempt, size: int = 1, **more: Any) -> Snapshot:
    return snapshot(**{"pools": (pool(nodes(size, 8)),), "live": running, "queued": (urgent(),), **more})


def test_a_p0_takes_what_is_being_stopped_for_a_p1_and_displaces_that_waiter() -> None:
    found = decide(world(told("victim", "n000"), waiting("waiter", ("victim",), "n000", tenant="b")))
    assert found.admits["urgent"].contingent_on == ("victim",)
    victim, waiter = found.preempts["victim"], found.preempts["waiter"]
    assert (victim.again, victim.displaced, victim.grace_ms, victim.credit) == (True, False, 0, True)
    assert (waiter.again, waiter.displaced, waiter.grace_ms, waiter.credit) == (False, True, 0, False)
    assert (waiter.cause, waiter.why.token, waiter.why.numbers["lost_ms"]) == (StopCause.PREEMPT, "Displaced", 0)
    assert {one.waiter for one in found.preempts.values()} == {"urgent"}


def test_the_cause_that_was_written_first_stays() -> None:
    running = told("victim", "n000", StopCause.RECLAIM), waiting("waiter", ("victim",), "n000", klass=P2, tenant="b")
    victim = decide(world(*running)).preempts["victim"]
    assert (victim.cause, victim.credit) == (StopCause.RECLAIM, False)


@pytest.mark.parametrize("klass", [P1, P2])
def test_nobody_but_a_p0_touches_a_preemption_under_way(klass: PriorityClass) -> None:
    running = told("victim", "n000"), waiting("waiter", ("victim",), "n000", tenant="b")
    found = decide(world(*running, queued=(job("urgent", group(1, 8), klass=klass, tenant="c"),)))
    assert not found.preempts
    assert found.token("urgent") == "WaitingForCapacity"


def test_the_waiter_of_another_p0_keeps_what_it_was_promised() -> None:
    running = told("victim", "n000"), waiting("waiter", ("victim",), "n000", klass=P0, tenant="b")
    assert not decide(world(*running)).preempts


@pytest.mark.parametrize("cause", [StopCause.CANCEL, StopCause.REVOCATION])
def test_a_stop_that_is_not_the_arbiters_is_not_shortened(cause: StopCause) -> None:
    running = told("victim", "n000", cause), waiting("waiter", ("victim",), "n000", tenant="b")
    assert not decide(world(*running)).preempts


def test_what_leaves_for_nobody_any_more_leaves_at_once_for_a_p0() -> None:
    found = decide(world(told("victim", "n000")))
    assert found.admits["urgent"].contingent_on == ("victim",)
    assert (found.preempts["victim"].again, found.preempts["victim"].grace_ms) == (True, 0)


def test_a_waiter_stays_where_there_is_room_without_it() -> None:
    running = told("victim", "n000"), waiting("waiter", ("victim",), "n000", tenant="b")
    found = decide(world(*running, size=2))
    assert found.admits["urgent"].contingent_on == ()
    assert not found.preempts


def test_a_cheaper_victim_elsewhere_leaves_the_waiter_alone() -> None:
    dear = told("victim", "n000", restart_ms=HOUR_MS)
    cheap = live("cheap", placed({"n001": 1}, each=8), started_ms=NOW_MS - 1_000)
    found = decide(world(dear, waiting("waiter", ("victim",), "n000", tenant="b"), cheap, size=2))
    assert list(found.preempts) == ["cheap"]


def test_only_the_victims_that_are_needed_pass_on() -> None:
    running = told("one", "n000"), told("two", "n001"), waiting("waiter", ("one", "two"), "n000", "n001", tenant="b")
    found = decide(world(*running, size=2))
    assert len(found.admits["urgent"].contingent_on) == 1
    assert set(found.preempts) == {"waiter", *found.admits["urgent"].contingent_on}


def test_room_that_the_waiter_alone_holds_is_free_at_once() -> None:
    running = told("victim", "n000"), waiting("waiter", ("victim",), "n000", "n001", tenant="b")
    found = decide(world(*running, size=2))
    assert found.admits["urgent"].contingent_on == ()
    assert set(found.preempts) == {"waiter"}


def test_two_p0_never_get_the_same_victim() -> None:
    running = told("victim", "n000"), waiting("waiter", ("victim",), "n000", tenant="b")
    both = urgent(), replace(urgent(), id="second")
    found = decide(world(*running, queued=both))
    assert sorted([*found.admits, *found.waits]) == ["second", "urgent"]
    assert len(found.admits) == 1


def test_an_operators_word_against_it_holds() -> None:
    running = told("victim", "n000"), waiting("waiter", ("victim",), "n000", tenant="b")
    word = Override("waiter", force=False, until_ms=NOW_MS + HOUR_MS, reason="demo")
    assert not decide(world(*running, overrides=(word,))).preempts


def at_its_max(most: int) -> Snapshot:
    running = told("victim", "n000", tenant="a/x"), waiting("waiter", ("victim",), "n000", tenant="a/y")
    return world(*running, queued=(urgent(tenant="a/z"),), quotas=(quota("a", 0, most), quota("a/y", 0, 8)))


def test_a_p0_of_a_tenant_at_its_max_takes_the_place_within_it() -> None:
    found = decide(at_its_max(8))
    assert set(found.preempts) == {"victim", "waiter"}


def test_a_max_that_the_victims_do_not_make_room_under_stands() -> None:
    assert not decide(at_its_max(7)).admits


def test_the_order_of_the_input_changes_nothing() -> None:
    found = at_its_max(8)
    turned = replace(found, live=found.live[::-1], quotas=found.quotas[::-1], tenants=found.tenants[::-1])
    plans: list[Plan] = [plan(one, PolicySettings(), NOW_MS) for one in (found, turned)]
    assert plans[0] == plans[1]
    assert Answers(plans[0]).admits
