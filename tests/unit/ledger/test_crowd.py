"""64 at once on a deep tree: no ring of locks, no limit passed, and what is tried again is tried a bounded number of
times.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from gateway.ledger import accounts, accrual, leases
from gateway.ledger import credits as credit
from gateway.ledger.accounts import Balance, Key
from gateway.ledger.accrual import accrue
from gateway.ledger.check import check
from gateway.ledger.engine import in_transaction, make_engine
from gateway.ledger.leases import LimitExceeded
from gateway.ledger.settlement import settle
from gateway.ledger.tables.capacity import Flavor, Pool
from policies.settings import PolicySettings
from policies.snapshot import Placed
from policies.vocabulary import Account
from tests.builders.ledger import FLAVOR, World, gpus
from tests.harness.clock import Clock
from tests.unit.ledger.test_settlement import preempt
from workflows.messages import EndRequest

T = TypeVar("T")
THREADS = 64
LIMIT = 16
DEPTH = 8


@pytest.fixture
def crowded(database_url: str) -> Iterator[Engine]:
    made = make_engine(database_url, pool_size=THREADS + 4)
    yield made
    made.dispose()


class Crowd:
    """What many threads do, and how often any of it had to be done again."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tries: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self._lock = threading.Lock()

    def once(self, name: str, work: Callable[[Session], T]) -> T:
        def counted(session: Session) -> T:
            with self._lock:
                self.tries[name] += 1
            return work(session)

        answer = in_transaction(self.world.engine, counted)
        with self._lock:
            self.done[name] += 1
        return answer


def deadlocks(engine: Engine) -> int:
    """As the server has counted them in this database."""
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_stat_force_next_flush()"))
    with engine.connect() as connection:
        found = connection.execute(text("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"))
        return int(found.scalar_one())


def deep_tree(world: World) -> list[int]:
    """A root with a limit, and three branches eight levels deep, made leaf by leaf so that ids do not follow depth."""
    world.tenant("org", max_gpus=LIMIT)
    leaves = []
    for branch in ("a", "b", "c"):
        path = "org"
        for level in range(DEPTH - 1):
            path = f"{path}/{branch}{level}"
            leaf = world.tenant(path, max_gpus=LIMIT - 2 * level if level < 4 else None)
        leaves.append(leaf)
    return leaves


def test_leases_and_settlements_of_64_threads_on_a_deep_tree_never_wait_in_a_ring(crowded: Engine) -> None:
    world = World(crowded)
    crowd = Crowd(world)
    root = 1
    leaves = deep_tree(world)
    # Accounts are made in another order than the paths go, so that ascending id is not simply root first.
    for leaf in reversed(leaves):
        made = world.admit(world.job(leaf), gpus(1))
        crowd.once("settle", lambda s, one=made.attempt_id: settle(s, EndRequest(one, "UserCancelled")))  # type: ignore[misc]
    over = threading.Event()
    admitted: Counter[str] = Counter()

    def act(number: int) -> None:
        rng = random.Random(number)
        for _ in range(2):
            try:
                made = world.admit(world.job(rng.choice(leaves)), gpus(rng.randint(1, 3)))
            except LimitExceeded:
                admitted["refused"] += 1
                continue
            admitted["taken"] += 1
            if rng.random() < 0.5:
                world.runs(made, for_s=30)
                preempt(world, made, waiter=f"tg-waiter-{number}")
            reason = rng.choice(["Preempted", "Completed", "NodeLost", "UserCancelled"])
            for _ in range(2):
                crowd.once("settle", lambda s, one=made.attempt_id, why=reason: settle(s, EndRequest(one, why)))  # type: ignore[misc]
            if rng.random() < 0.1:
                accrue(crowded)

    def watch() -> int:
        most = 0
        while not over.is_set():
            most = max(most, sum(world.balance("concurrency", root, "accelerators")))
            time.sleep(0.01)  # as often as matters, and not all of the server
        return most

    with ThreadPoolExecutor(THREADS + 1) as pool:
        watcher = pool.submit(watch)
        actors = [pool.submit(act, number) for number in range(THREADS)]
        try:
            for actor in actors:
                actor.result()
        finally:
            over.set()
        assert watcher.result() <= LIMIT * 1000
    assert admitted["taken"] >= LIMIT
    assert crowd.tries == crowd.done  # nobody was ended for the sake of another
    assert deadlocks(crowded) == 0
    assert world.held(root) == 0
    assert check(crowded) == []


def test_credits_of_two_flavors_burn_and_expire_beside_settlements_without_a_ring(database_url: str) -> None:
    """Two rounds of accrual at once, and settlements of gangs over both flavors that lock the same accounts."""
    clock = Clock(database_url)
    engine = make_engine(database_url, pool_size=40)
    world = World(engine)
    crowd = Crowd(world)
    with world.session() as session:
        session.add(Flavor(name="a-first", accelerator="A"))
        session.flush()
        session.add(Pool(name="a-first", backend="b", flavor="a-first"))
        session.commit()
    tenants = [world.tenant(name) for name in ("z", "m", "a")]
    both: tuple[Placed, ...] = (*gpus(2), *gpus(1, pool="a-first", flavor="a-first"))

    def earn(tenant: int, waiter: str) -> None:
        made = world.admit(world.job(tenant), both if tenant != tenants[0] else both[::-1])
        world.runs(made, for_s=300)
        preempt(world, made, waiter=waiter)
        crowd.once("settle", lambda s: settle(s, EndRequest(made.attempt_id, "Preempted")))

    for tenant in tenants:
        earn(tenant, "first")
    clock.move(credit.PERIOD * credit.PERIODS_KEPT)  # all of it is due to expire
    before = world.scalar("SELECT count(*) FROM credits")
    gone: list[int] = []

    def expire(_: int) -> None:
        gone.append(crowd.once("expire", credit.expire))
        crowd.once("burn", credit.burn_running)

    with ThreadPoolExecutor(24) as pool:
        work: list[Any] = [pool.submit(expire, n) for n in range(8)]
        work += [pool.submit(earn, tenants[n % 3], f"waiter-{n}") for n in range(16)]
        for one in work:
            one.result()
    assert before == 6
    assert crowd.tries == crowd.done
    assert deadlocks(engine) == 0
    assert sum(one > 0 for one in gone) == 1  # each credit expires once, whoever comes first
    assert world.scalar("SELECT count(*) FROM credits WHERE burned_gpu_ms > gpu_ms") == 0
    assert world.balance(Account.CREDIT.value, tenants[0], "gpu_ms")[0] > 0
    assert check(engine) == []
    engine.dispose()
    clock.close()


