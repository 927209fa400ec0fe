"""A limit is checked where the lease is made, so no burst passes it."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

import pytest

from gateway.ledger.limits import LimitExceeded
from tests.builders.ledger import GPU, Try, World, gpus


def at_once(count: int, act: Callable[[int], Try]) -> tuple[list[Try], list[LimitExceeded]]:
    """Run `act` in so many threads that start together."""
    barrier = Barrier(count)

    def one(number: int) -> Try | LimitExceeded:
        barrier.wait()
        try:
            return act(number)
        except LimitExceeded as refused:
            return refused

    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(one, range(count)))
    return [a for a in answers if isinstance(a, Try)], [a for a in answers if isinstance(a, LimitExceeded)]


def test_ql_01_eight_at_once_at_a_limit_of_one_job_admit_one(world: World) -> None:
    tenant = world.tenant("acme")
    world.limit(tenant, "jobs", 1)
    jobs = [world.job(tenant) for _ in range(8)]
    admitted, refused = at_once(8, lambda n: world.admit(jobs[n], gpus(1)))
    assert len(admitted) == 1
    assert {(r.tenant, r.flavor, r.resource, r.limit, r.held) for r in refused} == {("acme", "h100", "jobs", 1, 1)}
    assert world.balance("concurrency", tenant, "jobs") == (1, 0)


def test_ql_01_five_times_three_at_a_limit_of_ten_admit_three(world: World) -> None:
    root = world.tenant("acme", max_gpus=10)
    leaf = world.tenant("acme/nlp")
    jobs = [world.job(leaf) for _ in range(5)]
    admitted, refused = at_once(5, lambda n: world.admit(jobs[n], gpus(3)))
    assert (len(admitted), len(refused)) == (3, 2)
    assert all(r.tenant == "acme" and r.held == 9 * GPU and r.asked == 3 * GPU for r in refused)
    assert world.held(root) == world.held(leaf) == 9


def test_ql_01_fifty_threads_never_exceed_at_any_read(world: World) -> None:
    root = world.tenant("acme", max_gpus=10)
    leaves = [world.tenant(f"acme/team-{n}", max_gpus=4) for n in range(5)]
    jobs = [world.job(leaves[n % 5]) for n in range(50)]
    done = Event()

    def watch() -> int:
        most = 0
        while not done.is_set():
            most = max(most, world.held(root))
        return most

    with ThreadPoolExecutor(1) as watcher:
        seen = watcher.submit(watch)
        admitted, _ = at_once(50, lambda n: world.admit(jobs[n], gpus(1 + n % 3)))
        done.set()
        assert seen.result() <= 10
    sizes = [world.lease(made).gpu_milli // GPU for made in admitted]
    assert 8 <= sum(sizes) <= 10
    assert world.held(root) == sum(sizes)
    assert all(world.held(leaf) <= 4 for leaf in leaves)


PROCESS = """
import sys, uuid
from gateway.ledger.engine import make_engine
from gateway.ledger.limits import LimitExceeded
from tests.builders.ledger import World, gpus
world = World.__new__(World)
world.engine = make_engine(sys.argv[1], pool_size=2)
sys.stdin.readline()
admitted = 0
for job in sys.argv[2:]:
    try:
        world.admit(uuid.UUID(job), gpus(3))
        admitted += 1
    except LimitExceeded:
        pass
print(admitted)
"""


def test_ql_01_two_processes_never_exceed_together(world: World, database_url: str) -> None:
    tenant = world.tenant("acme", max_gpus=10)
    halves = [[str(world.job(tenant)) for _ in range(4)] for _ in range(2)]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, database_url, *jobs],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        for jobs in halves
    ]
    answers = [process.communicate("go\n", timeout=60)[0] for process in running]
    assert sum(int(answer) for answer in answers) == 3
    assert world.held(tenant) == 9


def test_a_refusal_leaves_nothing_behind(world: World) -> None:
    tenant = world.tenant("acme", max_gpus=2)
    with pytest.raises(LimitExceeded, match=r"acme: 3000 more accelerators of h100 would pass the limit of 2000"):
        world.admit(world.job(tenant), gpus(3))
    assert world.held(tenant) == 0
    assert world.scalar("SELECT count(*) FROM leases") == 0
    assert world.scalar("SELECT count(*) FROM entries") == 0


def test_every_transaction_sums_to_zero_per_unit(world: World) -> None:
    world.tenant("acme")
    leaf = world.tenant("acme/nlp")
    world.admit(world.job(leaf), gpus(4), max_duration_ms=3_600_000)
    assert world.scalar("SELECT count(*) FROM entries") > 0
    unbalanced = world.scalar(
        "SELECT count(*) FROM (SELECT transaction_id, unit, flavor, e.pending FROM entries e JOIN accounts a"
        " ON a.id = account_id GROUP BY 1, 2, 3, 4 HAVING sum(amount) <> 0) AS bad"
    )
    assert unbalanced == 0


def test_p1_needs_an_allowance_on_the_path_with_an_hour_left_for_each_lease(world: World) -> None:
    world.tenant("acme")
    leaf = world.tenant("acme/nlp")
    with pytest.raises(LimitExceeded, match="class P1"):
        world.admit(world.job(leaf, klass="P1"), gpus(1))
    world.allowance(leaf, "P1", gpu_hours=4)
    world.admit(world.job(leaf, klass="P1"), gpus(3))
    with pytest.raises(LimitExceeded) as refused:
        world.admit(world.job(leaf, klass="P1"), gpus(2))
    assert refused.value.is_budget
    world.admit(world.job(leaf, klass="P1"), gpus(1))


def test_a_budget_counts_what_is_spent_and_what_is_held_ahead(world: World) -> None:
    root = world.tenant("acme")
    leaf = world.tenant("acme/nlp")
    world.budget(root, "gpu_ms", 10 * 3_600_000)
    world.admit(world.job(leaf), gpus(4), max_duration_ms=2 * 3_600_000)
    with pytest.raises(LimitExceeded) as refused:
        world.admit(world.job(leaf), gpus(3))
    assert (refused.value.tenant, refused.value.resource, refused.value.held) == ("acme", "gpu_ms", 8 * 3_600_000)
    world.admit(world.job(leaf), gpus(2))
