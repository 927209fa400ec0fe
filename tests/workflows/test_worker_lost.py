"""The worker is lost at every step of a life: before each act, after the act and before its record, after the record.

Every call that the activities make of a backend or of the store, in a life without an accident, is one place to die
at, twice: before it, and after it. The step is given to another worker, which knows nothing but the row.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from policies.vocabulary import Reason, StopCause
from tests.fakes.faults import Fault
from tests.workflows.books import Books, MemoryBooks, Wanted
from tests.workflows.calls import Death, methods_of
from tests.workflows.memory import MemoryStore
from tests.workflows.skipping import PORT, Life, Skipping, World
from workflows.messages import ResizeView
from workflows.store import Store

SAVES = Wanted(checkpoints=True)


@dataclass(frozen=True)
class Story:
    """What happens in a life, and how it must end wherever the worker dies."""

    happens: Callable[[World, str], None]
    ends: Reason
    backends: tuple[str, ...] = ("one",)
    cluster: dict[str, Any] = field(default_factory=dict)
    wanted: Wanted = SAVES


def _succeeds(world: World, attempt: str) -> None:
    def finish() -> None:
        for cluster in world.clusters.values():
            cluster.finish(attempt)

    world.at(100, finish)


def _saves_and_succeeds(world: World, attempt: str) -> None:
    world.at(30, lambda: world.books.checkpoint(attempt))
    _succeeds(world, attempt)


def _preempted(world: World, attempt: str) -> None:
    world.at(30, lambda: world.books.store.ask_stop(attempt, StopCause.PREEMPT, 60))


def _revoked(world: World, attempt: str) -> None:
    world.at(30, lambda: world.clusters["one"].notice(attempt, world.clock.now() + timedelta(seconds=30)))


def _cancelled(world: World, attempt: str) -> None:
    world.at(30, lambda: world.books.cancel(attempt))


def _refused(world: World, attempt: str) -> None:
    for operation in ("prepare", "start"):
        world.clusters["one"].faults.inject(operation, Fault.REFUSED, times=20)


def _second_part_refused(world: World, attempt: str) -> None:
    world.clusters["two"].faults.inject("start", Fault.NO_CAPACITY, times=20)


def _member_lost(world: World, attempt: str) -> None:
    world.at(30, lambda: world.clusters["two"].evict(attempt, Reason.NODE_LOST))


def _vanishes(world: World, attempt: str) -> None:
    world.at(60, lambda: world.clusters["one"].vanish(attempt))


def _back_again(world: World, attempt: str) -> None:
    """The watch tells of an absence, and it is there after all."""
    cluster = world.clusters["one"]

    def gone() -> None:
        launch = cluster.launches.pop(attempt)
        cluster.changes.append(attempt)
        world.follow()
        cluster.launches[attempt] = launch

    world.at(60, gone)
    _succeeds(world, attempt)


def _waits_for_victims(world: World, attempt: str) -> None:
    """Its lease is contingent: it is placed first and starts once they have gone."""
    memory_of(world).wish(attempt, lease_state="contingent", place_first=True, place_timeout_s=60)
    world.at(50, lambda: memory_of(world).wish(attempt, lease_state="held"))
    _succeeds(world, attempt)


def _cannot_be_placed(world: World, attempt: str) -> None:
    memory_of(world).wish(attempt, lease_state="contingent", place_first=True, place_timeout_s=60)
    world.clusters["one"].faults.inject("prepare", Fault.THROTTLED, times=1000)


def _resized_in_place(world: World, attempt: str) -> None:
    wish = ResizeView("group-one", 2, 1)
    world.at(30, lambda: memory_of(world).wish(attempt, resize=wish))
    _succeeds(world, attempt)


def memory_of(world: World) -> MemoryStore:
    assert isinstance(world.books, MemoryBooks)
    return world.books.memory


STORIES = {
    "succeeds": Story(_succeeds, Reason.COMPLETED),
    "saves": Story(_saves_and_succeeds, Reason.COMPLETED),
    "gang": Story(_succeeds, Reason.COMPLETED, ("one", "two")),
    "preempted": Story(_preempted, Reason.PREEMPTED),
    "preempted_and_deaf": Story(_preempted, Reason.PREEMPTED, cluster={"stop_code": None}),
    "revoked": Story(_revoked, Reason.SPOT_REVOKED),
    "cancelled": Story(_cancelled, Reason.USER_CANCELLED),
    "refused": Story(_refused, Reason.BACKEND_REFUSED),
    "rolled_back": Story(_second_part_refused, Reason.GANG_ROLLED_BACK, ("one", "two")),
    "member_lost": Story(_member_lost, Reason.NODE_LOST, ("one", "two")),
    "stuck": Story(lambda _world, _attempt: None, Reason.BACKEND_WAIT_TIMEOUT, cluster={"pending": True}),
    "vanishes": Story(_vanishes, Reason.LOST),
    "back_again": Story(_back_again, Reason.COMPLETED),
    "waits_for_victims": Story(_waits_for_victims, Reason.COMPLETED),
    "cannot_be_placed": Story(_cannot_be_placed, Reason.BACKEND_WAIT_TIMEOUT),
    "resized_in_place": Story(_resized_in_place, Reason.COMPLETED),
}
# What no attempt's activity calls: other loops do (their tests: tests/unit/workflows/test_loops.py, tests/unit/store),
# or people.
ELSEWHERE = {
    "store": {
        *("take_epoch", "beat", "wait_for_work", "cycle", "fingerprint", "commit"),
        *("begin_launches", "still_wanted", "launched", "take_in", "after_restore"),
        *("wait_for_outbox", "claim_outbox", "outbox_done", "outbox_failed", "claim_webhooks", "webhook_failed"),
        *("accrue", "live_attempts", "capacity", "answered", "dark"),
        *("without_workflow", "start_again", "end_without_evidence"),
    },
    "backend": {"capacity", "watch", "list_owned", "logs", "close"},
}
READS = {"load_attempt", "find", "observe"}
_called: dict[str, set[str]] = {}


async def play(world: World, story: Story, death: Death | None = None) -> Life:
    attempt = await world.attempt(story.wanted)
    await world.do(lambda: story.happens(world, attempt))
    world.calls.death = death
    life = await world.live(attempt)
    assert life.ended.reason == story.ends, life
    assert len([call for call in world.calls.of("settle") if call.at_ms]) <= 2
    for cluster in world.clusters.values():
        launch = cluster.launches.get(attempt)
        assert launch is None or launch.starts <= 1, "started twice"
        if launch is not None and story.ends is not Reason.COMPLETED:
            assert launch.phase == "Ended", "something is left"
    return life


def one(skipping: Skipping, story: Story, books: Books, death: Death | None = None) -> World:
    """One life in a world of its own."""
    found: list[World] = []

    async def scene(world: World) -> None:
        found.append(world)
        await play(world, story, death)

    skipping.play(scene, books, *story.backends, **story.cluster)
    return found[0]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", STORIES)
def test_a_worker_lost_at_any_call_changes_nothing_of_how_it_ends(skipping: Skipping, name: str) -> None:
    story = STORIES[name]
    calls = one(skipping, story, MemoryBooks()).calls.made
    _called[name] = {f"{'store' if call.of == 'store' else 'backend'}.{call.name}" for call in calls}
    problems = []
    for number, call in enumerate(calls):
        if call.name in READS:
            continue  # nothing is different after it: before the next act is the same place
        for after in (False, True):
            try:
                one(skipping, story, MemoryBooks(), Death(number, after))
            except (AssertionError, TimeoutError) as error:  # all of them are told at once
                problems.append(f"{'after' if after else 'before'} {number} {call.of}.{call.name}: {error!r:.300}")
    assert not problems, "\n".join(problems)


def test_the_stories_reach_every_method_that_an_activity_may_call() -> None:
    """A new method of the Store or of the port is either called in some story, or named as somebody else's."""
    if set(_called) != set(STORIES):
        pytest.skip("needs the stories above, in the same process")
    called = set().union(*_called.values())
    names = {"store": methods_of(Store), "backend": [name for port in PORT for name in methods_of(port)]}
    assert called == {f"{of}.{name}" for of in names for name in names[of] if name not in ELSEWHERE[of]}
