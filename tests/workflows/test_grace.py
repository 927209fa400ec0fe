"""Notice, grace, save and what comes second, in skipped time, on the rows in memory and on PostgreSQL."""

from datetime import timedelta

import pytest

from backends.types import NoticeKind
from policies.vocabulary import Reason, StopCause
from tests.workflows.books import GRACE_S, RECOVERY_S, SAVE_S, TERM_S, Books, Wanted
from tests.workflows.skipping import Skipping, World

SAVES = Wanted(checkpoints=True)


def preempt(world: World, attempt: str, grace_s: int = GRACE_S) -> bool:
    return world.books.store.ask_stop(attempt, StopCause.PREEMPT, grace_s)


def revoke(world: World, attempt: str, within_s: int, backend: str = "one") -> None:
    """The provider says that it takes the machine in so many seconds."""
    world.clusters[backend].notice(attempt, world.clock.now() + timedelta(seconds=within_s))


def test_it_runs_for_two_hours_and_succeeds(skipping: Skipping, books: Books) -> None:
    async def scene(world: World) -> None:
        attempt = await world.attempt()
        world.at(7200, lambda: world.clusters["one"].finish(attempt))
        life = await world.live(attempt)
        assert (life.ended.reason, life.ended.state) == (Reason.COMPLETED, "SUCCEEDED")
        assert 7200 <= life.after_s < 7203

    skipping.play(scene, books)


@pytest.mark.parametrize("cause", [StopCause.PREEMPT, StopCause.RECLAIM, StopCause.DRAIN, StopCause.BUDGET])
def test_k8_06_a_grace_that_is_over_gives_the_capacity_back_once_after_the_recovery_time(
    skipping: Skipping, books: Books, cause: StopCause
) -> None:
    """K8-06 (i): it runs on and on; the backend has confirmed the stop, and that is all that it says."""

    async def scene(world: World) -> None:
        attempt = await world.attempt(SAVES)
        world.at(100, lambda: books.store.ask_stop(attempt, cause, 120))
        life = await world.live(attempt)
        assert life.ended.state in {"PREEMPTED", "REVOKED", "STOPPED"}
        assert [(at, mode, grace) for at, mode, grace, _ in world.stops()] == [(100, "notice", 120)]
        due_s = 100 + 120 + RECOVERY_S
        assert due_s <= life.after_s < due_s + 3
        (aborted_s,) = world.aborted_s()
        assert due_s <= aborted_s <= life.after_s + 1, "taken away, and only then given back"
        assert len(world.calls.of("settle")) == 1

    skipping.play(scene, books, stop_code=None)


def test_k8_06_within_its_grace_a_container_that_lives_keeps_its_capacity(skipping: Skipping, books: Books) -> None:
    """K8-06 (ii), (v): it leaves by itself at T+20; what the backend says of it after the release changes nothing."""

    async def scene(world: World) -> None:
        attempt = await world.attempt(SAVES)
        world.at(100, lambda: preempt(world, attempt, 120))
        world.at(120, lambda: world.clusters["one"].finish(attempt, rank=0, code=75))
        life = await world.live(attempt)
        assert (life.ended.reason, life.ended.exit_code) == (Reason.PREEMPTED, 75)
        assert 120 <= life.after_s < 123
        assert world.aborted_s() == []
        before = await world.do(lambda: books.ended(attempt))
        await world.do(lambda: world.clusters["one"].vanish(attempt))
        await world.do(world.follow)
        assert await world.do(lambda: books.ended(attempt)) == before

    skipping.play(scene, books, stop_code=None)


def test_a_save_that_takes_too_long_ends_with_the_grace_and_is_no_failure(skipping: Skipping, books: Books) -> None:
    """The agent kills at the end of the grace; the half-written save counts for nothing, the job's retries neither."""

    async def scene(world: World) -> None:
        attempt = await world.attempt(SAVES)
        world.at(50, lambda: preempt(world, attempt, 90))
        world.at(140, lambda: world.clusters["one"].expire(attempt))
        life = await world.live(attempt)
        assert (life.ended.reason, life.ended.exit_code) == (Reason.PREEMPTED, 137)
        assert 140 <= life.after_s < 143

    skipping.play(scene, books, stop_code=None)


def test_a_save_on_wish_that_never_ends_keeps_nobody_from_anything(skipping: Skipping, books: Books) -> None:
    async def scene(world: World) -> None:
        attempt = await world.attempt(SAVES)
        world.at(10, lambda: books.checkpoint(attempt))
        world.at(20, lambda: books.checkpoint(attempt))
        world.at(4000, lambda: preempt(world, attempt))
        life = await world.live(attempt)
        assert life.ended.reason == Reason.PREEMPTED
        assert [round(world.since_s(call)) for call in world.calls.of("notify")] == [10, 20], "each wish once"
        assert world.stops() == [(4000, "notice", GRACE_S, "preempt")]

    skipping.play(scene, books)


def test_a_second_notice_with_a_shorter_deadline_wins_while_it_saves(skipping: Skipping, books: Books) -> None:
    """Preempted with five minutes; after one the provider wants the machine in thirty seconds."""

    async def scene(world: World) -> None:
        attempt = await world.attempt(SAVES)
        world.at(100, lambda: preempt(world, attempt, 300))
        world.at(160, lambda: revoke(world, attempt, 30))
        life = await world.live(attempt)
        assert life.ended.reason == Reason.PREEMPTED, "who asked first stays the cause"
        first, second, *more = world.stops()
        assert first == (100, "notice", 300, "preempt")
        assert (second[0], second[1], second[3]) == (160, "notice", "revoke")
        assert 28 <= second[2] <= 30
        assert more == [], "told once, and not at every reading"
        due_s = 190 + RECOVERY_S
        assert due_s - 2 <= life.after_s < due_s + 3

    skipping.play(scene, books, stop_code=None)


