"""An attempt's workflow on a real Temporal server, with fake backends behind the real port and rows in memory."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from policies.vocabulary import Reason
from tests.fakes.faults import Fault
from tests.workflows import scenarios
from tests.workflows.gate import Attempt, Gate, gate
from workflows.activities.relay import start_attempt
from workflows.messages import NUDGE

T = TypeVar("T")
Play = Callable[[Gate], Awaitable[T]]


@pytest.fixture
def play(temporal_address: str) -> Callable[..., None]:
    """Run a coroutine against a fresh gate."""

    def run(scene: Play[None], *backends: str, **cluster: Any) -> None:
        async def main() -> None:
            async with gate(temporal_address, *backends, **cluster) as made, asyncio.timeout(60):
                await scene(made)

        asyncio.run(main())

    return run


def test_a_straight_run_takes_two_regular_activities(play: Callable[..., None]) -> None:
    async def scene(gate: Gate) -> None:
        attempt = await scenarios.straight_run(gate)
        assert await attempt.ended() == Reason.COMPLETED
        assert gate.store.marks == ["PENDING", "RUNNING"]
        history = await attempt.workflow.fetch_history()
        scheduled = [e for e in history.events if e.HasField("activity_task_scheduled_event_attributes")]
        names = [e.activity_task_scheduled_event_attributes.activity_type.name for e in scheduled]
        assert names == ["launch"]  # reading, marking and settling are transactions, and local

    play(scene)


def test_a_refusal_gives_the_lease_back_and_leaves_nothing(play: Callable[..., None]) -> None:
    async def scene(gate: Gate) -> None:
        attempt = await scenarios.refused(gate)
        assert await attempt.ended() == Reason.BACKEND_REFUSED
        assert attempt.state == "REFUSED"
        assert gate.clusters["one"].launches == {}
        assert gate.store.rests[0][:1] == ("pool-one",)

    play(scene)


def test_no_capacity_rests_the_pool(play: Callable[..., None]) -> None:
    async def scene(gate: Gate) -> None:
        attempt = await scenarios.no_capacity(gate)
        assert await attempt.ended() == Reason.BACKEND_REFUSED
        assert gate.store.rests == [("pool-one", 60, "NoCapacity")]
        assert gate.clusters["one"].launches == {}

    play(scene)


def test_a_job_that_can_run_nowhere_fails_and_a_misconfigured_backend_lets_it_wait(play: Callable[..., None]) -> None:
    async def scene(gate: Gate) -> None:
        gate.clusters["one"].faults.inject("prepare", Fault.REFUSED_FOR_GOOD)
        assert await (await gate.run()).ended() == Reason.INVALID_PARAMETER
        assert gate.store.rests == []
        gate.clusters["one"].faults.inject("prepare", Fault.MISCONFIGURED)
        waiting = await gate.run()
        assert await waiting.ended() == Reason.BACKEND_REFUSED
        assert gate.store.ends[waiting.key].message.startswith("Misconfigured: ")
        assert gate.store.rests == [("pool-one", 300, "Misconfigured")]

    play(scene)


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.LOST_REQUEST, Fault.DARK, Fault.THROTTLED])
@pytest.mark.parametrize("operation", ["prepare", "start"])
def test_sl_08_whatever_happens_to_the_answer_there_is_one_launch(
    play: Callable[..., None], operation: str, fault: Fault
) -> None:
    async def scene(gate: Gate) -> None:
        gate.clusters["one"].faults.inject(operation, fault)
        attempt = await gate.run()
        await attempt.until("RUNNING")
        launch = gate.clusters["one"].launches[attempt.key]
        assert launch.starts == 1
        assert gate.store.ends == {}
        gate.clusters["one"].finish(attempt.key)
        assert await attempt.ended() == Reason.COMPLETED

    play(scene)


def test_a_cancel_while_the_backend_has_it_pending(play: Callable[..., None]) -> None:
    async def scene(gate: Gate) -> None:
        attempt = await scenarios.cancelled_while_pending(gate)
        assert await attempt.ended() == Reason.USER_CANCELLED
        assert gate.clusters["one"].launches[attempt.key].starts == 0

    play(scene)


def test_a_preempted_attempt_is_told_with_its_grace_and_is_no_failure(play: Callable[..., None]) -> None:
    async def scene(gate: Gate) -> None:
        attempt = await scenarios.preempted_with_grace(gate)
        assert await attempt.ended() == Reason.PREEMPTED
        assert attempt.state == "PREEMPTED"
        assert gate.clusters["one"].launches[attempt.key].stops == [("preempt", 30)]

    play(scene)


def test_a_lost_stop_is_sent_again(play: Callable[..., None]) -> None:
    async def scene(gate: Gate) -> None:
        attempt = await gate.run()
        await attempt.until("RUNNING")
        gate.clusters["one"].faults.inject("stop", Fault.DARK)
        gate.store.wish(attempt.key, stop_cause="preempt", stop_grace_s=30)
        assert await attempt.ended() == Reason.PREEMPTED

    play(scene)


def test_a_grace_that_is_over_without_an_end_gives_the_capacity_back(play: Callable[..., None]) -> None:
    async def scene(gate: Gate) -> None:
        attempt = await gate.run(recovery_s=1)
        await attempt.until("RUNNING")
        gate.store.wish(attempt.key, stop_cause="preempt", stop_grace_s=1)
        assert await attempt.ended() == Reason.PREEMPTED
        assert attempt.key not in gate.clusters["one"].launches, "taken away before the lease went back"

    play(scene, stop_code=None)


def test_a_gang_over_two_backends_starts_one_after_the_other_and_ends_whole(play: Callable[..., None]) -> None:
    async def scene(gate: Gate) -> None:
        attempt = await scenarios.gang_of_two(gate)
        assert await attempt.ended() == Reason.COMPLETED
        first, second = (gate.clusters[name].launches[attempt.key].started_at for name in ("one", "two"))
        assert first is not None
        assert second is not None
        assert first < second

    play(scene, "one", "two")


def test_a_gang_whose_second_part_has_no_room_leaves_nothing(play: Callable[..., None]) -> None:
    async def scene(gate: Gate) -> None:
        attempt = await scenarios.gang_rolled_back(gate)
        assert await attempt.ended() == Reason.GANG_ROLLED_BACK
        assert gate.clusters["one"].launches[attempt.key].phase == "Ended"
        assert attempt.key not in gate.clusters["two"].launches
        assert gate.store.rests == [("pool-two", 60, "NoCapacity")]

    play(scene, "one", "two")


def test_a_revocation_notice_reaches_every_part_of_the_gang(play: Callable[..., None]) -> None:
    async def scene(gate: Gate) -> None:
        attempt = await gate.run("one", "two", checkpoints=True)
        await attempt.until("RUNNING")
        gate.clusters["two"].notice(attempt.key, None)
        assert await attempt.ended() == Reason.SPOT_REVOKED
        assert attempt.state == "REVOKED"
        for cluster in gate.clusters.values():
            assert [kind for kind, _ in cluster.launches[attempt.key].stops] == ["revoke"]

    play(scene, "one", "two")


@pytest.mark.parametrize(
    ("scene", "first", "kind"),
    [
        (scenarios.revoked_then_resumed, Reason.SPOT_REVOKED, "revoke"),
        (scenarios.resized, Reason.RESIZED, "resize"),
    ],
)
def test_a_job_that_was_taken_or_resized_goes_on_in_a_second_attempt(
    play: Callable[..., None], scene: scenarios.Scenario, first: Reason, kind: str
) -> None:
    async def story(gate: Gate) -> None:
        second = await scene(gate)
        assert await second.ended() == Reason.COMPLETED
        assert second.before is not None
        assert gate.store.ends[second.before.key].reason == first
        launches = gate.clusters["one"].launches
        assert [told for told, _ in launches[second.before.key].stops] == [kind]
        assert launches[second.key].stops == []
        # One job, and ids made of it and the attempt's number: nothing was drawn.
        assert second.key == second.before.key.removesuffix("-1") + "-2"

    play(story)


def test_sp_08_a_part_that_is_gone_takes_the_gang_with_it(play: Callable[..., None]) -> None:
    async def scene(gate: Gate) -> None:
        attempt = await gate.run("one", "two")
        await attempt.until("RUNNING")
        gate.clusters["two"].evict(attempt.key, Reason.NODE_LOST, bad_nodes=("pool-two-0",))
        assert await attempt.ended() == Reason.NODE_LOST
        assert gate.clusters["one"].launches[attempt.key].phase == "Ended"

    play(scene, "one", "two")


def test_a_wish_to_checkpoint_is_passed_on_once(play: Callable[..., None]) -> None:
    async def scene(gate: Gate) -> None:
        attempt = await gate.run(checkpoints=True)
        await attempt.until("RUNNING")
        gate.store.wish(attempt.key, want_checkpoint=1)
        await attempt.gate_until(lambda: gate.store.rows[attempt.key].checkpoint_done == 1, "sent")
        assert [kind for kind, _ in gate.clusters["one"].launches[attempt.key].told] == ["checkpoint"]
        gate.clusters["one"].finish(attempt.key)
        assert await attempt.ended() == Reason.COMPLETED

    play(scene)


@pytest.mark.parametrize("state", ["RESERVED", "PENDING", "RUNNING", "STOPPING"])
def test_a_workflow_may_be_started_in_any_state_of_its_attempt(play: Callable[..., None], state: str) -> None:
    async def scene(gate: Gate) -> None:
        earlier = await gate.run()
        await earlier.until("RUNNING")
        await earlier.workflow.terminate("its worker's namespace was lost")
        row = gate.store.rows[earlier.key]
        if state == "STOPPING":
            gate.store.wish(row.attempt_id, nudge=False, stop_cause="preempt", stop_grace_s=30)
        elif state in {"RESERVED", "PENDING"}:  # the launch happened, its record did not
            gate.store.wish(row.attempt_id, nudge=False, state=state, prepared=[], started=[], handles={})
        assert await start_attempt(gate.client, earlier.key, gate.queue)
        again = Attempt(gate, earlier.key)
        if state != "STOPPING":
            await again.until("RUNNING")
            gate.clusters["one"].finish(again.key)
        assert await again.ended() == (Reason.PREEMPTED if state == "STOPPING" else Reason.COMPLETED)
        assert gate.clusters["one"].launches[again.key].starts == 1

    play(scene)


@pytest.mark.parametrize("state", ["SUCCEEDED", "PREEMPTED", "REFUSED"])
def test_ql_02_a_workflow_of_an_ended_attempt_leaves_at_once(play: Callable[..., None], state: str) -> None:
    async def scene(gate: Gate) -> None:
        attempt = await gate.run(state=state)
        assert await asyncio.wait_for(attempt.workflow.result(), 10) == state
        assert gate.store.settles == 0
        assert gate.clusters["one"].calls == []

    play(scene)


def test_tp_02_bursts_of_nudges_half_of_which_are_dropped_lose_no_wish(play: Callable[..., None]) -> None:
    async def scene(gate: Gate) -> None:
        attempt = await gate.run(checkpoints=True)
        await attempt.until("RUNNING")
        for number in range(1, 201):  # numbered wishes; half of the nudges are dropped, the others come in bursts
            gate.store.wish(attempt.key, nudge=False, want_checkpoint=number)
            if number % 2:
                await asyncio.gather(*(attempt.workflow.signal(NUDGE) for _ in range(3)))
        gate.store.wish(attempt.key, nudge=False, want_checkpoint=201)
        await asyncio.gather(attempt.workflow.signal(NUDGE), attempt.workflow.signal(NUDGE))
        await attempt.gate_until(lambda: gate.store.rows[attempt.key].checkpoint_done == 201, "the newest wish")
        gate.clusters["one"].finish(attempt.key)
        assert await attempt.ended() == Reason.COMPLETED

    play(scene)


def test_a_database_that_goes_away_for_a_while_ends_nothing(play: Callable[..., None]) -> None:
    async def scene(gate: Gate) -> None:
        attempt = await gate.run()
        await attempt.until("RUNNING")
        gate.store.failing_reads = 4  # more than one activity's own retries
        gate.store.wish(attempt.key, want_cancel=True)
        assert await attempt.ended() == Reason.USER_CANCELLED

    play(scene)


def test_sl_09_an_object_that_vanished_is_asked_for_by_key_before_it_counts_as_lost(play: Callable[..., None]) -> None:
    async def scene(gate: Gate) -> None:
        begun: dict[str, Any] = {
            "prepared": ["one"],
            "started": ["one"],
            "handles": {"one": "gone"},
            "pending_ms": 1,
            "started_ms": 1,
        }
        attempt = await gate.run(state="RUNNING", **begun)
        gate.clusters["one"].changes.append(attempt.key)  # the watch tells of it, and there is nothing
        assert await attempt.ended() == Reason.LOST
        assert ("find", attempt.key) in gate.clusters["one"].calls

    play(scene)
