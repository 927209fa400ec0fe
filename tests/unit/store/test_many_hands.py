"""Arbiter, workflows, followers and users at once: nobody waits in a ring, nothing is counted twice or lost."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from backends.types import Handle, Observation, Phase
from gateway.ledger import wishes
from gateway.ledger.check import check
from policies.plan import plan
from policies.settings import PolicySettings
from policies.vocabulary import Reason
from tests.unit.store.world import Gate, rows, scalar, write

JOBS = 24
SETTINGS = PolicySettings(cool_down_ms=0)


def arbitrate(gate: Gate, over: threading.Event) -> None:
    epoch = gate.store.take_epoch("me")
    while not over.is_set():
        cycle = gate.store.cycle()
        gate.store.commit(epoch, cycle, plan(cycle.snapshot, SETTINGS, cycle.now_ms))
        gate.store.wait_for_work(0.05)


def drive(gate: Gate, over: threading.Event, seed: int) -> None:
    chance = random.Random(seed)
    while not over.is_set():
        live = list(gate.store.live_attempts("b"))
        chance.shuffle(live)
        for one in live[:4]:
            view = gate.store.load_attempt(one.attempt_id)
            if view is None or view.lease_state != "held":
                continue
            if view.want_cancel:
                gate.ends(one.attempt_id, Reason.USER_CANCELLED, None)
            elif view.stop_cause:
                gate.store.stop_sent(one.attempt_id)
                gate.ends(one.attempt_id, Reason.PREEMPTED, 75)
            elif view.state != "RUNNING":
                gate.runs(one.attempt_id)
            else:
                seen = Observation(
                    Handle("b", one.attempt_id), Phase.RUNNING, datetime.now(UTC), 0, chance.randrange(99)
                )
                gate.store.observe("b", [seen])
                code = chance.choice((0, 0, 0, 1))
                gate.ends(one.attempt_id, Reason.NON_ZERO_EXIT if code else Reason.COMPLETED, code)


def test_all_at_once_the_ledger_stays_true(gate: Gate) -> None:
    write(gate.engine, "UPDATE pools SET place_first = true, places_nodes = true")
    org = gate.tenant("org", max_gpus=16)
    gate.tenant("org/low", max_gpus=16)
    gate.world.allowance(gate.tenant("org/high"), "P1", 100_000)
    over = threading.Event()

    def users(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(JOBS // 2):
            high = chance.random() < 0.3
            job = gate.submit(
                "org/high" if high else "org/low",
                priority="P1" if high else "P2",
                resources={"accelerators": f"H100:{chance.choice((2, 4, 8))}"},
                retry={"max": 5},
            )
            if chance.random() < 0.2:
                gate.wish(wishes.cancel, job)

    loops: list[Callable[[], None]] = [
        lambda: arbitrate(gate, over),
        lambda: drive(gate, over, 1),
        lambda: drive(gate, over, 2),
    ]
    with ThreadPoolExecutor(5) as pool:
        running = [pool.submit(loop) for loop in loops]
        for done in [pool.submit(users, 3), pool.submit(users, 4)]:
            done.result(timeout=60)
        ended = threading.Event()
        try:
            for _ in range(600):
                if scalar(gate.engine, "SELECT count(*) FROM jobs WHERE ended_at IS NULL") == 0:
                    ended.set()
                    break
                assert not any(loop.done() for loop in running), [loop.exception() for loop in running if loop.done()]
                over.wait(0.1)
        finally:
            over.set()
        for loop in running:
            loop.result(timeout=60)
    assert ended.is_set(), rows(gate.engine, "SELECT id, state, pending FROM jobs WHERE ended_at IS NULL")
    assert check(gate.engine) == []
    assert gate.world.held(org) == 0
    assert scalar(gate.engine, "SELECT count(*) FROM jobs") == JOBS
    twice = rows(
        gate.engine,
        "SELECT job_id FROM events WHERE kind IN ('SUCCEEDED', 'FAILED', 'CANCELLED') AND attempt_id IS NULL"
        " GROUP BY job_id HAVING count(*) > 1",
    )
    assert twice == []
    assert scalar(gate.engine, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
