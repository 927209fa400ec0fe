"""A gang over two backends: whatever happens to one part, the gang is whole or leaves nothing. In skipped time."""

from functools import partial

import pytest

from policies.states import LIVE_ATTEMPT_STATES
from policies.vocabulary import Reason, StopCause
from tests.fakes.faults import Fault
from tests.workflows.books import BACKEND_WAIT_S, RECOVERY_S, TERM_S, Books, LedgerBooks, Wanted
from tests.workflows.skipping import Skipping, World

GANG = Wanted(gang_timeout_s=300)
SAVING_GANG = Wanted(gang_timeout_s=300, checkpoints=True)


def nothing_is_left(world: World, attempt: str) -> None:
    for name, cluster in world.clusters.items():
        launch = cluster.launches.get(attempt)
        assert launch is None or launch.phase == "Ended", f"{name} still has it"
    assert attempt is not None
    assert len(world.calls.of("settle")) == 1


def test_one_backends_start_fails_and_the_other_part_goes_back(skipping: Skipping, books: Books) -> None:
    async def scene(world: World) -> None:
        attempt = await world.attempt(GANG)
        world.clusters["two"].faults.inject("start", Fault.NO_CAPACITY)
        life = await world.live(attempt)
        assert life.ended.reason == Reason.GANG_ROLLED_BACK
        assert life.ended.job_state in {"", "QUEUED"}
        assert [(mode, grace) for _, mode, grace, _ in world.stops("one")] == [("notice", TERM_S)]
        nothing_is_left(world, attempt)

    skipping.play(scene, books, "one", "two")


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.LOST_REQUEST, Fault.DARK, Fault.THROTTLED, Fault.BROKEN])
def test_prepare_of_the_second_part_times_out_and_it_is_asked_again(
    skipping: Skipping, books: Books, fault: Fault
) -> None:
    """Nothing has started meanwhile, and there is one object each."""

    async def scene(world: World) -> None:
        attempt = await world.attempt(GANG)
        world.clusters["two"].faults.inject("prepare", fault, times=6)
        for cluster in world.clusters.values():
            world.at(120, partial(cluster.finish, attempt))
        life = await world.live(attempt)
        assert life.ended.reason == Reason.COMPLETED
        started = [world.since_s(call) for call in world.calls.of("start")]
        prepared = [world.since_s(call) for call in world.calls.of("prepared")]
        assert min(started) >= max(prepared), "no part starts before all are prepared"
        assert {cluster.launches[attempt].starts for cluster in world.clusters.values()} == {1}

    skipping.play(scene, books, "one", "two")


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.THROTTLED, Fault.BROKEN])
@pytest.mark.parametrize("operation", ["prepare", "start"])
def test_a_part_that_can_never_be_prepared_or_started_is_given_up_in_time(
    skipping: Skipping, books: Books, operation: str, fault: Fault
) -> None:
    """It answers, and never with a yes: the attempt is withdrawn, everywhere, and the job is tried elsewhere."""

    async def scene(world: World) -> None:
        attempt = await world.attempt(GANG)
        world.clusters["two"].faults.inject(operation, fault, times=10_000)
        life = await world.live(attempt)
        assert life.ended.reason in {Reason.BACKEND_WAIT_TIMEOUT, Reason.GANG_TIMEOUT}
        limit_s = BACKEND_WAIT_S if operation == "prepare" else GANG.gang_timeout_s
        assert limit_s <= life.after_s <= limit_s + 130
        assert life.ended.job_state in {"", "QUEUED"}
        nothing_is_left(world, attempt)

    skipping.play(scene, books, "one", "two")


def test_a_part_that_never_comes_up_ends_with_gang_timeout(skipping: Skipping, books: Books) -> None:
    async def scene(world: World) -> None:
        attempt = await world.attempt(GANG)
        world.clusters["two"].pending = True
        life = await world.live(attempt)
        assert life.ended.reason == Reason.GANG_TIMEOUT
        assert [at for at, _, _, _ in world.stops("one")] == [300]
        assert 300 <= life.after_s < 303 + TERM_S
        nothing_is_left(world, attempt)

    skipping.play(scene, books, "one", "two")


def test_a_first_part_that_never_comes_up_is_withdrawn_and_the_second_never_starts(
    skipping: Skipping, books: Books
) -> None:
    async def scene(world: World) -> None:
        attempt = await world.attempt(GANG)
        world.clusters["one"].pending = True
        life = await world.live(attempt)
        assert life.ended.reason == Reason.BACKEND_WAIT_TIMEOUT
        assert [call.of for call in world.calls.of("start")] == ["one"]
        assert BACKEND_WAIT_S <= life.after_s < BACKEND_WAIT_S + 3
        assert [call.args[0] for call in world.calls.of("rest_pool")] == ["pool-one"]
        nothing_is_left(world, attempt)

    skipping.play(scene, books, "one", "two")


