"""Where nobody is preempted and why, and what follows when foreign load takes what victims left (DESIGN §5)."""

from dataclasses import replace
from typing import Any

import pytest

from policies.preemption.theft import pause_ms
from policies.settings import HOUR_MS, MINUTE_MS, PolicySettings
from tests.builders.policies import NOW_MS, P0, decide, group, job, live, nodes, placed, pool, snapshot

X = live("X", placed({"n000": 8}), tenant="b")


@pytest.mark.parametrize(
    ("more", "number"),
    [
        ({"place_first": False}, ("preemption", "none")),
        ({"no_preemption_until_ms": NOW_MS + 1}, ("no_preemption_until_ms", NOW_MS + 1)),
    ],
)
def test_a_job_that_might_preempt_learns_why_nobody_gives_way(more: dict[str, Any], number: tuple[str, Any]) -> None:
    found = snapshot(pools=(pool(nodes(1, 8), **more),), live=(X,), queued=(job("wish", group(8), klass=P0),))
    why = decide(found).waits["wish"].why
    assert why.numbers[number[0]] == number[1]
    assert "preempts nobody" in why.remedy
    modest = decide(replace(found, queued=(job("wish", group(8)),))).waits["wish"].why
    assert number[0] not in modest.numbers  # it preempts nobody anywhere


def test_who_gave_way_for_nothing_stands_first_in_line() -> None:
    found = snapshot(
        pools=(pool(nodes(1, 8)),),
        queued=(
            job("urgent", group(8), klass=P0, submitted_ms=1),
            job("robbed", group(8), tenant="b", first_in_line=True),
        ),
    )
    answers = decide(found)
    assert set(answers.admits) == {"robbed"}
    assert answers.waits["urgent"].why.numbers["rank_factor"] == "first_in_line"


@pytest.mark.parametrize("setting_ms", [30 * MINUTE_MS, HOUR_MS])
def test_a_pool_pauses_after_a_theft_and_for_nothing_else(setting_ms: int) -> None:
    settings = PolicySettings(lost_preemption_pause_ms=setting_ms)
    theft = {"preempted": True, "no_room": True, "foreign": True}
    assert pause_ms(**theft, settings=settings) == setting_ms
    for missing in theft:
        assert pause_ms(**{**theft, missing: False}, settings=settings) == 0
