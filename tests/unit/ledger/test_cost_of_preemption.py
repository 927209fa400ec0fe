"""CASES QL-06, row by row with its exact inputs, on a clock that the test moves: every figure is exact.

Somebody reads every balance all the while (`Ledger.step`): none of a tenant's is ever negative.
"""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import text

from gateway.ledger import leases
from gateway.ledger.check import check
from gateway.ledger.codec import to_ms
from gateway.ledger.engine import make_engine
from gateway.ledger.settlement import settle
from gateway.ledger.tables.work import JobRow
from policies.vocabulary import Payer
from tests.builders.ledger import Try, World, gpus
from tests.harness.clock import Clock
from tests.unit.ledger.test_settlement import preempt
from workflows.messages import EndRequest, Settled

HOUR = 3_600_000
GPU_HOUR = HOUR
FOUR_HOURS = 240 * 60_000


_BELOW_ZERO = text("SELECT id FROM accounts WHERE tenant_id IS NOT NULL AND least(posted, pending) < 0")


class Ledger:
    """A tenant on a clock."""

    def __init__(self, world: World, clock: Clock) -> None:
        self.world, self.clock = world, clock
        self.tenant = world.tenant("acme")

    def step(self, seconds: float = 0) -> None:
        self.clock.move(timedelta(seconds=seconds))
        with self.world.session() as session:
            below = session.execute(_BELOW_ZERO).all()
        assert below == []
        assert check(self.world.engine) == []

    def begins(self, job: object, cards: int, *, max_duration_ms: int | None = None) -> Try:
        made = self.world.admit(job, gpus(cards), max_duration_ms=max_duration_ms)  # type: ignore[arg-type]
        self.world.runs(made)
        self.step()
        return made

    def ends(self, made: Try, reason: str, *, known: bool = True, exit_code: int | None = None) -> Settled:
        ended = to_ms(self.clock.at) if known else None
        with self.world.session() as session, session.begin():
            done = settle(session, EndRequest(made.attempt_id, reason, ended_ms=ended, exit_code=exit_code))
        self.step()
        return done

    def preempted(self, made: Try) -> Settled:
        preempt(self.world, made, waiter="tg-waiter")
        return self.ends(made, "Preempted")

    @property
    def time(self) -> tuple[int, int]:
        """GPU-ms (charged, held)."""
        return self.world.balance("gpu_time", self.tenant, "gpu_ms")

    @property
    def credit(self) -> int:
        return self.world.balance("credit", self.tenant, "gpu_ms")[0]

    def credits(self) -> int:
        return int(self.world.scalar("SELECT count(*) FROM credits"))


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    clock = Clock(database_url)
    engine = make_engine(database_url, pool_size=5)
    yield Ledger(World(engine), clock)
    engine.dispose()
    clock.close()


def test_ql_06_i_five_preemptions_then_success(ledger: Ledger) -> None:
    job = ledger.world.job(ledger.tenant, retry_max=3)
    for _ in range(5):
        made = ledger.begins(job, 1)
        ledger.step(60)
        assert ledger.preempted(made) == Settled(True, "PREEMPTED", "QUEUED")
    made = ledger.begins(job, 1)
    ledger.step(60)
    assert ledger.ends(made, "Completed", exit_code=0).job_state == "SUCCEEDED"
    row: JobRow = ledger.world.row(JobRow, job)
    assert (row.state, row.failures, row.preemptions) == ("SUCCEEDED", 0, 5)
    assert row.request["retry"]["max"] == 3


def test_ql_06_ii_early_deaths_give_back_all_but_their_real_use(ledger: Ledger) -> None:
    jobs = [ledger.world.job(ledger.tenant) for _ in range(4)]
    tries = [ledger.begins(job, 8, max_duration_ms=FOUR_HOURS) for job in jobs]
    assert ledger.time == (0, 128 * GPU_HOUR)
    ledger.step(112.5)  # a quarter of a GPU-hour each
    for made in tries:
        ledger.ends(made, "NonZeroExit", exit_code=1)
    assert ledger.time == (GPU_HOUR, 0)
    assert 128 * GPU_HOUR - ledger.time[0] == 127 * GPU_HOUR


def test_ql_06_iii_the_one_whose_time_is_unknown_is_not_refunded_until_it_is_known(ledger: Ledger) -> None:
    jobs = [ledger.world.job(ledger.tenant) for _ in range(4)]
    tries = [ledger.begins(job, 8, max_duration_ms=FOUR_HOURS) for job in jobs]
    started = ledger.clock.at
    ledger.step(112.5)
    for made in tries[:3]:
        ledger.ends(made, "NonZeroExit", exit_code=1)
    ledger.ends(tries[3], "Lost", known=False)
    assert ledger.time == (3 * GPU_HOUR // 4, 32 * GPU_HOUR)  # its 32 stay held, the other 96 are settled
    assert ledger.world.held(ledger.tenant) == 0
    ledger.step(86_400)
    assert ledger.time == (3 * GPU_HOUR // 4, 32 * GPU_HOUR)
    for first in (True, False):  # told twice, it is one fact
        with ledger.world.session() as session, session.begin():
            told = leases.post_known_use(
                session,
                tries[3].lease_id,
                used_from=started,
                used_until=started + timedelta(seconds=112.5),
                payer=Payer.TENANT,
            )
        assert told is first
        ledger.step()
        assert ledger.time == (GPU_HOUR, 0)


def test_ql_06_iv_ten_percent_over_is_charged_as_used_and_the_refund_is_not_negative(ledger: Ledger) -> None:
    made = ledger.begins(ledger.world.job(ledger.tenant), 8, max_duration_ms=10 * 60_000)
    held = ledger.time[1]
    ledger.step(11 * 60)
    assert ledger.ends(made, "TimeLimit").attempt_state == "FAILED"
    charged, left = ledger.time
    assert (charged, left) == (8 * 11 * 60_000, 0)
    assert max(0, held - charged) == 0


def test_ql_06_v_placed_and_preempted_in_one_round_is_charged_nothing(ledger: Ledger) -> None:
    made = ledger.world.admit(ledger.world.job(ledger.tenant), gpus(8))
    assert ledger.preempted(made) == Settled(True, "PREEMPTED", "QUEUED")
    assert ledger.time == (0, 0)
    assert (ledger.credit, ledger.credits()) == (0, 0)


def test_ql_06_vi_the_same_preemption_settled_twice_is_one_credit(ledger: Ledger) -> None:
    made = ledger.begins(ledger.world.job(ledger.tenant), 8)
    ledger.step(600)
    assert ledger.preempted(made).first
    earned = ledger.credit
    assert earned == 8 * (600 + 60) * 1000  # ten minutes lost, and a restart of a minute
    assert not ledger.preempted(made).first
    assert (ledger.credit, ledger.credits()) == (earned, 1)
    assert ledger.world.balance("issuance", None, "gpu_ms") == (-earned, 0)


def test_ql_06_vii_a_cancel_a_second_before_the_notice_earns_nothing(ledger: Ledger) -> None:
    job = ledger.world.job(ledger.tenant)
    made = ledger.begins(job, 8)
    ledger.step(600)
    with ledger.world.session() as session, session.begin():
        session.execute(text("UPDATE jobs SET want_cancel = true WHERE id = :id"), {"id": job})
    ledger.step(1)
    assert ledger.preempted(made).job_state == "CANCELLED"
    assert (ledger.credit, ledger.credits()) == (0, 0)
