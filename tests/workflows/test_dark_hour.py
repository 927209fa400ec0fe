"""A backend that does not answer for an hour: nothing is freed, nothing is declared over; then the truth arrives."""

from functools import partial

import pytest

from policies.states import LIVE_ATTEMPT_STATES
from policies.vocabulary import AttemptState, Reason, StopCause
from tests.workflows.books import RECOVERY_S, Books, Wanted
from tests.workflows.skipping import Skipping, World
from tests.workflows.standing import LIVE, put

SAVES = Wanted(checkpoints=True)
DARK_S, LIGHT_S = 100, 3700


def goes_dark(world: World, backend: str = "one", *, from_s: int = DARK_S, until_s: int = LIGHT_S) -> None:
    faults = world.clusters[backend].faults

    def dark(*, now: bool) -> None:
        faults.dark = now

    world.at(from_s, lambda: dark(now=True))
    world.at(until_s, lambda: dark(now=False))


def untouched(world: World) -> None:
    """While it is dark the books say of the attempt what they said before."""
    assert world.calls.of("settle") == []


@pytest.mark.parametrize("code", [0, 7, None])
def test_what_ended_in_the_dark_is_heard_of_in_the_light(skipping: Skipping, books: Books, code: int | None) -> None:
    async def scene(world: World) -> None:
        attempt = await world.attempt()
        cluster = world.clusters["one"]
        goes_dark(world)
        world.at(1000, lambda: cluster.evict(attempt) if code is None else cluster.finish(attempt, rank=0, code=code))
        world.at(LIGHT_S - 10, lambda: untouched(world))
        life = await world.live(attempt)
        reasons = {0: Reason.COMPLETED, 7: Reason.NON_ZERO_EXIT, None: Reason.EVICTED}
        assert (life.ended.reason, life.ended.exit_code) == (reasons[code], code)
        assert LIGHT_S <= life.after_s < LIGHT_S + 3
        (settled,) = world.calls.of("settle")
        end_ms = settled.args[0].ended_ms
        assert end_ms is not None
        assert round((end_ms - settled.at_ms) / 1000) == 1000 - LIGHT_S, "it ended when it ended"

    skipping.play(scene, books)


@pytest.mark.parametrize("state", LIVE)
def test_an_hour_in_the_dark_ends_no_attempt_in_any_state(skipping: Skipping, books: Books, state: str) -> None:
    """Not the wait in the backend, not the grace, not the recovery time: all of them run only while it answers."""
    assert set(LIVE) == LIVE_ATTEMPT_STATES

    async def scene(world: World) -> None:
        attempt = await world.attempt(SAVES)
        await put(world, attempt, state)
        cluster = world.clusters["one"]
        goes_dark(world, from_s=0)
        world.at(LIGHT_S - 10, lambda: untouched(world))
        if state == AttemptState.PENDING:
            world.at(LIGHT_S + 1, lambda: cluster.run(attempt))
        cluster.pending = False  # a launch that only comes to be in the light runs at once
        world.at(LIGHT_S + 200, lambda: cluster.finish(attempt))
        life = await world.live(attempt)
        assert life.ended.reason == (Reason.PREEMPTED if state == AttemptState.STOPPING else Reason.COMPLETED)
        assert life.after_s >= LIGHT_S

    skipping.play(scene, books, stop_code=None)


def test_a_stop_asked_in_the_dark_is_told_in_the_light_with_its_whole_grace(skipping: Skipping, books: Books) -> None:
    async def scene(world: World) -> None:
        attempt = await world.attempt(SAVES)
        goes_dark(world)
        world.at(200, lambda: books.store.ask_stop(attempt, StopCause.PREEMPT, 120))
        world.at(LIGHT_S - 10, lambda: untouched(world))
        life = await world.live(attempt)
        assert life.ended.reason == Reason.PREEMPTED
        (told,) = [stop for stop in world.stops() if stop[0] >= LIGHT_S]
        assert told[1:] == ("notice", 120, "preempt")
        assert told[0] <= LIGHT_S + 61
        assert told[0] + 120 + RECOVERY_S <= life.after_s + 1

    skipping.play(scene, books, stop_code=None)


def test_a_time_limit_that_passes_in_the_dark_does_not_outlaw_an_end_that_came_before_it(
    skipping: Skipping, books: Books
) -> None:
    async def scene(world: World) -> None:
        attempt = await world.attempt(Wanted(checkpoints=True, max_duration_s=1800))
        goes_dark(world)
        world.at(1000, lambda: world.clusters["one"].finish(attempt))
        life = await world.live(attempt)
        assert life.ended.reason == Reason.COMPLETED
        assert world.stops() == []

    skipping.play(scene, books)


def test_a_gang_is_not_given_up_for_a_part_that_nobody_can_see(skipping: Skipping, books: Books) -> None:
    """Part one runs, part two was started and its backend is dark: gang_timeout waits until it answers."""

    async def scene(world: World) -> None:
        attempt = await world.attempt(Wanted(gang_timeout_s=300))
        world.clusters["two"].pending = True
        goes_dark(world, "two", from_s=10)
        world.at(60, lambda: world.clusters["two"].run(attempt))
        for cluster in world.clusters.values():
            world.at(LIGHT_S + 100, partial(cluster.finish, attempt))
        life = await world.live(attempt)
        assert life.ended.reason == Reason.COMPLETED
        assert world.stops("one") == world.stops("two") == []

    skipping.play(scene, books, "one", "two")
