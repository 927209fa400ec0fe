"""Credit after it was granted: redeemed as a grant, burned as used, expired; never negative, never lost."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, text

from gateway.ledger import credits as credit
from gateway.ledger.accrual import accrue
from gateway.ledger.check import check
from gateway.ledger.engine import make_engine
from gateway.ledger.tables.capacity import GrantRow
from policies.settings import PolicySettings
from tests.builders.ledger import FLAVOR, GPU, World, gpus
from tests.harness.clock import Clock
from tests.unit.ledger.test_settlement import end, preempt

HOUR = 3_600_000
START = datetime(2030, 1, 7, tzinfo=UTC)
SETTINGS = PolicySettings()


@pytest.fixture
def owed(world: World) -> tuple[World, int, int]:
    """A world, a tenant that is owed about eight GPU-hours, and its exact credit."""
    tenant = world.tenant("victim")
    world.tenant("lender", min_gpus=80, max_gpus=100, lendable=80)
    made = world.admit(world.job(tenant), gpus(8), restart_ms=600_000)
    world.runs(made, for_s=3000)
    preempt(world, made, waiter="tg-waiter")
    end(world, made, "Preempted")
    return world, tenant, world.balance("credit", tenant, "gpu_ms")[0]


def redeem(world: World, tenant: int, gpu_ms: int, minutes: int = 60) -> GrantRow:
    with world.session() as session, session.begin():
        return credit.redeem(
            session,
            tenant_id=tenant,
            flavor=FLAVOR,
            gpu_ms=gpu_ms,
            starts_at=START,
            ends_at=START + timedelta(minutes=minutes),
            principal="ann",
            settings=SETTINGS,
        )


def test_a_redemption_is_a_grant_that_ordinary_reclaim_does_not_touch(owed: tuple[World, int, int]) -> None:
    world, tenant, earned = owed
    grant = redeem(world, tenant, 6 * HOUR)
    assert (grant.delta_min, grant.reclaimable, grant.cause) == (6 * GPU, False, "credit")
    assert world.balance("credit", tenant, "gpu_ms") == (earned, 6 * HOUR)
    with pytest.raises(credit.CreditRefused, match="of credit are left"):
        redeem(world, tenant, 6 * HOUR)
    assert check(world.engine) == []


def test_lenders_keep_nine_tenths_of_what_they_lend(owed: tuple[World, int, int]) -> None:
    world, tenant, _ = owed
    # 10 % of 80 lendable GPUs are 8: six for an hour fit, then two more, then none.
    redeem(world, tenant, 6 * HOUR)
    with pytest.raises(credit.CreditRefused, match=r"3000 milli-GPU .* 2000 may be redeemed then"):
        redeem(world, tenant, HOUR // 2, minutes=10)


def test_what_is_used_is_burned_and_the_rest_comes_back(owed: tuple[World, int, int]) -> None:
    world, tenant, earned = owed
    grant = redeem(world, tenant, 6 * HOUR)
    for _ in range(2):  # the same fact told twice is one
        with world.session() as session, session.begin():
            credit.burn(session, grant, used_gpu_ms=2 * HOUR, last=False, cause="2030-01-07T00:20")
    with world.session() as session, session.begin():
        assert credit.burn(session, grant, used_gpu_ms=HOUR, last=True, cause="end") == HOUR
    assert world.balance("credit", tenant, "gpu_ms") == (earned - 3 * HOUR, 0)
    assert world.scalar("SELECT burned_gpu_ms FROM credits") == 3 * HOUR
    assert world.balance("issuance", None, "gpu_ms") == (-(earned - 3 * HOUR), 0)
    assert check(world.engine) == []


def test_credit_expires_but_not_what_a_redemption_holds(owed: tuple[World, int, int], engine: Engine) -> None:
    world, tenant, _ = owed
    redeem(world, tenant, 6 * HOUR)
    with world.session() as session, session.begin():
        session.execute(text("UPDATE credits SET expires_at = now() - interval '1 day'"))
    for _ in range(2):
        accrue(engine)
    assert world.balance("credit", tenant, "gpu_ms") == (6 * HOUR, 6 * HOUR)
    assert check(engine) == []


def test_a_cap_bounds_the_balance(world: World) -> None:
    tenant = world.tenant("victim")
    victim = credit.Victim(
        attempt_id="a",
        tenant_id=tenant,
        gpu_milli={FLAVOR: 8 * GPU},
        started_at=START,
        ended_at=START + timedelta(hours=1),
        noticed_at=None,
        restart_ms=0,
        preemptions=0,
    )
    small = PolicySettings(credit_cap_gpu_ms=HOUR)
    with world.session() as session, session.begin():
        assert credit.grant_credit(session, victim, "p", small) == HOUR
        assert credit.grant_credit(session, victim, "q", small) == 0
    assert world.balance("credit", tenant, "gpu_ms") == (HOUR, 0)


def test_a_redeemed_credit_burns_by_what_is_held_above_min(owed: tuple[World, int, int], engine: Engine) -> None:
    world, tenant, earned = owed
    with world.session() as session, session.begin():
        now: datetime = session.execute(text("SELECT now()")).scalar_one()
        grant = credit.redeem(
            session,
            tenant_id=tenant,
            flavor=FLAVOR,
            gpu_ms=4 * HOUR,
            starts_at=now - timedelta(minutes=30),
            ends_at=now + timedelta(minutes=30),
            principal="ann",
            settings=SETTINGS,
        )
    world.admit(world.job(tenant), gpus(2))
    accrue(engine)
    # Two of the four GPUs for the half hour that has passed.
    burned = earned - world.balance("credit", tenant, "gpu_ms")[0]
    assert burned == pytest.approx(HOUR, abs=2 * 5_000)
    with world.session() as session, session.begin():
        session.execute(text("UPDATE grants SET ends_at = now() WHERE id = :id"), {"id": grant.id})
    for _ in range(2):
        accrue(engine)
    posted, pending = world.balance("credit", tenant, "gpu_ms")
    assert pending == 0
    assert earned - posted == pytest.approx(HOUR, abs=2 * 15_000)
    assert check(engine) == []


@pytest.mark.parametrize("when", ["before it begins", "at the instant of a reading", "later"])
def test_a_redemption_that_is_revoked_gives_back_what_it_has_not_used(database_url: str, when: str) -> None:
    clock = Clock(database_url)
    engine = make_engine(database_url, pool_size=5)
    world = World(engine)
    tenant = world.tenant("victim")
    world.tenant("lender", min_gpus=80, max_gpus=100, lendable=80)
    made = world.admit(world.job(tenant), gpus(8), restart_ms=600_000)
    world.runs(made, for_s=3000)
    preempt(world, made, waiter="tg-waiter")
    end(world, made, "Preempted")
    earned = world.balance("credit", tenant, "gpu_ms")[0]
    world.admit(world.job(tenant), gpus(2))
    begins = clock.at + timedelta(hours=1 if when == "before it begins" else 0)
    with world.session() as session, session.begin():
        grant = credit.redeem(
            session,
            tenant_id=tenant,
            flavor=FLAVOR,
            gpu_ms=4 * HOUR,
            starts_at=begins,
            ends_at=begins + timedelta(hours=1),
            principal="ann",
            settings=SETTINGS,
        )
    clock.move(timedelta(minutes=30))
    accrue(engine)
    if when == "later":
        clock.move(timedelta(minutes=6))
    with world.session() as session, session.begin():
        session.execute(text("UPDATE grants SET revoked_at = now() WHERE id = :id"), {"id": grant.id})
    for _ in range(2):
        accrue(engine)
    used_min = {"before it begins": 0, "at the instant of a reading": 30, "later": 36}[when]
    assert world.balance("credit", tenant, "gpu_ms") == (earned - 2 * used_min * 60_000, 0)
    assert check(engine) == []
    engine.dispose()
    clock.close()
