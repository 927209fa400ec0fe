"""The check finds what does not hold, and holds its peace over a ledger that was only used."""

import pytest
from sqlalchemy import text

from gateway.ledger.check import check
from gateway.ledger.engine import make_engine
from gateway.ledger.limits import LimitExceeded
from tests.builders.ledger import World, gpus
from tests.unit.ledger.test_settlement import end, preempt


@pytest.fixture
def used(world: World) -> World:
    """A ledger in which something of everything has happened."""
    world.tenant("acme", max_gpus=16)
    leaf, other = world.tenant("acme/nlp"), world.tenant("acme/vision")
    done = world.admit(world.job(leaf), gpus(4), max_duration_ms=3_600_000)
    world.runs(done, for_s=100)
    end(world, done, "Completed", exit_code=0)
    lost = world.admit(world.job(leaf), gpus(2))
    world.runs(lost, for_s=50)
    end(world, lost, "Lost", ended_ago_s=None)
    broken = world.admit(world.job(leaf), gpus(2))
    world.runs(broken, for_s=50)
    end(world, broken, "NodeLost")
    first, second = (world.admit(world.job(other), gpus(4)) for _ in range(2))
    for made in (first, second):
        world.runs(made, for_s=60)
    waiter = world.admit(world.job(leaf), gpus(8), contingent_on=[first.attempt_id, second.attempt_id])
    preempt(world, first, waiter=waiter.attempt_id)
    end(world, first, "Preempted")
    return world


def test_a_ledger_that_was_only_used_holds(used: World) -> None:
    assert check(used.engine) == []


@pytest.mark.parametrize(
    ("rule", "statement"),
    [
        ("balance", "UPDATE accounts SET posted = posted + 1 WHERE kind = 'gpu_time' AND tenant_id IS NOT NULL"),
        ("balance", "DELETE FROM entries WHERE id = (SELECT min(id) FROM entries)"),
        ("zero_sum", "UPDATE entries SET amount = amount + 1 WHERE id = (SELECT min(id) FROM entries)"),
        ("zero_sum", "DELETE FROM transactions WHERE id = (SELECT min(id) FROM transactions)"),
        ("lease", "UPDATE leases SET state = 'held' WHERE state = 'posted'"),
        ("lease", "UPDATE attempts SET ended_at = now() WHERE state = 'RUNNING'"),
        ("counter", "UPDATE leases SET used_ms = used_ms + 1000 WHERE state = 'posted'"),
        (
            "limit",
            """
            WITH forged AS (UPDATE transactions SET data = data - 'ceilings' WHERE kind = 'lease_taken')
            UPDATE quotas SET max = 7000
            """,
        ),
        (
            "events",
            "INSERT INTO events (job_id, tenant_id, kind) SELECT id, tenant_id, 'X' FROM jobs WHERE ended_at <= now()",
        ),
    ],
)
def test_tampering_is_found(used: World, database_url: str, rule: str, statement: str) -> None:
    owner = make_engine(database_url, app_role=False, pool_size=1)
    with owner.begin() as connection:
        assert connection.execute(text(statement)).rowcount > 0
    owner.dispose()
    assert rule in {violation.rule for violation in check(used.engine)}


@pytest.mark.parametrize("later", ["quota lowered", "grant that was used is revoked", "window closes"])
def test_a_ceiling_that_came_down_later_breaks_no_rule(world: World, later: str) -> None:
    tenant = world.tenant("acme", max_gpus=4)

    def write(statement: str) -> None:
        with world.session() as session, session.begin():
            session.execute(text(statement), {"tenant": tenant})

    write(
        "INSERT INTO grants (tenant_id, flavor, delta_max, starts_at) VALUES"
        " (:tenant, 'h100', 4000, now() - interval '1 hour')"
    )
    world.admit(world.job(tenant), gpus(8))
    write(
        {
            "quota lowered": "UPDATE quotas SET max = 1000 WHERE tenant_id = :tenant",
            "grant that was used is revoked": "UPDATE grants SET revoked_at = now() WHERE tenant_id = :tenant",
            "window closes": "UPDATE grants SET ends_at = now() - interval '1 minute' WHERE tenant_id = :tenant",
        }[later]
    )
    assert check(world.engine) == []
    with pytest.raises(LimitExceeded):
        world.admit(world.job(tenant), gpus(1))


def test_a_tenants_account_cannot_be_made_negative(used: World) -> None:
    with used.session() as session, pytest.raises(Exception, match="accounts_tenant_not_negative"):
        session.execute(text("UPDATE accounts SET posted = -1 WHERE tenant_id IS NOT NULL"))
