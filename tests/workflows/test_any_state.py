"""A workflow started from a row in ANY state, and a cancel in every state of attempt and job, in skipped time."""

import pytest

from gateway.ledger import wishes
from policies.reasons import VERDICTS
from policies.states import ATTEMPT_EDGES, JOB_EDGES, LIVE_ATTEMPT_STATES, LIVE_JOB_STATES
from policies.vocabulary import AttemptState, JobState, Reason, StopCause
from tests.workflows.books import GRACE_S, RECOVERY_S, SAVE_S, TERM_S, Books, LedgerBooks, Wanted
from tests.workflows.skipping import Skipping, World
from tests.workflows.standing import LIVE, PUT, put
from workflows.messages import EndRequest

SAVES = Wanted(checkpoints=True)
ENDED = sorted(set(AttemptState) - LIVE_ATTEMPT_STATES)


def test_every_live_state_has_a_place_to_begin_from() -> None:
    assert set(PUT) == LIVE_ATTEMPT_STATES


@pytest.mark.parametrize("state", LIVE)
def test_a_workflow_takes_over_from_any_live_state(skipping: Skipping, books: Books, state: str) -> None:
    async def scene(world: World) -> None:
        attempt = await world.attempt(SAVES)
        await put(world, attempt, state)
        cluster = world.clusters["one"]
        cluster.pending = False
        if state == AttemptState.PENDING:
            world.at(5, lambda: cluster.run(attempt))
        code = 75 if state == AttemptState.STOPPING else 0
        world.at(100, lambda: cluster.finish(attempt, code=code))
        life = await world.live(attempt)
        expected = Reason.PREEMPTED if state == AttemptState.STOPPING else Reason.COMPLETED
        assert life.ended.reason == expected
        assert 100 <= life.after_s < 103, "the end was heard of when it came"
        assert cluster.launches[attempt].starts == 1
        assert len(world.calls.of("prepare")) <= 1

    skipping.play(scene, books, stop_code=None)


@pytest.mark.parametrize("state", LIVE)
def test_a_stop_that_was_asked_while_nobody_looked_is_carried_out(skipping: Skipping, books: Books, state: str) -> None:
    """The deadline counts from when it was told, also by whom nobody knows any more."""

    async def scene(world: World) -> None:
        attempt = await world.attempt(SAVES)
        await put(world, attempt, state)
        await world.do(lambda: books.store.ask_stop(attempt, StopCause.PREEMPT, GRACE_S))
        life = await world.live(attempt)
        assert life.ended.reason == Reason.PREEMPTED
        begun = state not in {AttemptState.RESERVED, AttemptState.PENDING}
        if state == AttemptState.STOPPING:
            assert world.stops() == []
        elif begun:
            assert [(mode, grace) for _, mode, grace, _ in world.stops()] == [("notice", GRACE_S)]
        due_s = GRACE_S + RECOVERY_S if begun else 0
        assert due_s - 2 <= life.after_s < due_s + 3

    skipping.play(scene, books, stop_code=None)


@pytest.mark.parametrize("state", ENDED)
def test_ql_02_from_an_ended_state_it_leaves_at_once_and_asks_nobody(
    skipping: Skipping, books: Books, state: str
) -> None:
    """The job is where such an end leaves it: at its own end, or queued again."""
    reason = next(reason for reason, verdict in VERDICTS.items() if verdict.attempt == state)

    async def scene(world: World) -> None:
        attempt = await world.attempt(SAVES)
        begun = AttemptState.RESERVED if state == AttemptState.REFUSED else AttemptState.RUNNING
        await put(world, attempt, begun)
        await world.do(lambda: books.store.settle(EndRequest(attempt, reason.value)))
        before = await world.do(lambda: books.ended(attempt))
        assert before.state == state
        world.calls.made.clear()
        life = await world.live(attempt)
        assert life.ended == before
        assert {call.name for call in world.calls.made} == {"load_attempt"}

    skipping.play(scene, books)


@pytest.mark.parametrize("state", LIVE)
@pytest.mark.parametrize("saves", [True, False])
def test_a_cancel_in_every_live_state(skipping: Skipping, books: Books, state: str, *, saves: bool) -> None:
    """The job's own seconds, from the cancel on, unless a stop that runs already ends sooner; then the job is over."""

    async def scene(world: World) -> None:
        attempt = await world.attempt(Wanted(checkpoints=saves))
        await put(world, attempt, state)
        world.at(20, lambda: books.cancel(attempt))
        if state == AttemptState.RESERVED:
            world.clusters["one"].pending = True
        life = await world.live(attempt)
        assert life.ended.reason == Reason.USER_CANCELLED
        assert life.ended.state == "STOPPED"
        assert life.ended.job_state in {"", "CANCELLED"}
        running = state not in {AttemptState.RESERVED, AttemptState.PENDING}
        grace_s = min(SAVE_S, GRACE_S) if saves else TERM_S
        ((at, _, grace, kind),) = world.stops()
        assert (at, grace, kind) == (20, grace_s, "stop")
        due_s = 20 + grace_s + RECOVERY_S if running else 20
        assert due_s - 1 <= life.after_s < due_s + 3

    skipping.play(scene, books, stop_code=None)


# -- the job's states: on the ledger alone, for in memory there are no jobs


def _with_job_in(books: LedgerBooks, world: World, state: JobState) -> tuple[str, str]:
    """A job in this state, and its newest attempt ("": none yet)."""
    job = books.submit(SAVES)
    if state is JobState.QUEUED:
        return job, ""
    attempt = books.admit(job)
    begun = {
        JobState.ADMITTED: AttemptState.PENDING,
        JobState.RUNNING: AttemptState.RUNNING,
        JobState.STOPPING: AttemptState.STOPPING,
    }[state]
    PUT[begun](world, attempt)
    return job, attempt


@pytest.fixture
def ledger(books: Books) -> LedgerBooks:
    if not isinstance(books, LedgerBooks):
        pytest.skip("in memory there are no jobs")
    return books


@pytest.mark.parametrize("state", sorted(LIVE_JOB_STATES))
@pytest.mark.parametrize("books", ["postgres"], indirect=True)
def test_a_cancel_in_every_live_state_of_the_job(skipping: Skipping, ledger: LedgerBooks, state: JobState) -> None:
    async def scene(world: World) -> None:
        job, attempt = await world.do(lambda: _with_job_in(ledger, world, state))
        assert (await world.do(lambda: ledger.gate.job(job))).state == state
        await world.do(lambda: ledger.gate.wish(wishes.cancel, job))
        if attempt:
            life = await world.live(attempt)
            assert life.ended.reason == Reason.USER_CANCELLED
        row = await world.do(lambda: ledger.gate.job(job))
        assert (row.state, row.reason, row.failures, row.preemptions) == ("CANCELLED", "UserCancelled", 0, 0)

    skipping.play(scene, ledger)


def test_the_tables_of_states_are_those_that_are_walked_here() -> None:
    """A state that is neither live nor an end would be walked by none of the tests above."""
    assert set(LIVE) | set(ENDED) == set(ATTEMPT_EDGES)
    assert {state for state, after in JOB_EDGES.items() if after} == LIVE_JOB_STATES