class LockOrder:
    """Which accounts each transaction locks, in which order: the rule from which the absence of rings follows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.locked: dict[Session, list[int]] = {}
        self.broken: list[list[int]] = []
        for module in (accounts, leases, credit, accrual):
            monkeypatch.setattr(module, "locked", self._noting(accounts.locked))

    def _noting(self, locked: Callable[..., dict[Key, Balance]]) -> Callable[..., dict[Key, Balance]]:
        def noted(session: Session, keys: Iterable[Key]) -> dict[Key, Balance]:
            found = locked(session, keys)
            mine = self.locked.setdefault(session, [])
            fresh = sorted({one.id for one in found.values()} - set(mine))
            if fresh and mine and fresh[0] < max(mine):
                self.broken.append([*mine, *fresh])
            mine += fresh
            return found

        return noted


def test_no_transaction_locks_an_account_below_one_that_it_holds(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(database_url)
    engine = make_engine(database_url, pool_size=4)
    world = World(engine)
    with world.session() as session:
        session.add(Flavor(name="a-first", accelerator="A"))
        session.flush()
        session.add(Pool(name="a-first", backend="b", flavor="a-first"))
        session.commit()
    world.tenant("lender", min_gpus=80, lendable=80)
    tenants = [world.tenant(name) for name in ("z", "m", "a")]
    both: tuple[Placed, ...] = (*gpus(2), *gpus(1, pool="a-first", flavor="a-first"))
    order = LockOrder(monkeypatch)

    def preempted(tenant: int, placed: tuple[Placed, ...]) -> None:
        made = world.admit(world.job(tenant), placed)
        world.runs(made, for_s=3600)
        waiter = world.admit(world.job(tenants[0]), gpus(2), contingent_on=[made.attempt_id])
        preempt(world, made, waiter=waiter.attempt_id)
        in_transaction(engine, lambda s: settle(s, EndRequest(made.attempt_id, "Preempted")))
        in_transaction(engine, lambda s: settle(s, EndRequest(waiter.attempt_id, "Completed")))

    for tenant in (*tenants, *reversed(tenants)):
        preempted(tenant, gpus(2))
        preempted(tenant, both[::-1])
    for tenant in tenants:
        for _ in range(2):
            in_transaction(engine, lambda s, t=tenant: _redeemed(s, t, clock))  # type: ignore[misc]
        world.runs(world.admit(world.job(tenant), both), for_s=60)
    for _ in range(3):
        clock.move(timedelta(minutes=20))
        accrue(engine)
    clock.move(credit.PERIOD * credit.PERIODS_KEPT)
    accrue(engine)
    assert world.scalar("SELECT count(*) FROM transactions WHERE kind = 'credit_expired'") > 3
    assert world.scalar("SELECT count(*) FROM transactions WHERE kind = 'credit_burned'") > 6
    assert len(order.locked) > 30
    assert order.broken == []
    assert check(engine) == []
    engine.dispose()
    clock.close()


def _redeemed(session: Session, tenant: int, clock: Clock) -> None:
    credit.redeem(
        session,
        tenant_id=tenant,
        flavor=FLAVOR,
        gpu_ms=600_000,
        starts_at=clock.at,
        ends_at=clock.at + timedelta(minutes=30),
        principal="ann",
        settings=PolicySettings(),
    )


@pytest.mark.parametrize(("state", "tries"), [("40001", 5), ("40P01", 5), ("55P03", 5), ("23505", 1), ("57014", 1)])
def test_only_what_the_database_ended_for_another_is_tried_again_and_five_times_at_most(
    engine: Engine, state: str, tries: int
) -> None:
    """Serialization failure, deadlock, lock not available; a unique violation or a cancelled statement is final."""
    seen: list[int] = []

    def work(session: Session) -> None:
        seen.append(1)
        session.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '{state}'; END $$"))

    began = time.monotonic()
    with pytest.raises(DBAPIError):
        in_transaction(engine, work)
    assert len(seen) == tries
    assert time.monotonic() - began < 30  # 0.02 s doubled four times at most, and the server's own time


def test_what_succeeds_at_the_third_try_is_done_once(world: World) -> None:
    tenant = world.tenant("acme")
    seen: list[int] = []

    def work(session: Session) -> None:
        seen.append(1)
        session.execute(text("UPDATE tenants SET contact = contact || 'x' WHERE id = :id"), {"id": tenant})
        if len(seen) < 3:
            session.execute(text("DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END $$"))

    in_transaction(world.engine, work)
    assert world.scalar("SELECT contact FROM tenants WHERE id = :id", id=tenant) == "x"
