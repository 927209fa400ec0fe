"""POLICIES §5: the head's shadow slot and who may pass it."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.settings import HOUR_MS, MINUTE_MS
from policies.snapshot import LiveAttempt, PlacementWish, QueuedJob
from tests.builders.policies import (
    NOW_MS,
    P0,
    P1,
    P2,
    decide,
    group,
    job,
    live,
    nodes,
    placed,
    pool,
    snapshot,
)


def minutes(name: str, count: int, length: int, age: int, **more: Any) -> QueuedJob:
    return job(
        name,
        group(count),
        user=name,
        max_duration_ms=length * MINUTE_MS,
        submitted_ms=NOW_MS - age * 1_000,
        **more,
    )


def test_short_jobs_pass_a_head_of_64_and_the_long_one_does_not_fit() -> None:
    runs = tuple(
        live(f"r{n}", placed({f"n00{n}": 8}), tenant="b", ends_by_ms=NOW_MS + 30 * MINUTE_MS) for n in range(7)
    )
    queued = (minutes("head", 64, 60, 9), minutes("B", 2, 5, 8), minutes("C", 4, 20, 7), minutes("D", 8, 120, 6))
    answers = decide(snapshot(pools=(pool(nodes(8, 8)),), live=runs, queued=queued))
    assert set(answers.admits) == {"B", "C"}
    assert answers.waits["head"].starts_ms == NOW_MS + 30 * MINUTE_MS
    assert answers.token("D") == "WaitingForCapacity"


def test_what_would_delay_the_head_waits_behind_it_by_name() -> None:
    runs = tuple(
        live(f"r{n}", placed({f"n00{n}": 8}), tenant="b", ends_by_ms=NOW_MS + 10 * MINUTE_MS) for n in range(7)
    )
    queued = (minutes("head", 64, 60, 9), minutes("D", 8, 120, 6))
    answers = decide(snapshot(pools=(pool(nodes(8, 8)),), live=runs, queued=queued))
    assert not answers.admits
    assert (answers.token("D"), answers.waits["D"].blocker) == ("BehindReservation", "head")
    alone = decide(snapshot(pools=(pool(nodes(8, 8)),), live=runs, queued=queued[1:]))
    assert set(alone.admits) == {"D"}


def test_easy_lets_a_long_job_use_what_the_head_leaves() -> None:
    """10 GPUs, R holds 6 until 10; A(8, 10) B(10, 10) C(2, 100): C starts at 0, A at 10."""
    r = live("R", placed({"n000": 6}), tenant="b", ends_by_ms=NOW_MS + 10 * MINUTE_MS)
    queued = (minutes("A", 8, 10, 9), minutes("B", 10, 10, 8), minutes("C", 2, 100, 7))
    answers = decide(snapshot(pools=(pool(nodes(1, 10)),), live=(r,), queued=queued))
    assert set(answers.admits) == {"C"}
    assert answers.waits["A"].starts_ms == NOW_MS + 10 * MINUTE_MS


def test_a_job_without_an_end_uses_only_what_the_head_leaves() -> None:
    r = live("R", placed({"n000": 6}), tenant="b", ends_by_ms=NOW_MS + 10 * MINUTE_MS)
    queued = (minutes("A", 8, 10, 9), job("endless2", group(2)), job("endless1", group(1)))
    answers = decide(snapshot(pools=(pool(nodes(1, 10)),), live=(r,), queued=queued))
    assert set(answers.admits) == {"endless1"} or set(answers.admits) == {"endless2"}
    assert len(answers.admits) == 1


def test_without_backfill_nothing_passes_the_head() -> None:
    r = live("R", placed({"n000": 6}), tenant="b", ends_by_ms=NOW_MS + 10 * MINUTE_MS)
    queued = (minutes("A", 8, 10, 9), minutes("B", 1, 1, 8))
    answers = decide(snapshot(pools=(pool(nodes(1, 10)),), live=(r,), queued=queued), backfill="none")
    assert not answers.admits
    assert answers.waits["B"].blocker == "A"


@pytest.mark.parametrize(("hours", "promised"), [(3, False), (5, True)])
def test_past_max_wait_a_job_that_is_not_the_head_gets_a_slot_too(hours: int, promised: bool) -> None:  # noqa: FBT001
    runs = tuple(
        live(f"R{name}", placed({f"{name}000": 6}, pool=name), tenant="b", ends_by_ms=NOW_MS + 10 * MINUTE_MS)
        for name in ("x", "y")
    )
    pools = tuple(pool(nodes(1, 10, name), name) for name in ("x", "y"))
    head = job("head", group(10), user="h", klass=P1, placement=PlacementWish(pools=("x",)))
    old = job("old", group(10), user="o", placement=PlacementWish(pools=("y",)), submitted_ms=NOW_MS - hours * HOUR_MS)
    new = job("new", group(4), user="n", placement=PlacementWish(pools=("y",)))
    answers = decide(snapshot(pools=pools, live=runs, queued=(head, old, new)))
    assert answers.waits["head"].starts_ms == NOW_MS + 10 * MINUTE_MS
    assert (answers.waits["old"].starts_ms is not None) is promised
    assert ("new" in answers.admits) is not promised


def test_a_slot_of_p2_never_holds_back_a_higher_class() -> None:
    r = live("R", placed({"n000": 6}), tenant="b", klass=P0, ends_by_ms=NOW_MS + 10 * MINUTE_MS)
    old = job("old", group(10), user="old", submitted_ms=NOW_MS - 5 * HOUR_MS)
    answers = decide(
        snapshot(pools=(pool(nodes(1, 10)),), live=(r,), queued=(old, minutes("new", 4, 600, 1, klass=P1)))
    )
    assert set(answers.admits) == {"new"}


def test_behind_a_head_in_the_same_pool_an_overdue_job_has_a_slot_of_its_own() -> None:
    """10 GPUs, 6 busy for 10 min; the head takes 8 of them for 10 more, `old` all 10 after it."""
    r = live("R", placed({"n000": 6}), tenant="b", ends_by_ms=NOW_MS + 10 * MINUTE_MS)
    head = minutes("head", 8, 10, 1, klass=P1)
    old = job("old", group(10), user="o", submitted_ms=NOW_MS - 5 * HOUR_MS, max_duration_ms=MINUTE_MS)
    long, short = minutes("long", 2, 11, 1), minutes("short", 2, 20, 1)
    found = snapshot(pools=(pool(nodes(1, 10)),), live=(r,), queued=(head, old, long, replace(short, user="s")))
    answers = decide(found)
    assert answers.waits["head"].starts_ms == NOW_MS + 10 * MINUTE_MS
    assert answers.waits["old"].starts_ms == NOW_MS + 20 * MINUTE_MS
    assert set(answers.admits) == {"long"}
    endless = decide(replace(found, queued=(head, old, replace(long, max_duration_ms=None))))
    assert not endless.admits
    assert endless.token("long") == "BehindReservation"
    assert set(
        decide(replace(found, queued=(head, old, replace(long, max_duration_ms=None))), max_slots_per_pool=1).admits
    ) == {"long"}


@dataclass
class Replay:
    """Exact durations: what is admitted runs as long as it said."""

    queue: list[QueuedJob]
    size: int
    max_wait_ms: int
    now_ms: int = NOW_MS
    running: list[LiveAttempt] = field(default_factory=list)
    started: dict[str, int] = field(default_factory=dict)
    promised: dict[str, int] = field(default_factory=dict)

    def run(self) -> None:
        while self.queue:
            self.running = [one for one in self.running if (one.ends_by_ms or 0) > self.now_ms]
            found = snapshot(pools=(pool(nodes(self.size, 4)),), live=tuple(self.running), queued=tuple(self.queue))
            answers = decide(found, self.now_ms, max_wait_ms=self.max_wait_ms, ageing_per_hour=0)
            # Every job has the same order all along, so the first that waits is the head.
            head = next((one.id for one in self.queue if one.id in answers.waits), "")
            if head and (starts_ms := answers.waits[head].starts_ms) is not None:
                self.promised.setdefault(head, starts_ms)
            for wish in [one for one in self.queue if one.id in answers.admits]:
                self.queue.remove(wish)
                self.started[wish.id] = self.now_ms
                end = self.now_ms + (wish.max_duration_ms or 0)
                part = answers.admits[wish.id].placed
                self.running.append(live(wish.id, *part, klass=P2, ends_by_ms=end, started_ms=self.now_ms))
            ends = [one.ends_by_ms for one in self.running if one.ends_by_ms]
            if not ends:
                assert not self.queue
                return
            self.now_ms = min(ends)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 50)), min_size=1, max_size=12),
    st.integers(6, 8),
    st.sampled_from((0, 10**15)),
)
def test_no_job_starts_later_than_the_slot_it_was_first_promised(
    jobs: list[tuple[int, int, int]], size: int, max_wait_ms: int
) -> None:
    queue = [
        job(
            f"j{at:02d}",
            group(replicas, each),
            user=f"u{at}",
            max_duration_ms=length * MINUTE_MS,
            submitted_ms=NOW_MS - 100 + at,
        )
        for at, (replicas, each, length) in enumerate(jobs)
    ]
    replay = Replay(queue, size, max_wait_ms)
    replay.run()
    assert len(replay.started) == len(jobs)
    for name, at in replay.promised.items():
        assert replay.started[name] <= at