def test_a_second_notice_with_a_longer_deadline_never_extends(skipping: Skipping, books: Books) -> None:
    async def scene(world: World) -> None:
        attempt = await world.attempt(SAVES)
        world.at(100, lambda: preempt(world, attempt, 60))
        world.at(110, lambda: revoke(world, attempt, 600))
        world.at(120, lambda: books.store.ask_stop(attempt, StopCause.DRAIN, 900))
        life = await world.live(attempt)
        assert life.ended.reason == Reason.PREEMPTED
        assert world.stops() == [(100, "notice", 60, "preempt")]
        due_s = 160 + RECOVERY_S
        assert due_s <= life.after_s < due_s + 3

    skipping.play(scene, books, stop_code=None)


def test_of_two_notices_of_the_provider_the_earlier_deadline_wins(skipping: Skipping, books: Books) -> None:
    async def scene(world: World) -> None:
        attempt = await world.attempt(SAVES)
        world.at(100, lambda: revoke(world, attempt, 120))
        world.at(110, lambda: revoke(world, attempt, 20))
        world.at(115, lambda: revoke(world, attempt, 600))
        life = await world.live(attempt)
        assert (life.ended.reason, life.ended.state) == (Reason.SPOT_REVOKED, "REVOKED")
        told = world.stops()
        assert [(at, kind) for at, _, _, kind in told] == [(100, "revoke"), (110, "revoke")]
        assert 118 <= told[0][2] <= 120
        assert 18 <= told[1][2] <= 20
        assert 128 + RECOVERY_S <= life.after_s < 133 + RECOVERY_S

    skipping.play(scene, books, stop_code=None)


def test_a_notice_that_came_before_the_stop_was_sent_cuts_its_grace(skipping: Skipping, books: Books) -> None:
    """Nudges are lost, so that one reading of the row shows both."""

    async def scene(world: World) -> None:
        attempt = await world.attempt(SAVES)

        def both() -> None:
            world.deaf = True
            preempt(world, attempt, 300)
            revoke(world, attempt, 120)

        world.at(100, both)
        life = await world.live(attempt)
        assert life.ended.reason == Reason.PREEMPTED
        ((at, mode, grace, kind),) = world.stops()
        assert (mode, kind) == ("notice", "preempt")
        assert at + grace <= 221, "told late, and not for longer"

    skipping.play(scene, books)


@pytest.mark.parametrize("after_s", [5, 250])
def test_a_cancel_in_the_middle_of_a_grace_gives_its_own_few_seconds_and_no_more(
    skipping: Skipping, books: Books, after_s: int
) -> None:
    """A job without checkpoints gets its SIGTERM's seconds from the cancel on, however old the preemption is."""

    async def scene(world: World) -> None:
        attempt = await world.attempt()
        world.at(100, lambda: preempt(world, attempt, 300))
        world.at(100 + after_s, lambda: books.cancel(attempt))
        life = await world.live(attempt)
        assert life.ended.reason == Reason.USER_CANCELLED
        assert world.stops() == [(100, "notice", 300, "preempt"), (100 + after_s, "notice", TERM_S, "stop")]
        due_s = 100 + after_s + TERM_S + RECOVERY_S
        assert due_s <= life.after_s < due_s + 3, "its promised seconds, and not one less"

    skipping.play(scene, books, stop_code=None)


def test_a_cancel_never_extends_the_grace_that_is_running(skipping: Skipping, books: Books) -> None:
    """It can save, so a cancel alone would give it two minutes; of the preemption's there are twenty seconds left."""

    async def scene(world: World) -> None:
        attempt = await world.attempt(SAVES)
        world.at(100, lambda: preempt(world, attempt, 60))
        world.at(140, lambda: books.cancel(attempt))
        life = await world.live(attempt)
        assert life.ended.reason == Reason.USER_CANCELLED
        assert SAVE_S > 20
        (_, second) = world.stops()
        assert (second[0], second[3]) == (140, "stop")
        assert 18 <= second[2] <= 20
        due_s = 160 + RECOVERY_S
        assert due_s - 2 <= life.after_s < due_s + 3

    skipping.play(scene, books, stop_code=None)


def test_a_stop_that_nobody_confirms_is_sent_again_as_a_kill_before_anything_is_concluded(
    skipping: Skipping, books: Books
) -> None:
    async def scene(world: World) -> None:
        attempt = await world.attempt(SAVES)
        launches = world.clusters["one"].launches

        def unconfirmed(of: str, name: str) -> None:
            if name == "stop" and attempt in launches:
                launches[attempt].stop_confirmed = False

        world.on_call = unconfirmed
        world.at(100, lambda: preempt(world, attempt, 60))
        life = await world.live(attempt)
        assert life.ended.reason == Reason.PREEMPTED
        assert world.stops()[0] == (100, "notice", 60, "preempt")
        assert {mode for _, mode, _, _ in world.stops()[1:]} == {"kill"}
        assert world.stops()[1][0] >= 160 + RECOVERY_S
        assert life.after_s <= 160 + 2 * RECOVERY_S + 3

    skipping.play(scene, books, stop_code=None)


def test_advice_to_rebalance_stops_nothing(skipping: Skipping, books: Books) -> None:
    async def scene(world: World) -> None:
        attempt = await world.attempt(SAVES)
        cluster = world.clusters["one"]
        world.at(10, lambda: cluster.notice(attempt, None, NoticeKind.REBALANCE))
        world.at(900, lambda: cluster.finish(attempt))
        life = await world.live(attempt)
        assert life.ended.reason == Reason.COMPLETED
        assert world.stops() == []

    skipping.play(scene, books)
