"""Everybody at once: admissions, preemptions, ends told twice, cancels and accrual, over one small tree.

The ledger must hold at the end, no limit may be passed on the way, and no ring of locks may outlast the retries.
"""

import random
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from gateway.ledger import leases
from gateway.ledger.accrual import accrue
from gateway.ledger.check import check
from gateway.ledger.engine import in_transaction
from gateway.ledger.settlement import settle
from tests.builders.ledger import Try, World, gpus
from workflows.messages import EndRequest

LIMIT = 12


def live(world: World) -> list[Try]:
    with world.session() as session:
        rows = session.execute(text("SELECT job_id, id, lease_id FROM attempts WHERE ended_at IS NULL")).all()
    return [Try(row.job_id, row.id, row.lease_id) for row in rows]


def admit(world: World, rng: random.Random, tenants: list[int], *, victims: int) -> None:
    chosen = rng.sample(live(world), k=victims) if victims and len(live(world)) > victims else []
    try:
        made = world.admit(
            world.job(rng.choice(tenants)), gpus(rng.randint(1, 4)), contingent_on=[v.attempt_id for v in chosen]
        )
    except (leases.LimitExceeded, ValueError):
        return
    except OperationalError:
        return  # the arbiter drops such a decision and looks again in its next cycle
    if not chosen:
        world.runs(made, for_s=rng.randint(0, 50))


def finish(world: World, rng: random.Random, reason: str) -> None:
    if not (attempts := live(world)):
        return
    made = rng.choice(attempts)
    for _ in range(2):

        def once(session: Session) -> None:
            settle(session, EndRequest(made.attempt_id, reason))

        in_transaction(world.engine, once)


def test_the_ledger_holds_in_a_storm(world: World) -> None:
    root = world.tenant("acme", max_gpus=LIMIT)
    tenants = [world.tenant(f"acme/team-{n}", max_gpus=8) for n in range(3)]
    done = Event()

    def act(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(15):
            kind = rng.randrange(8)
            if kind < 3:
                admit(world, rng, tenants, victims=0)
            elif kind == 3:
                admit(world, rng, tenants, victims=rng.randint(1, 2))
            elif kind == 4:
                accrue(world.engine)
            else:
                finish(world, rng, rng.choice(["Completed", "Preempted", "NonZeroExit", "NodeLost", "UserCancelled"]))

    def watch() -> int:
        most = 0
        while not done.is_set():
            most = max(most, world.balance("concurrency", root, "accelerators")[0] // 1000)
        return most

    with ThreadPoolExecutor(7) as pool:
        watcher = pool.submit(watch)
        actors = [pool.submit(act, seed) for seed in range(6)]
        try:
            for actor in actors:
                actor.result()
        finally:
            done.set()
        assert watcher.result() <= LIMIT
    assert check(world.engine) == []
    for made in live(world):
        with world.session() as session, session.begin():
            settle(session, EndRequest(made.attempt_id, "UserCancelled"))
    assert check(world.engine) == []
    assert world.held(root) == 0
