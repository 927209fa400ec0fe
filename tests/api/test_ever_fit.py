"""Submit and arbiter say NoMatchingFlavor of the same jobs: small federations and wishes at random, no database."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from gateway.api.admission import refusals
from gateway.api.fitting import wish_of
from gateway.queries.config import Config
from policies.snapshot import Node, Pool, Resources
from policies.vocabulary import CapacityType, Pending
from tests.builders.policies import decide, flavor, pool, snapshot
from tidegate.wire.spec import JobSpec

NOW = datetime(2027, 1, 1, tzinfo=UTC)
GIB = 1 << 30
FLAVORS = {
    "h100": flavor("h100", "H100", zone="a"),
    "v100": flavor("v100", "V100", zone="b", capacity_type=CapacityType.SPOT, price=2),
    "cpu": flavor("cpu", "", zone="a", labels={"disk": "fast"}),
}


@st.composite
def pools(draw: st.DrawFn) -> tuple[Pool, ...]:
    found = []
    for at in range(draw(st.integers(0, 3))):
        of = draw(st.sampled_from(sorted(FLAVORS)))
        cards = 0 if of == "cpu" else draw(st.integers(1, 2))
        shapes = [
            Node(
                f"n{n}",
                Resources(cards * 1000, draw(st.sampled_from([2000, 8000])), 16 * GIB, GIB),
                count=draw(st.integers(1, 3)),
                schedulable=draw(st.booleans()),
                labels=draw(st.sampled_from([{}, {"rack": "1"}, {"rack": "2"}])),
            )
            for n in range(draw(st.integers(0, 2)))
        ]
        found.append(pool(shapes, name=f"pool-{at}", of=of))
    return tuple(found)


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    def resources() -> dict[str, Any]:
        model = draw(st.sampled_from(["", "H100:", "V100:", "B900:"]))
        return {
            "accelerators": f"{model}{draw(st.integers(1 if model else 0, 3))}",
            "cpus": draw(st.sampled_from([1, 4, 16])),
        }

    body: dict[str, Any] = {
        "name": "j",
        "run": "x",
        "capacity": {"type": draw(st.sampled_from(["mixed", "mixed", "spot", "on_demand"])), "accept_loss": True},
        "placement": {
            "require": draw(st.sampled_from([{}, {}, {"rack": "1"}, {"rack": "3"}, {"disk": "fast"}])),
            "zones": draw(st.sampled_from([[], [], ["a"]])),
        },
    }
    if draw(st.booleans()):
        count = draw(st.integers(1, 3))
        body["groups"] = [
            {"name": f"g{n}", "replicas": draw(st.integers(1, 6)), "resources": resources()} for n in range(count)
        ]
    else:
        body["num_nodes"] = draw(st.integers(1, 8))
        body["resources"] = resources()
        if draw(st.booleans()):
            body["elastic"] = {"min": draw(st.integers(1, 3)), "target": 4, "max": 8}
    return JobSpec.model_validate(body)


@given(pools(), specs())
@settings(deadline=None, max_examples=400)
def test_submit_refuses_exactly_what_the_arbiter_would_let_wait_for_good(
    found: tuple[Pool, ...], spec: JobSpec
) -> None:
    config = Config(tenants={"a": 1}, pools=found, flavors=FLAVORS)
    refused = [problem for slug, problem in refusals(spec, "a", config, NOW) if slug == "no-matching-flavor"]
    queued = replace(wish_of(spec, "a"), id="j")
    answers = decide(snapshot(flavors=tuple(FLAVORS.values()), pools=found, queued=(queued,)))
    never = "j" in answers.waits and answers.waits["j"].pending is Pending.NO_MATCHING_FLAVOR
    event("refused" if refused else "accepted")
    assert bool(refused) == never
    for problem in refused:
        assert problem.field
        assert problem.remedy
        event(problem.field)
    if any(not one.nodes for one in found) and not spec.placement.zones and spec.capacity.type == "mixed":
        of = {FLAVORS[one.flavor].accelerator for one in found if not one.nodes}
        wanted = {group.resources.accelerators.model for group in spec.flat_groups() if group.resources}
        if wanted <= of - {""}:
            assert not refused, "a pool that has not reported yet proves nothing"
