"""What a lease costs: the flavor says whether its cards or its CPUs are counted."""

from sqlalchemy import text

from gateway.ledger.settlement import settle
from policies.snapshot import Placed, Resources
from tests.builders.ledger import FLAVOR, POOL, World, gpus
from workflows.messages import EndRequest


def cpus(count: int) -> tuple[Placed, ...]:
    """One member without a card."""
    return (Placed("main", POOL, FLAVOR, 1, Resources(cpus=count * 1000)),)


def test_a_job_without_cards_on_a_flavor_priced_by_the_card_costs_nothing(world: World) -> None:
    tenant = world.tenant("acme")
    with world.session() as session, session.begin():
        session.execute(text("UPDATE flavors SET price = 3000000"))
    made = world.admit(world.job(tenant), cpus(64))
    assert world.lease(made).price == 0
    world.runs(made, for_s=3600)
    with world.session() as session, session.begin():
        settle(session, EndRequest(made.attempt_id, "Completed", exit_code=0))
    assert world.balance("money", tenant, "micro_usd") == (0, 0)


def test_where_the_flavor_has_no_card_its_cpus_are_what_costs(world: World) -> None:
    with world.session() as session, session.begin():
        session.execute(text("UPDATE flavors SET accelerator = '', price = 3000000"))
    made = world.admit(world.job(world.tenant("acme")), cpus(64))
    assert world.lease(made).price == 64 * 3_000_000


def test_a_gang_of_both_pays_for_its_cards_alone(world: World) -> None:
    with world.session() as session, session.begin():
        session.execute(text("UPDATE flavors SET price = 3000000"))
    made = world.admit(world.job(world.tenant("acme")), (*gpus(2), *cpus(64)))
    assert world.lease(made).price == 2 * 3_000_000
