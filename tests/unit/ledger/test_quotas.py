"""Stored quotas may not contradict each other or the exclusive capacity, whoever wrote them."""

import pytest
from sqlalchemy import text

from gateway.ledger.quotas import QuotaRefused, require_consistent
from gateway.ledger.tables.capacity import NodeRow
from tests.builders.ledger import GPU, POOL, World


def judge(world: World) -> None:
    with world.session() as session, session.begin():
        require_consistent(session)


def reported(world: World, gpus: int) -> None:
    with world.session() as session, session.begin():
        session.execute(text("UPDATE pools SET as_of = now()"))
        session.add(NodeRow(pool=POOL, name="n", count=2, accelerators=gpus * GPU // 2))


def test_children_may_not_be_guaranteed_more_than_their_parent(world: World) -> None:
    world.tenant("acme", min_gpus=8)
    world.tenant("acme/a", min_gpus=5)
    judge(world)
    world.tenant("acme/b", min_gpus=4)
    with pytest.raises(QuotaRefused, match=r"Σ of the children of acme is 9000 .* lower a child's min by 1000"):
        judge(world)


def test_roots_may_not_be_guaranteed_more_than_exclusive_capacity(world: World) -> None:
    world.tenant("acme", min_gpus=8)
    judge(world)  # nothing was reported yet, so nothing can be proved
    reported(world, 6)
    with pytest.raises(QuotaRefused, match="above the exclusive capacity 6000"):
        judge(world)


def test_shared_pools_are_no_guarantee(world: World) -> None:
    world.tenant("acme", min_gpus=8)
    reported(world, 8)
    judge(world)
    with world.session() as session, session.begin():
        session.execute(text("UPDATE pools SET tenure = 'shared'"))
    with pytest.raises(QuotaRefused, match="above the exclusive capacity 0"):
        judge(world)
