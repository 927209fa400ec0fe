"""Place before evict in skipped time, on PostgreSQL: when victims are told; a waiter that cannot be placed."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from policies.decisions import Act, Preempt, Why
from policies.vocabulary import AttemptState, Reason, StopCause
from tests.fakes.backend import FakeBackend
from tests.fakes.faults import Fault
from tests.unit.store.world import live
from tests.workflows.books import LedgerBooks, Wanted
from tests.workflows.skipping import Skipping, World

PLACE_S = 60


@pytest.fixture
def ledger(engine: Engine, database_url: str) -> Iterator[LedgerBooks]:
    made = LedgerBooks(engine, database_url)
    yield made
    made.close()


def runs(world: World, books: LedgerBooks) -> str:
    """An attempt that runs at the only backend."""
    victim = books.attempt(Wanted(checkpoints=True))
    backend = FakeBackend(world.clusters["one"], name="one")
    books.store.mark(victim, AttemptState.PENDING)
    handle = backend.prepare(books.store.launch_request(victim, "one"))
    books.store.prepared(victim, "one", handle.native)
    backend.start(handle)
    books.store.started(victim, "one")
    books.store.mark(victim, AttemptState.RUNNING)
    return victim


def waits_for(victim: str, books: LedgerBooks) -> str:
    """A waiter to which the arbiter has given the victim's room."""
    job = books.submit(Wanted())
    cycle = books.store.cycle()
    version = live(cycle, victim).version
    preempt = Preempt(victim, version, job, StopCause.PREEMPT, 120_000, credit=True, why=Why("CheapestSet"))
    admit = books.an_admit(cycle, job, victims=(victim,))
    report = books.gate.commit(cycle, Act(admits=(admit,), preempts=(preempt,)), epoch=books.epoch)
    assert report.preempted == (victim,)
    return books.gate.attempt(job)


def calls(world: World) -> list[tuple[str, str]]:
    """What the backend was asked to do about whom, in order."""
    return [call for call in world.clusters["one"].calls if call[0] in {"prepare", "start", "stop", "abort"}]


def test_the_victim_is_told_after_the_waiter_is_placed_and_the_waiter_starts_after_it_has_gone(
    skipping: Skipping, ledger: LedgerBooks
) -> None:
    async def scene(world: World) -> None:
        victim = await world.do(lambda: runs(world, ledger))
        waiter = await world.do(lambda: waits_for(victim, ledger))
        world.at(500, lambda: world.clusters["one"].finish(waiter))
        life = await world.live(waiter)
        assert life.ended.reason == Reason.COMPLETED
        assert life.after_s < 503
        mine = [call for call in calls(world) if call in {("prepare", waiter), ("stop", victim), ("start", waiter)}]
        assert mine == [("prepare", waiter), ("stop", victim), ("start", waiter)]
        assert ledger.ended(victim).state == "PREEMPTED"
        assert [(mode, grace) for _, mode, grace, _ in world.stops()] == [("notice", 120)]

    skipping.play(scene, ledger)


def test_a_backend_that_does_not_answer_keeps_the_victims_promised_for_a_minute_and_no_longer(
    skipping: Skipping, ledger: LedgerBooks
) -> None:
    async def scene(world: World) -> None:
        victim = await world.do(lambda: runs(world, ledger))
        waiter = await world.do(lambda: waits_for(victim, ledger))
        faults = world.clusters["one"].faults
        seen: dict[int, tuple[str, bool]] = {}

        def look(at_s: int) -> None:
            lease = ledger.store.load_attempt(waiter)
            assert lease is not None
            seen[at_s] = (lease.lease_state, live(ledger.store.cycle(), victim).stopping is None)

        faults.inject("prepare", Fault.DARK, 1_000)
        faults.inject("abort", Fault.DARK, 1)  # it does not even say that it has nothing
        world.at(PLACE_S - 20, lambda: look(PLACE_S - 20))
        world.at(PLACE_S + 70, lambda: look(PLACE_S + 70))
        life = await world.live(waiter)
        assert (life.ended.reason, life.ended.state) == (Reason.BACKEND_WAIT_TIMEOUT, "STOPPED")
        assert life.ended.job_state == "QUEUED"
        assert seen[PLACE_S - 20] == ("contingent", False)
        assert seen.get(PLACE_S + 70, ("voided", True)) == ("voided", True)
        assert PLACE_S <= life.after_s < PLACE_S + 130
        view = await world.do(lambda: ledger.store.load_attempt(victim))
        assert view is not None
        assert (view.state, view.stop_cause) == ("RUNNING", "")
        assert world.stops() == []

    skipping.play(scene, ledger)


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.NO_CAPACITY])
def test_a_waiter_that_is_refused_costs_nobody_anything(skipping: Skipping, ledger: LedgerBooks, fault: Fault) -> None:
    async def scene(world: World) -> None:
        victim = await world.do(lambda: runs(world, ledger))
        waiter = await world.do(lambda: waits_for(victim, ledger))
        world.clusters["one"].faults.inject("prepare", fault)
        life = await world.live(waiter)
        assert (life.ended.reason, life.ended.job_state) == (Reason.BACKEND_REFUSED, "QUEUED")
        assert ledger.ended(victim).state == "RUNNING"
        assert world.stops() == []

    skipping.play(scene, ledger)


def test_ql_04_a_waiter_that_is_cancelled_while_it_is_being_placed_tells_nobody(
    skipping: Skipping, ledger: LedgerBooks
) -> None:
    async def scene(world: World) -> None:
        victim = await world.do(lambda: runs(world, ledger))
        waiter = await world.do(lambda: waits_for(victim, ledger))
        world.clusters["one"].faults.inject("prepare", Fault.DARK, 3)
        world.at(1, lambda: ledger.cancel(waiter))
        life = await world.live(waiter)
        assert (life.ended.reason, life.ended.job_state) == (Reason.USER_CANCELLED, "CANCELLED")
        assert ledger.ended(victim).state == "RUNNING"
        assert world.stops() == []

    skipping.play(scene, ledger)
