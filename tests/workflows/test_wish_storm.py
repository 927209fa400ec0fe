"""TP-02 (ii): a thousand wishes, half of the nudges lost, and a run that turns meanwhile. Real Temporal and ledger."""

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast
from uuid import UUID

import pytest

from gateway.ledger import progress, wishes
from gateway.ledger.engine import in_transaction
from tests.unit.store.world import rows, scalar
from tests.workflows.history import ref_of, runs, turned
from tests.workflows.whole import Running, Scene
from workflows.store import OutboxItem, Store
from workflows.worker import connect

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
WISHES = 1000
STORM = 990  # of them while one attempt runs; the rest resize it and end it
A_SECOND = 50
MAX_EVENTS = 400
ELASTIC = {
    "num_nodes": 4,
    "resources": {"accelerators": "H100:2", "cpus": 2, "memory": "4Gi"},
    "elastic": {"min": 1, "target": 4, "max": 4, "reshard": True},
    "checkpoint": {"url": "file:///c"},
    "retry": {"max": 3},
}


class LosesNudges:
    """The ledger, whose relay loses half of the nudges of one attempt: claimed, marked as done, and never delivered."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._fate = random.Random(7)
        self.attempt = ""
        self.delivered = 0
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def claim_outbox(self, limit: int) -> Sequence[OutboxItem]:
        items = self._store.claim_outbox(limit)
        lost = [item for item in items if item.kind == "nudge" and item.target == self.attempt and self._is_lost()]
        if lost:
            self._store.outbox_done([item.id for item in lost])
        return [item for item in items if item not in lost]

    def _is_lost(self) -> bool:
        """Exactly half, in no pattern; the last of them is delivered, so that nothing waits for the next reading."""
        left = STORM - self.delivered - self.lost
        lost = left > 1 and self._fate.randrange(left - 1) < STORM // 2 - self.lost
        self.lost += lost
        self.delivered += not lost
        return lost


class Wisher:
    """A user whose wishes are numbered: the number is in the event of each, as who wished it."""

    def __init__(self, on: Running, job: str) -> None:
        self._on = on
        self._job = job
        self.number = 0

    async def wish(self, act: Callable[..., wishes.WishResult], *args: Any) -> None:
        self.number += 1
        who = f"ada-{self.number}"
        result = await asyncio.to_thread(
            in_transaction, self._on.gate.engine, lambda session: act(session, UUID(self._job), who, *args)
        )
        assert result.changed, (self.number, act, result)

    async def storm(self) -> None:
        """At a fixed rate; where the machine is too slow for it, as fast as it can."""
        kinds = (wishes.checkpoint, wishes.hold, wishes.checkpoint, wishes.unhold, wishes.checkpoint)
        loop = asyncio.get_running_loop()
        began = loop.time()
        while self.number < STORM:
            await self.wish(kinds[self.number % len(kinds)])
            await asyncio.sleep(max(0.0, began + self.number / A_SECOND - loop.time()))

    def events(self) -> list[tuple[str, str]]:
        """(who, kind) of every wish's event, in order."""
        found = rows(
            self._on.gate.engine,
            "SELECT data->>'principal' AS who, kind FROM events WHERE job_id = :job"
            " AND data->>'principal' LIKE 'ada-%' ORDER BY id",
            job=UUID(self._job),
        )
        return [(row.who, row.kind) for row in found]


