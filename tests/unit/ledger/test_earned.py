"""Which save a preemption's credit pays for (POLICIES §8)."""

import pytest
from sqlalchemy import text

from tests.builders.ledger import World, gpus
from tests.unit.ledger.test_settlement import end, preempt


@pytest.mark.parametrize(
    ("noticed_ago_s", "ended_ago_s", "counts"),
    [
        (30, 5, True),  # 30 s ago it was told, 25 s ago it began to save
        (24, 5, False),  # told while a periodic save was being written
        (3, 5, False),  # told after it
        (None, 5, False),  # told without a grace, or killed before anybody told it
        (None, 0, False),  # a periodic save that the kill happened to meet
    ],
)
def test_only_a_save_that_began_after_the_victim_was_told_with_a_grace_is_the_save_of_this_notice(
    world: World, noticed_ago_s: int | None, ended_ago_s: int, *, counts: bool
) -> None:
    tenant = world.tenant("acme")
    made = world.admit(world.job(tenant), gpus(8), restart_ms=1000)
    world.runs(made, for_s=600)
    preempt(world, made, waiter="tg-waiter")
    with world.session() as session, session.begin():
        session.execute(
            text(
                "UPDATE attempts SET noticed_at = now() - make_interval(secs => CAST(:ago AS int)),"
                " stop_asked_at = now() - interval '1 hour'"
            ),
            {"ago": noticed_ago_s},
        )
        session.execute(
            text(
                "INSERT INTO checkpoints (job_id, attempt_number, step, url, verified, save_ms, at)"
                " VALUES (:job, 1, 5, 's3://b/5', 1, 20000, now() - make_interval(secs => :ago))"
            ),
            {"job": made.job_id, "ago": ended_ago_s},
        )
    end(world, made, "Preempted")
    terms = world.scalar("SELECT terms FROM credits")
    assert terms["save_ms"] == (20_000 if counts else 0)
    assert abs(terms["gap_ms"] - ended_ago_s * 1000) < 2000
