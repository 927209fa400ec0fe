"""Which nodes the next attempt avoids: those that the last one lost, and no others."""

from gateway.ledger.settlement import settle
from gateway.ledger.tables.work import JobRow
from tests.builders.ledger import World, gpus
from workflows.messages import EndRequest


def test_only_the_next_attempt_avoids_the_nodes_that_one_lost(world: World) -> None:
    job_id = world.job(world.tenant("acme"))

    def avoided_after(reason: str, *bad: str) -> list[str]:
        made = world.admit(job_id, gpus(4))
        world.runs(made, for_s=10)
        with world.session() as session, session.begin():
            assert settle(session, EndRequest(made.attempt_id, reason, bad_nodes=list(bad))).job_state == "QUEUED"
        return list(world.row(JobRow, job_id).request.get("avoid_nodes", ()))

    assert avoided_after("NodeLost", "n7", "n8", "n7") == ["n7", "n8"]
    assert avoided_after("NodeLost", "n9") == ["n9"]
    assert avoided_after("SpotRevoked") == []
