"""The standing loops without Temporal: what the reconciler concludes, and that one bad row or cycle stops nothing."""

import asyncio
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from backends.errors import Unreachable
from backends.types import Handle, Observation, Owned, Phase
from policies.decisions import Act, Plan
from policies.snapshot import Snapshot
from policies.vocabulary import AttemptState
from tests.fakes.backend import FakeBackend
from tests.harness.waiting import eventually
from workflows.activities.arbiter import FENCED, ArbiterActivity
from workflows.activities.follower import FollowerActivity
from workflows.activities.reconciler import ReconcilerActivity, compare
from workflows.activities.relay import RelayActivity
from workflows.flows.duty import GONE
from workflows.messages import Duty
from workflows.store import CommitReport, Cycle, FencedError, Live, OutboxItem

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def owned(key: str, native: str = "1", *, age_s: int = 3600, phase: Phase = Phase.RUNNING) -> Owned:
    return Owned(Handle("b", key, native), "gw", "job", 1, "acme", phase, NOW - timedelta(seconds=age_s))


def live(key: str, handles: dict[str, str] | None = None) -> Live:
    return Live(key, "job", AttemptState.RUNNING, {"b": "1"} if handles is None else handles, ("b",), NOW)


# -- reconciler


def test_what_is_known_and_wanted_is_left_alone() -> None:
    orders = compare([owned("a")], [live("a")], "b", NOW, 5)
    assert (orders.adopt, orders.end) == ((), ())


def test_an_object_whose_answer_was_lost_is_adopted_by_its_key() -> None:
    orders = compare([owned("a", "17")], [live("a", {})], "b", NOW, 5)
    assert [one.handle.native for one in orders.adopt] == ["17"]


def test_a_zombie_is_ended_once_it_is_older_than_the_settle_time() -> None:
    old, young = owned("old", age_s=301), owned("young", age_s=299)
    assert compare([old, young], [], "b", NOW, 300).end == (old,)


def test_an_ended_object_of_a_settled_attempt_is_no_zombie() -> None:
    assert compare([owned("a", phase=Phase.ENDED)], [], "b", NOW, 5).end == ()


def test_of_two_objects_with_one_key_the_lower_id_wins_and_numbers_count_as_numbers() -> None:
    orders = compare([owned("a", "10"), owned("a", "9")], [live("a", {})], "b", NOW, 5)
    assert [one.handle.native for one in orders.adopt] == ["9"]
    assert [one.handle.native for one in orders.end] == ["10"]


def test_the_object_that_is_driven_already_stays() -> None:
    orders = compare([owned("a", "10"), owned("a", "9")], [live("a", {"b": "10"})], "b", NOW, 5)
    assert orders.adopt == ()
    assert [one.handle.native for one in orders.end] == ["9"]


def test_an_attempt_without_an_object_is_not_concluded_about() -> None:
    assert compare([], [live("a")], "b", NOW, 5).end == ()


def test_sl_09_a_backend_that_cannot_list_ends_nothing() -> None:
    backend = FakeBackend(name="b")
    backend.cluster.faults.dark = True
    reconciler = ReconcilerActivity(cast("Any", None), {"b": backend}, cast("Any", None))
    with pytest.raises(Unreachable):
        reconciler.reconcile_backend("b")


# -- arbiter


class Cycles:
    """A store for the arbiter: counts, and fails as it is told."""

    def __init__(self, *, bad: int = 0, fenced_after: int = 3) -> None:
        self.bad = bad
        self.fenced_after = fenced_after
        self.cycles = 0
        self.commits = 0
        self.beats = 0
        self.marks = iter(range(10**6))  # every cycle finds news

    def fingerprint(self) -> str:
        return str(next(self.marks))

    def take_epoch(self, _holder: str) -> int:
        return 7

    def wait_for_work(self, _timeout_s: float) -> bool:
        return False

    def cycle(self) -> Cycle:
        self.cycles += 1
        if self.cycles <= self.bad:
            raise ConnectionError("the database went away")
        return Cycle(Snapshot(), 0)

    def beat(self, epoch: int) -> None:
        assert epoch == 7
        self.beats += 1
        if self.beats >= self.fenced_after:
            raise FencedError

    def commit(self, epoch: int, _cycle: Cycle, _plan: Plan) -> CommitReport:
        assert epoch == 7
        self.commits += 1
        if self.commits >= self.fenced_after:
            raise FencedError
        return CommitReport(dropped={"job": "Stale"})


