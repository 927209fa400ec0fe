"""Resizes with the whole engine on: Temporal, PostgreSQL, the live policy and the production worker; fake backend."""

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from backends.types import Notice, NoticeKind
from gateway.ledger import progress, wishes
from gateway.ledger.engine import in_transaction
from tests.unit.store.world import rows
from tests.workflows.whole import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(150)]
TRAINING: dict[str, Any] = {
    "kind": "training",
    "resources": {"accelerators": "H100:1"},
    "checkpoint": {"url": "file:///c"},
}


def saves(on: Running, attempt: str, number: int) -> None:
    url = f"file:///c/attempt-{number}/step-{number}"
    in_transaction(
        on.gate.engine, lambda session: progress.checkpoint(session, attempt, step=number, url=url, reshardable=True)
    )


def told_of(on: Running, job: str) -> list[tuple[str, int, str]]:
    """State, size and the token of each attempt."""
    query = "SELECT state, placed, why->>'token' AS token FROM attempts WHERE job_id = :job ORDER BY number"
    found = rows(on.gate.engine, query, job=UUID(job))
    return [(row.state, sum(part["replicas"] for part in row.placed), row.token) for row in found]


def has_size(on: Running, job: str, size: int) -> bool:
    """Whether its one attempt runs with so many members."""
    return told_of(on, job) == [("RUNNING", size, "Fits")]


def held(on: Running, tenant: str) -> int:
    return on.gate.world.held(on.gate.tenants[tenant])


def test_a_training_shrinks_for_a_p1_that_starts_and_grows_when_asked_to(whole: Any) -> None:
    async def scene(on: Running) -> None:
        on.gate.tenant("org")
        on.gate.tenant("org/low")
        on.gate.world.allowance(on.gate.tenant("org/high"), "P1", 1000)
        async with on.worker():
            elastic = {"min": 4, "target": 16, "max": 16, "multiple_of": 4, "reshard": True}
            job = on.gate.submit("org/low", elastic=elastic, **TRAINING)
            first = await on.attempt_runs(job)
            saves(on, first, 1)
            urgent = on.gate.submit("org/high", priority="P1", num_nodes=6, resources={"accelerators": "H100:1"})
            waiter = await on.attempt_runs(urgent)
            second = await on.attempt_runs(job, number=2)
            assert told_of(on, job) == [("RESIZED", 16, "Fits"), ("RUNNING", 8, "ShrunkForWaiter")]
            assert (held(on, "org/low"), held(on, "org/high")) == (8, 6)
            assert on.gate.job(job).preemptions == 0
            assert [kind for kind, _ in on.cluster.launches[first].stops] == ["resize"]
            assert on.cluster.launches[second].request.resume_from.endswith("/attempt-1/step-1")
            assert on.cluster.launches[second].request.grad_accum == 2
            saves(on, second, 2)
            on.gate.wish(wishes.resize, job, "main", 12)
            await on.until(lambda: (on.gate.job(job).pending or {}).get("token"), "the growth to wait with its reason")
            assert on.gate.job(job).pending["token"] == "WaitingForCapacity"
            on.cluster.finish(waiter)
            third = await on.attempt_runs(job, number=3)
            assert told_of(on, job)[-1] == ("RUNNING", 12, "Wished")
            on.cluster.finish(third)
            await on.job_is(job, "SUCCEEDED")
            assert held(on, "org") == 0

    whole(scene)


def test_a_revocation_that_leaves_survivors_costs_no_requeue(whole: Any) -> None:
    async def scene(on: Running) -> None:
        on.gate.tenant("org")
        async with on.worker():
            elastic = {"min": 4, "target": 12, "max": 12, "multiple_of": 4, "reshard": True}
            job = on.gate.submit("org", elastic=elastic, **TRAINING)
            first = await on.attempt_runs(job)
            saves(on, first, 1)
            launch = on.cluster.launches[first]
            taken = tuple(rank for rank, node in launch.nodes.items() if node == "n2")
            assert len(taken) == 4
            with on.cluster.changed:
                launch.notice = Notice(NoticeKind.REVOKE, datetime.now(UTC) + timedelta(seconds=20), taken)
                launch.sequence += 1
                on.cluster.changes.append(first)
                on.cluster.changed.notify_all()
            second = await on.attempt_runs(job, number=2)
            assert told_of(on, job) == [("RESIZED", 12, "Fits"), ("RUNNING", 8, "SurvivedLoss")]
            assert set(on.cluster.launches[second].nodes.values()) == {"n1"}
            kinds = rows(
                on.gate.engine, "SELECT kind FROM events WHERE job_id = :job AND attempt_id IS NULL", job=UUID(job)
            )
            assert (on.gate.job(job).revocations, held(on, "org")) == (0, 8)
            assert "REVOKED" not in {row.kind for row in kinds}
            on.cluster.finish(second)
            await on.job_is(job, "SUCCEEDED")

    whole(scene)


def test_a_service_changes_its_members_under_the_same_attempt(whole: Any) -> None:
    async def scene(on: Running) -> None:
        on.gate.tenant("org")
        async with on.worker():
            service = {"kind": "inference", "resources": {"accelerators": "H100:1"}}
            job = on.gate.submit("org", elastic={"min": 1, "target": 2, "max": 16}, **service)
            attempt = await on.attempt_runs(job)
            for size in (5, 3):
                on.gate.wish(wishes.resize, job, "main", size)
                await on.until(partial(has_size, on, job, size), f"{size} members")
                assert len(on.cluster.launches[attempt].living) == size
                assert held(on, "org") == size
            assert on.cluster.launches[attempt].starts == 1
            on.gate.wish(wishes.cancel, job)
            await on.job_is(job, "CANCELLED")

    whole(scene)
