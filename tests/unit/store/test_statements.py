"""How many statements a job's life costs the database. Counts, not times: a step that grows is seen on any machine."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import event

from backends.types import End, Handle, Observation, Phase
from policies.decisions import Act
from policies.vocabulary import Reason
from tests.unit.store.world import Gate, an_admit
from workflows.messages import EndRequest
from workflows.store import Launched

MOST = {
    "submit": 1,
    "snapshot": 21,
    "commit of one admission": 26,
    "begin of a launch": 8,
    "look before the start": 1,
    "launched": 1,
    "observation": 4,
    "claim": 1,
    "done": 1,
    "load": 2,
    "settle": 22,
}


def test_a_life_costs_no_more_statements_than_it_did(gate: Gate) -> None:
    found: dict[str, int] = {}

    def counted(what: str, act: Callable[[], Any]) -> Any:
        statements: list[str] = []

        def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            statements.append(statement)

        event.listen(gate.engine, "before_cursor_execute", note)
        try:
            answer = act()
        finally:
            event.remove(gate.engine, "before_cursor_execute", note)
        found[what] = len(statements)
        return answer

    gate.tenant("acme")
    gate.tenant("acme/nlp", max_gpus=100_000)
    gate.ends(gate.admit(gate.submit("acme/nlp"), 1))  # accounts and memories
    job = counted("submit", lambda: gate.submit("acme/nlp"))
    cycle = counted("snapshot", gate.store.cycle)
    counted("commit of one admission", lambda: gate.commit(cycle, Act(admits=(an_admit(cycle, job, 1),))))
    attempt = gate.attempt(job)
    items = counted("claim", lambda: gate.store.claim_outbox(9))
    counted("begin of a launch", lambda: gate.store.begin_launches([attempt]))
    counted("look before the start", lambda: gate.store.still_wanted([attempt]))
    counted("launched", lambda: gate.store.launched([Launched(attempt, "b", "native")]))
    counted("done", lambda: gate.store.outbox_done([item.id for item in items]))
    now = datetime.now(UTC)
    seen = Observation(
        Handle("b", attempt), Phase.ENDED, now, sequence=1, started_at=now, ended_at=now, end=End(Reason.COMPLETED, 0)
    )
    counted("observation", lambda: gate.store.observe("b", [seen]))
    counted("load", lambda: gate.store.load_attempt(attempt))
    counted("settle", lambda: gate.store.settle(EndRequest(attempt, Reason.COMPLETED, exit_code=0)))
    assert {what: count for what, count in found.items() if count > MOST[what]} == {}, found
