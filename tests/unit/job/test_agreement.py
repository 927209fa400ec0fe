"""The gang agrees on one step, whoever hears of the notice and when, and no rank hangs in a collective."""

import itertools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.harness.ports import free_port
from tests.harness.waiting import eventually
from tidegate.job.agreement import Coordinator, Follower
from tidegate.job.gate import SAVE, STOP, Gate

KEY = b"one attempt's secret"


class Gang:
    """Ranks as threads with a barrier for the collective: a rank that stops alone breaks it."""

    def __init__(self, ranks: int, *, patience_s: float = 10, steps: int = 4000, key: bytes = KEY) -> None:
        port = free_port()
        self.gates = [Gate(patience_s + 2) for _ in range(ranks)]
        self.parts: list[Coordinator | Follower] = [
            Coordinator(self.gates[0], ranks, ("127.0.0.1", port), KEY, patience_s),
            *(Follower(self.gates[rank], rank, ("127.0.0.1", port), key) for rank in range(1, ranks)),
        ]
        self.collective = threading.Barrier(ranks, timeout=10)
        self.steps = steps
        self.stopped: dict[int, int] = {}
        self.saved: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
        self.at = [-1] * ranks

    def train(self, rank: int, seed: int) -> None:
        pace = random.Random(f"{seed}-{rank}")
        try:
            for step in range(self.steps):
                self.collective.wait()
                time.sleep(pace.random() * 0.002)  # ranks leave a collective at different moments
                stop = self.gates[rank].stop(step)
                self.at[rank] = step
                if self.gates[rank].save(step):
                    self.saved[rank].append(step)
                if stop:
                    self.stopped[rank] = step
                    return
        except threading.BrokenBarrierError:
            self.stopped[rank] = -1

    @contextmanager
    def running(self, seed: int = 0) -> Iterator[None]:
        for part in self.parts:
            part.start()
        threads = [threading.Thread(target=self.train, args=(rank, seed)) for rank in range(len(self.parts))]
        for thread in threads:
            thread.start()
        try:
            yield
            for thread in threads:
                thread.join(20)
        finally:
            self.collective.abort()
            for part in self.parts:
                part.close()
            for thread in threads:
                thread.join(20)

    def passed(self, step: int) -> bool:
        return min(self.at) >= step


def trained_until_stop(gate: Gate, first: int) -> int:
    """The step at which a rank that goes on step by step is stopped."""
    steps = itertools.count(first)
    return eventually(lambda: next((step for step in itertools.islice(steps, 1) if gate.stop(step)), 0))


@pytest.mark.parametrize("seed", range(8))
def test_all_ranks_stop_at_one_step_whoever_was_told(seed: int) -> None:
    dice = random.Random(seed)
    gang = Gang(ranks=4)
    with gang.running(seed):
        eventually(lambda: gang.passed(dice.randrange(10)))
        for rank in dice.sample(range(4), dice.randint(1, 4)):
            gang.parts[rank].flag(STOP, "notice-1")
            time.sleep(dice.random() * 0.02)
    assert len(gang.stopped) == 4
    assert len(set(gang.stopped.values())) == 1
    assert min(gang.stopped.values()) >= 0


def test_a_flag_before_the_first_step_stops_the_whole_gang_early() -> None:
    gang = Gang(ranks=3)
    gang.parts[2].flag(STOP, "before anybody has connected")
    with gang.running():
        pass
    assert len(set(gang.stopped.values())) == 1
    assert -1 not in gang.stopped.values()


def test_a_save_is_agreed_once_and_training_goes_on() -> None:
    gang = Gang(ranks=3)
    with gang.running():
        eventually(lambda: gang.passed(3))
        for part in gang.parts:  # the same request reaches every node
            part.flag(SAVE, "request-1")
        eventually(lambda: all(gang.saved.values()))
        first = {rank: list(steps) for rank, steps in gang.saved.items()}
        later = max(gang.at) + 5
        eventually(lambda: gang.passed(later))
        gang.parts[2].flag(STOP, "request-2")
    assert len({tuple(steps) for steps in gang.saved.values()}) == 1
    assert gang.saved == first
    assert len(first[0]) == 1
    assert set(gang.stopped.values()) != {-1}


def test_a_second_request_of_the_same_node_saves_again() -> None:
    gang = Gang(ranks=2)
    with gang.running():
        eventually(lambda: gang.passed(1))
        gang.parts[1].flag(SAVE, "request-1")
        eventually(lambda: all(gang.saved.values()))
        gang.parts[1].flag(SAVE, "request-2")
        eventually(lambda: all(len(steps) == 2 for steps in gang.saved.values()))
        gang.parts[0].flag(STOP, "end")
    assert gang.saved[0] == gang.saved[1]


def test_a_rank_that_never_answers_is_left_out_in_time() -> None:
    gate = Gate()
    coordinator = Coordinator(gate, 2, ("127.0.0.1", free_port()), KEY, 0.2)
    coordinator.start()
    assert not gate.stop(5)
    coordinator.flag(STOP, "notice")
    assert trained_until_stop(gate, 6) >= 6
    coordinator.close()


def test_a_rank_that_connects_late_is_told_at_once() -> None:
    port = free_port()
    gates = [Gate(), Gate()]
    coordinator = Coordinator(gates[0], 2, ("127.0.0.1", port), KEY, 0.1)
    coordinator.start()
    gates[0].stop(8)
    coordinator.flag(STOP, "notice")
    agreed = trained_until_stop(gates[0], 9)
    follower = Follower(gates[1], 1, ("127.0.0.1", port), KEY)
    follower.start()
    assert eventually(lambda: gates[1].stop(agreed))
    coordinator.close()
    follower.close()


def test_a_stranger_without_the_key_cannot_stop_the_gang() -> None:
    port = free_port()
    gates = [Gate(), Gate()]
    coordinator = Coordinator(gates[0], 2, ("127.0.0.1", port), KEY, 0.2)
    stranger = Follower(gates[1], 1, ("127.0.0.1", port), b"a guess")
    coordinator.start()
    stranger.start()
    stranger.flag(STOP, "mischief")
    deadline = time.monotonic() + 1
    step = 0
    while time.monotonic() < deadline:
        assert not gates[0].stop(step)
        step += 1
        time.sleep(0.02)
    coordinator.close()
    stranger.close()


def test_a_lone_process_needs_no_network() -> None:
    gate = Gate()
    coordinator = Coordinator(gate, 1, ("127.0.0.1", 0), KEY, 5)
    coordinator.start()
    assert not gate.stop(0)
    coordinator.flag(STOP, "notice")
    assert trained_until_stop(gate, 1) >= 1
    coordinator.close()


def test_a_rank_does_not_wait_for_ever_when_the_coordinator_dies_in_a_freeze() -> None:
    gate = Gate(patience_s=0.2)
    assert not gate.stop(3)
    assert gate.freeze(1) == 3
    assert not gate.stop(3), "the step that was passed is not asked twice"
    began = time.monotonic()
    assert gate.stop(4)
    assert time.monotonic() - began < 5
