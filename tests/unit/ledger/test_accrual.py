"""Running use is posted as it grows; rolling leases are renewed, or refused and said so."""

from datetime import timedelta

import pytest
from sqlalchemy import Engine, text

from gateway.ledger import leases
from gateway.ledger.accrual import accrue
from gateway.ledger.check import check
from gateway.ledger.codec import to_ms
from gateway.ledger.settlement import settle
from policies.vocabulary import Payer
from tests.builders.ledger import World, gpus
from tests.unit.ledger.test_settlement import end, near
from workflows.messages import EndRequest

HOUR = 3_600_000


def test_use_is_posted_while_the_job_runs_and_the_end_corrects_it_exactly(world: World, engine: Engine) -> None:
    tenant = world.tenant("acme")
    made = world.admit(world.job(tenant, request={"max_duration_ms": 4 * HOUR}), gpus(8), max_duration_ms=4 * HOUR)
    world.runs(made, for_s=450)
    assert accrue(engine).touched == 1
    posted, pending = world.balance("gpu_time", tenant, "gpu_ms")
    assert near(posted, HOUR)
    assert posted + pending == 32 * HOUR
    assert check(engine) == []
    end(world, made, "Completed", exit_code=0, ended_ago_s=225)
    posted, pending = world.balance("gpu_time", tenant, "gpu_ms")
    assert near(posted, HOUR // 2)
    assert pending == 0
    assert check(engine) == []


def test_many_small_postings_add_up_to_the_one_big_one(world: World, engine: Engine) -> None:
    tenant = world.tenant("acme")
    made = world.admit(world.job(tenant), gpus(3))
    world.runs(made, for_s=7)
    for _ in range(5):
        accrue(engine)
    lease = world.lease(made)
    assert world.balance("gpu_time", tenant, "gpu_ms")[0] == lease.gpu_milli * lease.used_ms // 1000
    assert check(engine) == []


def test_a_rolling_lease_is_renewed_ten_minutes_ahead_and_not_before(world: World, engine: Engine) -> None:
    tenant = world.tenant("acme")
    made = world.admit(world.job(tenant), gpus(1))
    world.runs(made, for_s=49 * 60)
    accrue(engine)
    assert world.lease(made).held_ms < 12 * 60_000
    with world.session() as session, session.begin():
        session.execute(text("UPDATE leases SET covers_until = covers_until - interval '2 minutes'"))
    assert accrue(engine).refused == ()
    assert world.lease(made).held_ms == HOUR
    assert check(engine) == []


def test_a_renewal_past_the_budget_is_refused_and_named(world: World, engine: Engine) -> None:
    tenant = world.tenant("acme")
    world.budget(tenant, "gpu_ms", HOUR + HOUR // 2)
    made = world.admit(world.job(tenant), gpus(1))
    world.runs(made, for_s=55 * 60)
    assert accrue(engine).refused == (made.attempt_id,)
    assert world.scalar("SELECT count(*) FROM events WHERE kind = 'RenewalRefused'") == 1
    assert check(engine) == []


def test_a_class_whose_allowance_is_used_up_goes_one_lower_at_the_renewal(world: World, engine: Engine) -> None:
    tenant = world.tenant("acme")
    world.allowance(tenant, "P1", gpu_hours=1)
    made = world.admit(world.job(tenant, klass="P1"), gpus(1))
    world.runs(made, for_s=3700)
    assert accrue(engine).lowered == (made.attempt_id,)
    assert world.lease(made).klass == "P2"
    assert world.scalar("SELECT data->>'to' FROM events WHERE kind = 'ClassLowered'") == "P2"


def test_a_class_is_lowered_under_a_fixed_duration_too(world: World, engine: Engine) -> None:
    tenant = world.tenant("acme")
    world.allowance(tenant, "P0", gpu_hours=1)
    job_id = world.job(tenant, klass="P0", request={"max_duration_ms": 40 * HOUR})
    world.runs(made := world.admit(job_id, gpus(1), max_duration_ms=40 * HOUR), for_s=3700)
    assert accrue(engine).lowered == (made.attempt_id,)
    # P1 has no allowance at all, so the next round goes down once more, and P2 is the floor.
    assert [accrue(engine).lowered for _ in range(2)] == [(made.attempt_id,), ()]
    assert world.lease(made).klass == "P2"


def test_a_budgets_new_period_begins_with_what_was_posted_by_its_end(world: World, engine: Engine) -> None:
    tenant = world.tenant("acme")
    world.budget(tenant, "gpu_ms", 100 * HOUR)
    made = world.admit(world.job(tenant), gpus(1))
    world.runs(made, for_s=600)
    with world.session() as session, session.begin():
        session.execute(text("UPDATE budgets SET period_s = 3600, period_started_at = now() - interval '3900 seconds'"))
    accrue(engine)
    spent_before = world.scalar("SELECT spent_before FROM budgets")
    assert spent_before == pytest.approx(300_000, abs=3_000)
    assert world.scalar("SELECT now() - period_started_at < interval '400 seconds' FROM budgets")


def test_an_unknown_end_is_given_up_after_a_week(world: World, engine: Engine) -> None:
    tenant = world.tenant("acme")
    made = world.admit(world.job(tenant), gpus(1), max_duration_ms=HOUR)
    world.runs(made, for_s=60)
    end(world, made, "Lost", ended_ago_s=None)
    accrue(engine)
    assert world.balance("gpu_time", tenant, "gpu_ms") == (0, HOUR)
    with world.session() as session, session.begin():
        session.execute(text("UPDATE leases SET resolved_at = now() - interval '8 days'"))
    accrue(engine)
    assert world.balance("gpu_time", tenant, "gpu_ms") == (0, 0)
    assert check(engine) == []


def test_an_end_that_becomes_known_is_charged_to_the_allowance_too(world: World) -> None:
    """The same use, told at once or a day later, leaves the same allowance."""
    left = []
    for name, known in (("at-once", True), ("later", False)):
        tenant = world.tenant(name)
        world.allowance(tenant, "P1", 100)
        made = world.admit(world.job(tenant, klass="P1"), gpus(8))
        world.runs(made, for_s=450)
        with world.session() as session, session.begin():
            now = session.execute(text("SELECT started_at FROM attempts WHERE id = :id"), {"id": made.attempt_id})
            started = now.scalar_one()
            until = started + timedelta(seconds=300)
            reason = "Completed" if known else "Lost"
            settle(session, EndRequest(made.attempt_id, reason, ended_ms=to_ms(until) if known else None))
            if not known:
                assert leases.post_known_use(
                    session, made.lease_id, used_from=started, used_until=until, payer=Payer.TENANT
                )
        left.append(world.scalar("SELECT used_gpu_ms FROM class_allowances WHERE tenant_id = :id", id=tenant))
    assert left[0] == pytest.approx(8 * 300_000, abs=16)
    assert left[0] == pytest.approx(left[1], abs=16)
