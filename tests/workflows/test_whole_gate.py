"""The whole engine: real Temporal, real PostgreSQL, the live policy, the worker as production runs it; fake backend."""

from typing import Any

import pytest

from gateway.ledger import wishes
from tests.unit.store.world import rows, write
from tests.workflows.whole import Running
from workflows.activities.reconciler import ReconcilerActivity
from workflows.recover import recover
from workflows.worker import connect

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


def test_a_job_is_submitted_and_succeeds(whole: Any) -> None:
    async def scene(on: Running) -> None:
        on.gate.tenant("acme", max_gpus=16)
        async with on.worker():
            job = on.gate.submit("acme")
            attempt = await on.attempt_runs(job)
            on.cluster.finish(attempt)
            await on.job_is(job, "SUCCEEDED")
            assert on.gate.world.held(on.gate.tenants["acme"]) == 0
            failing = on.gate.submit("acme")
            on.cluster.finish(await on.attempt_runs(failing), rank=0, code=7)
            await on.job_is(failing, "FAILED")
            assert on.gate.job(failing).exit_code == 7

    whole(scene)


def test_a_preempted_job_is_queued_again_and_finishes_with_its_retries_untouched(whole: Any) -> None:
    async def scene(on: Running) -> None:
        on.gate.tenant("org")
        on.gate.tenant("org/low")
        high = on.gate.tenant("org/high")
        on.gate.world.allowance(high, "P0", 1000)
        eight = {"accelerators": "H100:8"}
        async with on.worker():
            low = [on.gate.submit("org/low", resources=eight) for _ in range(2)]
            for job in low:
                await on.attempt_runs(job)
            urgent = on.gate.submit("org/high", priority="P0", resources=eight)
            attempt = await on.attempt_runs(urgent)
            preempted = await on.until(
                lambda: rows(on.gate.engine, "SELECT job_id FROM attempts WHERE state = 'PREEMPTED'"), "a victim"
            )
            victim = str(preempted[0].job_id)
            assert victim in low
            on.cluster.finish(attempt)
            await on.job_is(urgent, "SUCCEEDED")
            on.cluster.finish(await on.attempt_runs(victim, number=2))
            await on.job_is(victim, "SUCCEEDED")
            row = on.gate.job(victim)
            assert (row.preemptions, row.failures) == (1, 0)
            other = next(job for job in low if job != victim)
            on.cluster.finish(await on.attempt_runs(other))
            await on.job_is(other, "SUCCEEDED")

    whole(scene)


def test_ql_02_a_worker_that_is_replaced_in_mid_run_changes_nothing(whole: Any) -> None:
    async def scene(on: Running) -> None:
        on.gate.tenant("acme", max_gpus=16)
        async with on.worker():
            done, runs = on.gate.submit("acme"), on.gate.submit("acme")
            on.cluster.finish(await on.attempt_runs(done))
            attempt = await on.attempt_runs(runs)
            await on.job_is(done, "SUCCEEDED")
        while_away = on.gate.submit("acme")
        async with on.worker():
            second = await on.attempt_runs(while_away)
            assert on.gate.world.held(on.gate.tenants["acme"]) == 8
            on.cluster.finish(attempt)
            on.cluster.finish(second)
            for job in (runs, while_away):
                await on.job_is(job, "SUCCEEDED")
            assert {launch.starts for launch in on.cluster.launches.values()} == {1}
            assert len(on.cluster.launches) == 3

    whole(scene)


def test_a_user_cancels_what_runs(whole: Any) -> None:
    async def scene(on: Running) -> None:
        on.gate.tenant("acme")
        async with on.worker():
            job = on.gate.submit("acme")
            await on.attempt_runs(job)
            on.gate.wish(wishes.cancel, job)
            await on.job_is(job, "CANCELLED")

    whole(scene)


def test_an_attempt_that_lost_its_workflow_gets_another(whole: Any) -> None:
    async def scene(on: Running) -> None:
        on.gate.tenant("acme")
        client = await connect(on.address, "default")
        reconciler = ReconcilerActivity(on.gate.store, on.backends, client)
        async with on.worker():
            job, other = on.gate.submit("acme"), on.gate.submit("acme")
            attempt, _ = await on.attempt_runs(job), await on.attempt_runs(other)
            await client.get_workflow_handle(attempt).terminate("as if Temporal had forgotten it")
            found: list[str] = []
            while not found:  # the listing lags behind; a later pass finds it (the scene's own timeout ends this)
                found = await reconciler.restart_orphans(older_than_s=0)
            assert found == [attempt]
            on.cluster.finish(attempt)
            await on.job_is(job, "SUCCEEDED")
            assert on.cluster.launches[attempt].starts == 1

    whole(scene)


def test_recover_adopts_what_runs_settles_what_is_gone_and_ends_what_nobody_knows(whole: Any) -> None:
    async def scene(on: Running) -> None:
        on.gate.tenant("acme", max_gpus=16)
        async with on.worker():
            kept, lost = on.gate.submit("acme"), on.gate.submit("acme")
            kept_attempt, lost_attempt = await on.attempt_runs(kept), await on.attempt_runs(lost)
        on.cluster.vanish(lost_attempt)
        write(on.gate.engine, "UPDATE attempts SET handles = '{}' WHERE id = :id", id=kept_attempt)  # older backup
        client = await connect(on.address, "default")
        report = await recover(on.gate.store, on.backends, client)
        assert report.adopted == [kept_attempt]
        assert report.settled == [lost_attempt]
        assert report.restarted == [kept_attempt]
        assert report.unreachable == {}
        assert report.workflows_ended >= 2
        async with on.worker():
            on.cluster.finish(kept_attempt)
            await on.job_is(kept, "SUCCEEDED")

    whole(scene)
