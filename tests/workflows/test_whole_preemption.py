"""The whole engine preempts: real Temporal, real PostgreSQL, the live policy, the production worker; fake backend."""

from dataclasses import replace
from typing import Any

import pytest

from policies.snapshot import Resources
from tests.builders.ledger import FLAVOR, GPU
from tests.fakes.cluster import equal_nodes
from tests.fakes.faults import Fault
from tests.unit.store.world import rows, scalar, write
from tests.workflows.whole import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
WHOLE = {"accelerators": "H100:8"}
HERE = {"pools": ["pool"]}


def teams(on: Running) -> None:
    for name, klass in (("org", ""), ("org/low", ""), ("org/high", "P1")):
        tenant = on.gate.tenant(name)
        if klass:
            on.gate.world.allowance(tenant, klass, 1000)


async def full(on: Running) -> list[str]:
    """Two jobs of the lower class on the two nodes; their attempts."""
    jobs = [on.gate.submit("org/low", resources=WHOLE, checkpoint={"url": f"file:///c/{n}"}) for n in range(2)]
    return [await on.attempt_runs(job) for job in jobs]


async def stop_of(on: Running, attempts: list[str]) -> str:
    """The one of them that has been told to go."""
    launches = on.cluster.launches
    return str(await on.until(lambda: next((a for a in attempts if launches[a].stops), ""), "a victim that was told"))


def test_a_waiter_that_its_backend_refuses_costs_nobody_anything(whole: Any) -> None:
    async def scene(on: Running) -> None:
        teams(on)
        async with on.worker():
            running = await full(on)
            on.cluster.faults.inject("prepare", Fault.REFUSED, times=1)
            urgent = on.gate.submit("org/high", priority="P1", resources=WHOLE)
            refused = "SELECT 1 FROM attempts WHERE state = 'REFUSED'"
            await on.until(lambda: rows(on.gate.engine, refused), "a refusal")
            assert [on.cluster.launches[attempt].stops for attempt in running] == [[], []]
            assert on.gate.job(urgent).reason == "BackendRefused"
            assert not rows(on.gate.engine, "SELECT 1 FROM attempts WHERE stop_cause IS NOT NULL")

    whole(scene)


def test_foreign_load_takes_what_a_victim_left_and_the_victim_comes_first(whole: Any) -> None:
    async def scene(on: Running) -> None:
        teams(on)
        on.cluster.stop_code = None  # the victim takes its time
        async with on.worker():
            running = await full(on)
            urgent = on.gate.submit("org/high", priority="P1", resources=WHOLE)
            victim = await stop_of(on, running)
            waiter = on.gate.attempt(urgent)
            assert on.cluster.calls.index(("prepare", waiter)) < on.cluster.calls.index(("stop", victim))
            node = on.cluster.launches[victim].nodes[0]
            on.cluster.set_foreign(node, Resources(accelerators=8 * GPU))
            on.cluster.expire(victim)
            stolen = "SELECT attempt_id, data FROM events WHERE kind = 'PreemptionLost'"
            (event,) = await on.until(lambda: rows(on.gate.engine, stolen), "a theft that is counted")
            assert (event.attempt_id, event.data["pools"], event.data["victims"]) == (waiter, ["pool"], 1)
            pause = "SELECT no_preemption_until > now() + interval '29 minutes' FROM pools"
            assert scalar(on.gate.engine, pause)
            write(on.gate.engine, "UPDATE pools SET rested_until = NULL")
            on.cluster.set_foreign(node, Resources())
            loser = scalar(on.gate.engine, "SELECT job_id FROM attempts WHERE id = :id", id=victim)
            again = await on.attempt_runs(str(loser), number=2)  # before the waiter, which is of a higher class
            assert on.gate.job(urgent).state == "QUEUED"
            other = next(attempt for attempt in running if attempt != victim)
            assert on.cluster.launches[other].stops == on.cluster.launches[again].stops == []

    whole(scene)


def test_who_is_in_the_way_goes_on_in_another_pool(whole: Any) -> None:
    async def scene(on: Running) -> None:
        teams(on)
        async with on.worker():
            running = await full(on)
            write(
                on.gate.engine,
                "INSERT INTO pools (name, backend, flavor, config, place_first, places_nodes)"
                " VALUES ('other', 'b', :flavor, '{}', true, true)",
                flavor=FLAVOR,
            )
            on.cluster.pools["other"] = [replace(equal_nodes("other", 1)[0], name="m1")]
            await on.until(lambda: rows(on.gate.engine, "SELECT 1 FROM nodes WHERE pool = 'other'"), "room elsewhere")
            urgent = on.gate.submit("org/high", priority="P1", resources=WHOLE, placement=HERE)
            victim = await stop_of(on, running)
            job = str(scalar(on.gate.engine, "SELECT job_id FROM attempts WHERE id = :id", id=victim))
            moved = await on.attempt_runs(job, number=2)
            assert set(on.cluster.launches[moved].nodes.values()) == {"m1"}
            await on.attempt_runs(urgent)
            row = scalar(on.gate.engine, "SELECT reason FROM attempts WHERE id = :id", id=victim)
            assert row == "Moved"
            calls = on.cluster.calls
            assert calls.index(("stop", victim)) < calls.index(("prepare", moved)), "it resumes from the last save"
            on.cluster.finish(moved)
            await on.job_is(job, "SUCCEEDED")
            assert on.gate.job(job).failures == 0

    whole(scene)
