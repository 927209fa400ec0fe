"""Lives of attempts, told once: the tests assert their ends, and the recorder stores their histories for replay.

A job that goes on has a second attempt, with a workflow of its own: those scenarios end with the last of them.
"""

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from tests.fakes.faults import Fault
from tests.workflows.gate import Attempt, Gate
from workflows.messages import ResizeView

Scenario = Callable[[Gate], Awaitable[Attempt]]
TWO_ATTEMPTS = {"revoked_then_resumed", "resized"}


def histories_of(name: str) -> list[str]:
    """The names under which a scenario's histories are stored, the first attempt's first."""
    return [f"{name}-1", f"{name}-2"] if name in TWO_ATTEMPTS else [name]


async def straight_run(gate: Gate) -> Attempt:
    attempt = await gate.run()
    await attempt.until("RUNNING")
    gate.clusters["one"].finish(attempt.key)
    return attempt


async def refused(gate: Gate) -> Attempt:
    gate.clusters["one"].faults.inject("prepare", Fault.REFUSED)
    return await gate.run()


async def no_capacity(gate: Gate) -> Attempt:
    gate.clusters["one"].faults.inject("start", Fault.NO_CAPACITY)
    return await gate.run()


async def cancelled_while_pending(gate: Gate) -> Attempt:
    gate.clusters["one"].pending = True
    attempt = await gate.run()
    await attempt.phase("Pending")
    gate.store.wish(attempt.key, want_cancel=True)
    return attempt


async def preempted_with_grace(gate: Gate) -> Attempt:
    attempt = await gate.run(checkpoints=True)
    await attempt.until("RUNNING")
    gate.store.wish(attempt.key, stop_cause="preempt", stop_grace_s=30)
    return attempt


async def gang_of_two(gate: Gate) -> Attempt:
    attempt = await gate.run("one", "two")
    await attempt.until("RUNNING")
    for cluster in gate.clusters.values():
        cluster.finish(attempt.key)
    return attempt


async def gang_rolled_back(gate: Gate) -> Attempt:
    gate.clusters["two"].faults.inject("start", Fault.NO_CAPACITY)
    return await gate.run("one", "two")


async def revoked(gate: Gate) -> Attempt:
    attempt = await gate.run(checkpoints=True)
    await attempt.until("RUNNING")
    gate.clusters["one"].notice(attempt.key, None)
    return attempt


async def revoked_then_resumed(gate: Gate) -> Attempt:
    """The machine is taken; the second attempt begins from the checkpoint that the first left behind."""
    job = uuid.uuid4()
    first = await gate.run(job=job, checkpoints=True)
    await first.until("RUNNING")
    gate.clusters["one"].notice(first.key, None)
    gate.store.wish(first.key, nudge=False, newer_checkpoint=True)
    await first.ended()
    return await _goes_on(gate, first, job)


async def resized(gate: Gate) -> Attempt:
    """A user makes it smaller: it saves and leaves, and the second attempt is half as large."""
    job = uuid.uuid4()
    first = await gate.run(job=job, checkpoints=True, replicas_total=4, want_checkpoint=1)
    await first.until("RUNNING")
    await first.gate_until(lambda: gate.store.rows[first.key].checkpoint_done == 1, "saved once before")
    gate.store.wish(first.key, want_size={"main": 2}, stop_cause="resize", stop_grace_s=30)
    await first.ended()
    return await _goes_on(gate, first, job, replicas_total=2, want_size={"main": 2})


async def resized_in_place(gate: Gate) -> Attempt:
    """A service gets two members more under its launch, and then would get more than there is room for."""
    attempt = await gate.run(kind="inference")
    await attempt.until("RUNNING")
    for replicas, reached in ((3, True), (1000, False)):
        before = len(gate.clusters["one"].launches[attempt.key].ranks)
        wish = ResizeView("group-one", replicas, before)
        gate.store.wish(attempt.key, resize=wish, stop_grace_s=30, stop_asked_ms=gate.store.now_ms())
        await attempt.gate_until(lambda: gate.store.rows[attempt.key].resize is None, f"a resize to {replicas} over")
        assert gate.store.resizes[-1][0] is reached
        assert len(gate.clusters["one"].launches[attempt.key].ranks) == 3
    gate.clusters["one"].finish(attempt.key)
    return attempt


async def _goes_on(gate: Gate, first: Attempt, job: uuid.UUID, **fields: Any) -> Attempt:
    second = await gate.run(job=job, number=2, checkpoints=True, **fields)
    second.before = first
    await second.until("RUNNING")
    gate.clusters["one"].finish(second.key)
    return second


async def tried_again(gate: Gate) -> Attempt:
    """A request is lost, then the backend is dark for a moment: the delays before the next tries are in the history."""
    gate.clusters["one"].faults.inject("start", Fault.LOST_REQUEST)
    gate.clusters["one"].faults.inject("start", Fault.DARK)
    attempt = await gate.run()
    await attempt.until("RUNNING")
    gate.clusters["one"].finish(attempt.key)
    return attempt


ALL: dict[str, Scenario] = {
    "straight_run": straight_run,
    "refused": refused,
    "no_capacity": no_capacity,
    "cancelled_while_pending": cancelled_while_pending,
    "preempted_with_grace": preempted_with_grace,
    "gang_of_two": gang_of_two,
    "gang_rolled_back": gang_rolled_back,
    "revoked": revoked,
    "revoked_then_resumed": revoked_then_resumed,
    "resized": resized,
    "resized_in_place": resized_in_place,
    "tried_again": tried_again,
}