@pytest.mark.parametrize(("gone", "other"), [("one", "two"), ("two", "one")])
def test_k8_06_one_parts_group_is_gone_and_its_sister_is_stopped(
    skipping: Skipping, books: Books, gone: str, other: str
) -> None:
    """K8-06 (iii) and (iv): whichever side loses its member, the other one is told and the gang ends once."""

    async def scene(world: World) -> None:
        attempt = await world.attempt(SAVING_GANG)
        world.at(1000, lambda: world.clusters[gone].evict(attempt, Reason.EVICTED))
        life = await world.live(attempt)
        assert (life.ended.reason, life.ended.state) == (Reason.EVICTED, "REVOKED")
        assert [(at, grace) for at, _, grace, _ in world.stops(other)] == [(1000, TERM_S)]
        assert life.ended.job_state in {"", "QUEUED"}
        nothing_is_left(world, attempt)

    skipping.play(scene, books, "one", "two")


def test_k8_06_a_sister_that_runs_while_the_other_never_becomes_ready(skipping: Skipping, books: Books) -> None:
    """K8-06 (iv): the pod is there and never Ready; gang_timeout decides, the release waits for the sister's end."""

    async def scene(world: World) -> None:
        attempt = await world.attempt(GANG)
        world.clusters["two"].pending = True
        life = await world.live(attempt)
        assert life.ended.reason == Reason.GANG_TIMEOUT
        due_s = 300 + TERM_S + RECOVERY_S
        assert due_s <= life.after_s < due_s + 3, "the first part does not hear: grace and recovery, and no day longer"
        nothing_is_left(world, attempt)

    skipping.play(scene, books, "one", "two", stop_code=None)


@pytest.mark.parametrize("during", ["run", "set_up"])
def test_sp_08_a_member_that_is_gone_takes_the_gang_with_it_within_two_polls(
    skipping: Skipping, books: Books, during: str
) -> None:
    """SP-08: no exit code, the head says RUNNING, nudges are lost; revoked and no failure, during set-up too."""

    async def scene(world: World) -> None:
        world.deaf = True
        attempt = await world.attempt(SAVING_GANG)
        world.clusters["two"].pending = during == "set_up"
        gone_s = 200
        world.at(gone_s, lambda: world.clusters["two"].evict(attempt, Reason.SPOT_REVOKED))
        life = await world.live(attempt)
        assert (life.ended.reason, life.ended.state) == (Reason.SPOT_REVOKED, "REVOKED")
        ((told_s, _, _, _),) = world.stops("one")
        assert told_s <= gone_s + 2 * 60
        nothing_is_left(world, attempt)
        if isinstance(books, LedgerBooks):
            ledger = books
            row = await world.do(lambda: ledger.gate.job(ledger.job_of(attempt)))
            assert (row.state, row.failures, row.revocations) == ("QUEUED", 0, 1)

    skipping.play(scene, books, "one", "two")


@pytest.mark.parametrize("operation", ["stop", "abort"])
def test_a_rollback_that_is_hit_by_darkness_goes_on_in_the_light_and_frees_nothing_before(
    skipping: Skipping, books: Books, operation: str
) -> None:
    async def scene(world: World) -> None:
        attempt = await world.attempt(GANG)
        world.clusters["two"].faults.inject("start", Fault.NO_CAPACITY)
        world.clusters["one" if operation == "stop" else "two"].faults.inject(operation, Fault.DARK, times=8)
        life = await world.live(attempt)
        assert life.ended.reason == Reason.GANG_ROLLED_BACK
        tries = world.calls.of(operation)
        assert len(tries) >= 9
        assert world.calls.of("settle")[0].at_ms >= tries[-1].at_ms
        nothing_is_left(world, attempt)

    skipping.play(scene, books, "one", "two")


@pytest.mark.parametrize("cause", [StopCause.PREEMPT, StopCause.CANCEL])
def test_a_stop_while_the_second_part_has_not_started_takes_both(
    skipping: Skipping, books: Books, cause: StopCause
) -> None:
    async def scene(world: World) -> None:
        attempt = await world.attempt(GANG)
        world.clusters["one"].pending = True  # so that the second never starts
        ask = {
            StopCause.PREEMPT: lambda: books.store.ask_stop(attempt, StopCause.PREEMPT, 60),
            StopCause.CANCEL: lambda: books.cancel(attempt),
        }
        world.at(30, ask[cause])
        life = await world.live(attempt)
        assert life.ended.reason == {"preempt": Reason.PREEMPTED, "cancel": Reason.USER_CANCELLED}[cause]
        assert life.ended.state not in LIVE_ATTEMPT_STATES
        assert 30 <= life.after_s < 33
        nothing_is_left(world, attempt)

    skipping.play(scene, books, "one", "two")
