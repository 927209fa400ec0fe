"""The relay twice, late, and after the end; nudges that are lost: the row carries everything, at the latest in 60 s."""

import asyncio

import pytest

from policies.vocabulary import Reason, StopCause
from tests.workflows.books import Books, Wanted
from tests.workflows.skipping import Skipping, World
from workflows.activities.relay import nudge_attempt, start_attempt

SAVES = Wanted(checkpoints=True)


def relayed(world: World, attempt: str) -> bool:
    """The relay delivers the attempt's start once more; whether that started anything."""
    loop = world.loop
    return asyncio.run_coroutine_threadsafe(start_attempt(world.env.client, attempt, world.queue), loop).result(30)


def test_ql_02_relayed_again_while_it_lives_it_has_one_workflow_and_one_launch(
    skipping: Skipping, books: Books
) -> None:
    async def scene(world: World) -> None:
        attempt = await world.attempt()
        again: list[bool] = []
        for at in (0.01, 1, 500):
            world.at(at, lambda: again.append(relayed(world, attempt)))
        world.at(600, lambda: world.clusters["one"].finish(attempt))
        life = await world.live(attempt)
        assert life.ended.reason == Reason.COMPLETED
        assert again == [False, False, False]
        assert world.clusters["one"].launches[attempt].starts == 1
        assert len(world.calls.of("prepare")) == len(world.calls.of("start")) == 1

    skipping.play(scene, books)


def test_ql_02_relayed_after_its_end_a_closed_id_is_started_again_and_leaves(skipping: Skipping, books: Books) -> None:
    async def scene(world: World) -> None:
        attempt = await world.attempt()
        world.at(60, lambda: world.clusters["one"].finish(attempt))
        first = await world.live(attempt)
        world.calls.made.clear()
        second = await world.live(attempt)  # which starts the same id once more
        assert second.ended == first.ended
        assert {call.name for call in world.calls.made} == {"load_attempt"}
        world.calls.made.clear()
        await nudge_attempt(world.env.client, attempt, world.queue)  # an old nudge, by the relay's own way
        assert await world.env.client.get_workflow_handle(attempt).result() == first.ended.state
        assert {call.name for call in world.calls.made} == {"load_attempt"}

    skipping.play(scene, books)


def test_relayed_an_hour_late_it_begins_an_hour_late_and_loses_nothing(skipping: Skipping, books: Books) -> None:
    """It was cancelled meanwhile: its first look says so, and nothing is launched."""

    async def scene(world: World) -> None:
        cancelled = await world.attempt()
        await world.env.sleep(3600)
        await world.do(lambda: books.cancel(cancelled))
        gone = await world.live(cancelled)
        assert gone.ended.reason == Reason.USER_CANCELLED
        assert world.calls.of("prepare") == world.calls.of("start") == []
        late = await world.attempt()
        await world.env.sleep(3600)
        world.at(10, lambda: world.clusters["one"].finish(late))
        life = await world.live(late)
        assert life.ended.reason == Reason.COMPLETED, "no deadline has run while nobody knew of it"

    skipping.play(scene, books)


@pytest.mark.parametrize("what", ["runs", "ends", "cancel", "checkpoint", "preempt", "notice"])
def test_with_every_nudge_lost_the_next_reading_carries_it_within_a_minute(
    skipping: Skipping, books: Books, what: str
) -> None:
    async def scene(world: World) -> None:
        world.deaf = True
        attempt = await world.attempt(SAVES)
        cluster = world.clusters["one"]
        cluster.pending = what == "runs"
        acts = {
            "runs": lambda: cluster.run(attempt),
            "ends": lambda: cluster.finish(attempt),
            "cancel": lambda: books.cancel(attempt),
            "checkpoint": lambda: books.checkpoint(attempt),
            "preempt": lambda: books.store.ask_stop(attempt, StopCause.PREEMPT, 60),
            "notice": lambda: cluster.notice(attempt, None),
        }
        world.at(130, acts[what])
        if what in {"runs", "checkpoint"}:
            world.at(400, lambda: cluster.finish(attempt))
        life = await world.live(attempt)
        answered = {
            "runs": lambda: [call for call in world.calls.of("mark") if call.args[1] == "RUNNING"],
            "ends": lambda: world.calls.of("settle"),
            "cancel": lambda: world.calls.of("stop"),
            "checkpoint": lambda: world.calls.of("notify"),
            "preempt": lambda: world.calls.of("stop"),
            "notice": lambda: world.calls.of("stop"),
        }[what]()
        assert len(answered) == 1
        assert 130 <= world.since_s(answered[0]) <= 130 + 61
        assert life.ended.reason in {
            Reason.COMPLETED,
            Reason.USER_CANCELLED,
            Reason.PREEMPTED,
            Reason.SPOT_REVOKED,
        }

    skipping.play(scene, books)