def arbiter(store: Cycles, plan: Plan) -> ArbiterActivity:
    return ArbiterActivity(cast("Any", store), lambda _snapshot, _now: plan, holder="me")


def test_the_arbiter_proves_its_epoch_even_when_there_is_nothing_to_write() -> None:
    store = Cycles(fenced_after=3)
    assert arbiter(store, Plan()).run(Duty("arbiter")) == FENCED
    assert (store.beats, store.commits) == (3, 0)


def test_a_fenced_arbiter_leaves_and_counts_what_was_dropped() -> None:
    store = Cycles(fenced_after=3)
    activity = arbiter(store, Plan(acts=(Act(),)))
    assert activity.run(Duty("arbiter")) == FENCED
    assert (activity.cycles.done, activity.cycles.dropped) == (2, 2)


def test_one_bad_cycle_does_not_end_the_arbiter() -> None:
    store = Cycles(bad=1, fenced_after=2)
    activity = arbiter(store, Plan())
    assert activity.run(Duty("arbiter")) == FENCED
    assert (activity.cycles.failed, store.cycles) == (1, 3)


# -- relay


class Outbox:
    """Rows to deliver, and what the relay said of each."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.failed: dict[int, str] = {}

    def outbox_done(self, ids: Sequence[int]) -> None:
        self.done += ids

    def outbox_failed(self, item_id: int, error: str) -> None:
        self.failed[item_id] = error


def test_one_bad_row_stops_no_other() -> None:
    store = Outbox()
    sent: list[str] = []

    async def webhook(item: OutboxItem) -> None:
        if item.target == "bad":
            raise OSError("no such host")
        sent.append(item.target)

    relay = RelayActivity(cast("Any", store), cast("Any", None), more={"webhook": webhook})
    kinds = [("webhook", "good"), ("webhook", "bad"), ("riddle", "x"), ("webhook", "better")]
    items = [OutboxItem(n, kind, target) for n, (kind, target) in enumerate(kinds)]
    asyncio.run(relay.deliver(items))
    assert sent == ["good", "better"]
    assert store.done == [0, 3]
    assert store.failed[1] == "OSError: no such host"
    assert "riddle" in store.failed[2]


# -- follower


class Seen:
    """A store for a follower; refuses one poisonous row for ever."""

    def __init__(self) -> None:
        self.stored: list[str] = []
        self.dark_by: list[str] = []
        self.answers = 0
        self.capacities = 0
        self.lock = threading.Lock()

    def live_attempts(self, _backend: str) -> Sequence[Live]:
        return []

    def observe(self, _backend: str, observations: Sequence[Observation]) -> int:
        if any(one.handle.key == "poison" for one in observations):
            raise ValueError("a row that no statement takes")
        with self.lock:
            self.stored += [one.handle.key for one in observations]
        return len(observations)

    def capacity(self, *_args: object) -> None:
        self.capacities += 1

    def answered(self, _backend: str) -> None:
        self.answers += 1

    def dark(self, _backend: str, problem: str) -> None:
        self.dark_by.append(problem)


@pytest.fixture
def following() -> Any:
    store, backend = Seen(), FakeBackend(name="b")
    backends: dict[str, Any] = {"b": backend}
    follower = FollowerActivity(cast("Any", store), backends, capacity_every_s=0.05)
    answer: list[str] = []
    thread = threading.Thread(target=lambda: answer.append(follower.run(Duty("follower", "b"))))
    thread.start()
    eventually(lambda: store.answers, what="the first look")
    yield store, backend
    backends.clear()
    thread.join(10)
    assert answer == [GONE], "a follower of a backend that is configured no more leaves for good"


def test_one_row_that_cannot_be_stored_is_left_out_alone(following: Any) -> None:
    store, backend = following
    with backend.cluster.changed:
        backend.cluster.changes += ["first", "poison", "last"]
        backend.cluster.changed.notify_all()
    eventually(lambda: {"first", "last"} <= set(store.stored), what="the good rows")
    assert "poison" not in store.stored


def test_a_backend_that_goes_dark_is_marked_and_comes_back_by_itself(following: Any) -> None:
    store, backend = following
    backend.cluster.faults.dark = True
    eventually(lambda: store.dark_by, what="dark")
    before, capacities = store.answers, store.capacities
    backend.cluster.faults.dark = False
    eventually(lambda: store.answers > before and store.capacities > capacities, what="light again")
    with backend.cluster.changed:
        backend.cluster.changes.append("after")
        backend.cluster.changed.notify_all()
    eventually(lambda: "after" in store.stored, what="the watch goes on")