def test_tp_02_a_thousand_wishes_half_of_the_nudges_lost_while_the_run_turns(whole: Callable[[Scene], None]) -> None:
    async def scene(on: Running) -> None:
        store = LosesNudges(cast("Store", on.gate.store))
        async with on.worker(store=cast("Store", store), max_events=MAX_EVENTS):
            job = await a_job_with_a_past(on)
            attempt = await on.attempt_runs(job, number=4)
            past = counters(on, job)
            assert past[:3] == (1, 1, 1)
            assert past[3] > 0
            await on.until(lambda: nudges_are_out(on), "every nudge of its past out of the outbox")

            user = Wisher(on, job)
            store.attempt = attempt
            await user.storm()
            newest = on.gate.job(job).want_checkpoint
            await on.until(lambda: asked(on, attempt)[-1:] == [newest], "the newest wish to checkpoint")
            await on.until(lambda: store.lost + store.delivered == STORM, "every nudge delivered or lost")
            assert (store.lost, store.delivered) == (STORM // 2, STORM // 2)
            await check_the_chain(on, attempt)
            assert counters(on, job) == past
            assert on.gate.job(job).state == "RUNNING"
            saves = asked(on, attempt)
            assert all(one < other for one, other in pairwise(saves)), "each number once, none twice, none backwards"
            assert [kind for kind, _ in on.cluster.launches[attempt].told] == ["checkpoint"] * len(saves)
            assert on.cluster.launches[attempt].stops == []

            await resize_and_cancel(on, user, job, attempt)
            assert counters(on, job) == past

        events = user.events()
        assert [who for who, _ in events] == [f"ada-{number}" for number in range(1, WISHES + 1)]
        first_kinds = ["CheckpointWished", "Held", "CheckpointWished", "Unheld", "CheckpointWished"]
        assert [kind for _, kind in events[:5]] == first_kinds
        assert events[-1] == (f"ada-{WISHES}", "CancelWished")

    whole(scene)


async def a_job_with_a_past(on: Running) -> str:
    """It has failed once, was revoked once and was preempted once: its fourth attempt is the next."""
    on.gate.tenant("org")
    on.gate.tenant("org/low")
    high = on.gate.tenant("org/high")
    on.gate.world.allowance(high, "P0", 1000)
    job = on.gate.submit("org/low", **ELASTIC)
    on.cluster.finish(await on.attempt_runs(job, 1), rank=0, code=7)
    on.cluster.notice(await on.attempt_runs(job, 2), None)
    await on.attempt_runs(job, 3)
    urgent = on.gate.submit("org/high", priority="P0", resources={"accelerators": "H100:8"}, num_nodes=2)
    on.cluster.finish(await on.attempt_runs(urgent))
    await on.job_is(urgent, "SUCCEEDED")
    return job


def counters(on: Running, job: str) -> tuple[int, int, int, int]:
    """Failures, preemptions and revocations of the job, and its tenant's credit in GPU-ms."""
    row = on.gate.job(job)
    credit, _ = on.gate.world.balance("credit", on.gate.tenants["org/low"], "gpu_ms")
    return row.failures, row.preemptions, row.revocations, credit


def nudges_are_out(on: Running) -> bool:
    return bool(scalar(on.gate.engine, "SELECT count(*) = 0 FROM outbox WHERE done_at IS NULL"))


def asked(on: Running, attempt: str) -> list[int]:
    """The numbers of the wishes to checkpoint that were carried out."""
    query = "SELECT data->>'number' AS n FROM events WHERE kind = 'CheckpointAsked' AND attempt_id = :id ORDER BY id"
    return [int(row.n) for row in rows(on.gate.engine, query, id=attempt)]


async def check_the_chain(on: Running, attempt: str) -> None:
    """It has turned at least three times, each turn was short, and what a run hands on is the attempt's own."""
    chain = await runs(await connect(on.address, "default"), attempt)
    assert len(chain) > 3
    assert all(turned(run) for run in chain[:-1])
    assert max(len(run) for run in chain) < MAX_EVENTS + 100, "no stream of wishes puts the turn off"
    refs = [await ref_of(run) for run in chain]
    assert [ref.turn for ref in refs] == list(range(len(chain)))
    assert {(ref.attempt_id, ref.max_events, ref.failures) for ref in refs} == {(attempt, MAX_EVENTS, 0)}
    assert len({ref.start_asked_ms for ref in refs[1:]}) == 1, "the one start that was asked for"
    assert on.cluster.launches[attempt].starts == 1


async def resize_and_cancel(on: Running, user: Wisher, job: str, attempt: str) -> None:
    """The last ten wishes: of two sizes the newest is what it gets, and of the rest the cancel is what remains."""
    in_transaction(
        on.gate.engine,
        lambda session: progress.checkpoint(session, attempt, step=1, url="file:///c/attempt-4/1", reshardable=True),
    )
    await user.wish(wishes.resize, "main", 3)
    await user.wish(wishes.resize, "main", 2)
    while user.number < WISHES - 2:
        await user.wish(wishes.hold if user.number % 2 == 0 else wishes.unhold)
    query = (
        "SELECT id, state, placed FROM attempts WHERE job_id = :job AND number >= 4 AND state <> 'REFUSED'"
        " ORDER BY number"
    )

    def small() -> Any:
        found = rows(on.gate.engine, query, job=UUID(job))
        return found if found[-1].state == "RUNNING" and replicas(found[-1]) == 2 else None

    found = await on.until(small, "two replicas running")
    assert [row.state for row in found[:-1]] == ["RESIZED"] * (len(found) - 1)
    assert [replicas(row) for row in found].count(2) == 1, "the newest size was given once"
    for row in found[:-1]:
        assert [kind for kind, _ in on.cluster.launches[row.id].stops] == ["resize"]
    await user.wish(wishes.checkpoint)
    newest = on.gate.job(job).want_checkpoint
    last = found[-1].id
    await on.until(lambda: asked(on, last) == [newest], "the wish of the smaller one, and none of those before")
    await user.wish(wishes.cancel)
    await on.job_is(job, "CANCELLED")
    assert len(on.cluster.launches[last].stops) == 1


def replicas(row: Any) -> int:
    return sum(part["replicas"] for part in row.placed)
