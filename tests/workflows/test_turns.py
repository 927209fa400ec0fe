"""TP-02 (iii): what arrives while a run ends its wait, or turns, is not lost, and what a run has counted goes on."""

import asyncio
from itertools import pairwise

import pytest

from policies.vocabulary import Reason
from tests.fakes.faults import Fault
from tests.workflows.gate import DEADLINE_S, Attempt, Gate, gate
from tests.workflows.history import Run, ref_of, runs, signals_per_task, turned
from workflows.messages import MAX_EVENTS, NUDGE, AttemptView

AT_EVERY_WAKING = 8  # events: a run that has waited once has more


async def waiting(attempt: Attempt) -> Run:
    """The open run, once it is in its main wait: its timer is the newest event."""
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while True:
        events = (await runs(attempt.gate.client, attempt.key))[-1]
        if attempt.state == "RUNNING" and events[-1].HasField("timer_started_event_attributes"):
            return events
        assert asyncio.get_running_loop().time() < deadline, f"it does not wait: {events[-1]}"
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("max_events", [MAX_EVENTS, AT_EVERY_WAKING])
@pytest.mark.parametrize("second", ["checkpoint", "preempt"])
def test_tp_02_of_two_signals_in_one_task_the_second_is_not_dropped(
    temporal_address: str, second: str, max_events: int
) -> None:
    """The first ends the main wait; with the low threshold the same task also ends the run."""

    async def scene(gate: Gate) -> None:
        async with gate.worker():
            attempt = await gate.run(checkpoints=True, max_events=max_events)
            await waiting(attempt)
        before = (await runs(gate.client, attempt.key))[-1]
        told = gate.clusters["one"].launches[attempt.key].told
        gate.store.wish(attempt.key, nudge=False, want_checkpoint=1)
        await attempt.workflow.signal(NUDGE)
        if second == "checkpoint":
            gate.store.wish(attempt.key, nudge=False, want_checkpoint=2)
        else:
            gate.store.wish(attempt.key, nudge=False, stop_cause="preempt", stop_grace_s=30)
        await attempt.workflow.signal(NUDGE)
        async with gate.worker():
            if second == "checkpoint":
                await attempt.gate_until(lambda: gate.store.rows[attempt.key].checkpoint_done == 2, "the newest wish")
                gate.clusters["one"].finish(attempt.key)
            assert await attempt.ended() == (Reason.COMPLETED if second == "checkpoint" else Reason.PREEMPTED)
        assert len(told) == (second == "checkpoint"), "the newest wish to checkpoint, once"
        chain = await runs(gate.client, attempt.key)
        run = next(run for run in chain if run[0] == before[0])
        at = len(signals_per_task(before))
        assert signals_per_task(run)[at] >= 2, "both came in one task, and it was the one that ended the wait"
        assert turned(run) == (max_events == AT_EVERY_WAKING)
        await check_memory(attempt, chain)

    async def main() -> None:
        async with gate(temporal_address, working=False) as made, asyncio.timeout(60):
            await scene(made)

    asyncio.run(main())


async def check_memory(attempt: Attempt, chain: list[Run]) -> None:
    """Each run was told which turn it is, and when the start was asked for."""
    refs = [await ref_of(run) for run in chain]
    assert [ref.turn for ref in refs] == list(range(len(chain)))
    asked = [ref.start_asked_ms for ref in refs if ref.start_asked_ms is not None]
    assert len(set(asked)) <= 1
    assert len(asked) == len(refs) - 1, "every run but the first, which asked for it"
    assert attempt.gate.clusters["one"].launches[attempt.key].starts == 1


@pytest.mark.parametrize("max_events", [MAX_EVENTS, AT_EVERY_WAKING])
def test_tp_02_a_nudge_about_what_the_running_step_has_missed_ends_the_next_wait(
    temporal_address: str, max_events: int
) -> None:
    async def main() -> None:
        async with gate(temporal_address) as made, asyncio.timeout(60):
            attempt = await made.run(checkpoints=True, max_events=max_events)
            await waiting(attempt)

            def after_read(row: AttemptView) -> None:
                """Just after the step has read the row for the last time, there is another wish, and its nudge."""
                if row.checkpoint_done == 1:
                    made.store.after_read = lambda _row: None
                    made.store.wish(attempt.key, nudge=False, stop_cause="preempt", stop_grace_s=30)
                    asyncio.run_coroutine_threadsafe(attempt.workflow.signal(NUDGE), made.loop).result(10)

            made.store.after_read = after_read
            made.store.wish(attempt.key, want_checkpoint=1)
            assert await attempt.ended() == Reason.PREEMPTED, "at once, and not at the next reading in a minute"
            assert len(made.clusters["one"].launches[attempt.key].told) == 1

    asyncio.run(main())


def test_tp_02_wishes_that_come_faster_than_they_are_carried_out_do_not_put_the_turn_off(temporal_address: str) -> None:
    async def main() -> None:
        async with gate(temporal_address) as made, asyncio.timeout(60):
            attempt = await made.run(checkpoints=True, max_events=100)
            await waiting(attempt)

            def after_read(row: AttemptView) -> None:
                """Whenever the row is read there is one more wish: the run never comes to its wait."""
                if row.want_checkpoint < 100:
                    made.store.wish(attempt.key, nudge=False, want_checkpoint=row.want_checkpoint + 1)

            made.store.after_read = after_read
            made.store.wish(attempt.key, want_checkpoint=1)
            await attempt.gate_until(lambda: made.store.rows[attempt.key].checkpoint_done == 100, "the newest wish")
            made.clusters["one"].finish(attempt.key)
            assert await attempt.ended() == Reason.COMPLETED
            chain = await runs(made.client, attempt.key)
            assert len(chain) > 2
            assert max(len(run) for run in chain) < 130
            await check_memory(attempt, chain)

    asyncio.run(main())


def test_tp_02_a_step_that_fails_is_not_tried_faster_after_a_turn(temporal_address: str) -> None:
    async def main() -> None:
        async with gate(temporal_address) as made, asyncio.timeout(60):
            made.clusters["one"].faults.inject("start", Fault.DARK, times=2)
            attempt = await made.run(max_events=AT_EVERY_WAKING)
            await waiting(attempt)
            made.clusters["one"].finish(attempt.key)
            assert await attempt.ended() == Reason.COMPLETED
            chain = await runs(made.client, attempt.key)
            failures = [(await ref_of(run)).failures for run in chain]
            assert [count for before, count in pairwise([0, *failures]) if count != before] == [1, 2, 0], failures
            assert made.clusters["one"].launches[attempt.key].starts == 1

    asyncio.run(main())
