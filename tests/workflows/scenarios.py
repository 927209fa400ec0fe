"""Lives of attempts, told once: the tests assert their ends, and the recorder stores their histories for replay."""

from collections.abc import Awaitable, Callable

from tests.fakes.faults import Fault
from tests.workflows.gate import Attempt, Gate

Scenario = Callable[[Gate], Awaitable[Attempt]]


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


ALL: dict[str, Scenario] = {
    "straight_run": straight_run,
    "refused": refused,
    "no_capacity": no_capacity,
    "cancelled_while_pending": cancelled_while_pending,
    "preempted_with_grace": preempted_with_grace,
    "gang_of_two": gang_of_two,
    "gang_rolled_back": gang_rolled_back,
    "revoked": revoked,
}
