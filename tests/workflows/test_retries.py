"""What follows an attempt: retry classes with their back-off, 75 without progress, preemptions that cost no retry.

On PostgreSQL, in skipped time.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine

from policies.reasons import VERDICTS
from policies.settings import PolicySettings
from policies.vocabulary import Reason, RetryClass, StopCause
from tests.fakes.faults import Fault
from tests.unit.store.world import scalar
from tests.workflows.books import LedgerBooks, Wanted
from tests.workflows.skipping import Life, Skipping, World

SETTINGS = PolicySettings()


@pytest.fixture
def ledger(engine: Engine, database_url: str) -> Iterator[LedgerBooks]:
    made = LedgerBooks(engine, database_url, policy=SETTINGS)
    yield made
    made.close()


async def next_attempt(world: World, ledger: LedgerBooks, job: str, happens: Callable[[str], None]) -> Life:
    """Wait until the job may be tried again, admit it, and let its attempt live."""
    row = await world.do(lambda: ledger.gate.job(job))
    if row.not_before is not None and (left := (row.not_before - world.clock.now()).total_seconds()) > 0:
        await world.env.sleep(left + 0.1)
    attempt = await world.do(lambda: ledger.admit(job))
    happens(attempt)
    return await world.live(attempt)


async def delay_s(world: World, ledger: LedgerBooks, job: str) -> int | None:
    """How long the job was told to wait at the end of its last attempt."""
    query = "SELECT extract(epoch FROM j.not_before - e.at) FROM jobs j JOIN events e ON e.job_id = j.id"
    query += " WHERE j.id = :job AND e.kind = 'QUEUED' ORDER BY e.id DESC LIMIT 1"
    found = await world.do(lambda: scalar(ledger.gate.engine, query, job=job))
    return None if found is None else round(found)


def test_failures_of_its_own_wait_twice_as_long_each_and_end_it_at_last(
    skipping: Skipping, ledger: LedgerBooks
) -> None:
    async def scene(world: World) -> None:
        job = await world.do(lambda: ledger.submit(Wanted(retry_max=2)))
        cluster = world.clusters["one"]
        delays = []
        for _ in range(3):
            life = await next_attempt(
                world, ledger, job, lambda attempt: world.at(30, partial(cluster.finish, attempt, rank=0, code=7))
            )
            assert life.ended.reason == Reason.NON_ZERO_EXIT
            delays.append(await delay_s(world, ledger, job) if life.ended.job_state == "QUEUED" else None)
        base_s = SETTINGS.backoff_base_ms // 1000
        assert delays == [base_s, 2 * base_s, None]
        row = await world.do(lambda: ledger.gate.job(job))
        assert (row.state, row.reason, row.failures, row.exit_code) == ("FAILED", "NonZeroExit", 3, 7)

    skipping.play(scene, ledger)


def _ends(world: World, how: RetryClass) -> Callable[[str], None]:
    """One way to end for each retry class that a workflow can bring about."""
    cluster = world.clusters["one"]
    acts: dict[RetryClass, Callable[[str], Any]] = {
        RetryClass.USER: lambda attempt: world.at(30, partial(cluster.finish, attempt, rank=0, code=1)),
        RetryClass.INFRASTRUCTURE: lambda attempt: world.at(30, partial(cluster.evict, attempt, Reason.NODE_LOST)),
        RetryClass.REQUEUE: lambda _attempt: cluster.faults.inject("start", Fault.REFUSED),
        RetryClass.FINAL: lambda attempt: world.at(30, partial(cluster.finish, attempt)),
    }
    return acts[how]


@pytest.mark.parametrize("how", list(RetryClass))
def test_every_retry_class_has_its_delay_and_its_price(
    skipping: Skipping, ledger: LedgerBooks, how: RetryClass
) -> None:
    async def scene(world: World) -> None:
        job = await world.do(lambda: ledger.submit(Wanted(retry_max=1)))
        life = await next_attempt(world, ledger, job, _ends(world, how))
        assert VERDICTS[Reason(life.ended.reason)].retry is how
        row = await world.do(lambda: ledger.gate.job(job))
        expected = {
            RetryClass.USER: ("QUEUED", 1, 0, SETTINGS.backoff_base_ms // 1000),
            RetryClass.INFRASTRUCTURE: ("QUEUED", 0, 1, None),
            RetryClass.REQUEUE: ("QUEUED", 0, 0, SETTINGS.refused_delay_ms // 1000),
            RetryClass.FINAL: ("SUCCEEDED", 0, 0, None),
        }[how]
        waits_s = await delay_s(world, ledger, job) if row.state == "QUEUED" else None
        assert (row.state, row.failures, row.revocations, waits_s) == expected

    skipping.play(scene, ledger)


def test_75_twice_without_a_newer_checkpoint_is_no_progress(skipping: Skipping, ledger: LedgerBooks) -> None:
    async def scene(world: World) -> None:
        job = await world.do(lambda: ledger.submit(Wanted(checkpoints=True, retry_max=3)))
        cluster = world.clusters["one"]
        reasons = []
        for _ in range(2):
            life = await next_attempt(
                world, ledger, job, lambda attempt: world.at(30, partial(cluster.finish, attempt, rank=0, code=75))
            )
            reasons.append((life.ended.reason, life.ended.job_state))
        assert reasons == [(Reason.SAVED_AND_EXITED, "QUEUED"), (Reason.NO_PROGRESS, "FAILED")]

    skipping.play(scene, ledger)


def test_ql_06_five_preemptions_cost_none_of_three_retries(skipping: Skipping, ledger: LedgerBooks) -> None:
    """QL-06 (i)."""

    async def scene(world: World) -> None:
        job = await world.do(lambda: ledger.submit(Wanted(checkpoints=True, retry_max=3)))
        for _ in range(5):
            life = await next_attempt(
                world,
                ledger,
                job,
                lambda attempt: world.at(30, partial(ledger.store.ask_stop, attempt, StopCause.PREEMPT, 60)),
            )
            assert (life.ended.reason, life.ended.job_state) == (Reason.PREEMPTED, "QUEUED")
        cluster = world.clusters["one"]
        await next_attempt(world, ledger, job, lambda attempt: world.at(30, partial(cluster.finish, attempt)))
        row = await world.do(lambda: ledger.gate.job(job))
        assert (row.state, row.failures, row.preemptions) == ("SUCCEEDED", 0, 5)

    skipping.play(scene, ledger)
