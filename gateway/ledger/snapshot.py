"""One consistent reading of everything a cycle looks at. A dozen queries whatever the size; never one per job."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger import elastic, estate, living, queue
from gateway.ledger.queue import QueueMemory
from policies.snapshot import Snapshot
from workflows.store import Cycle


@dataclass(frozen=True, slots=True)
class LedgerCycle(Cycle):
    """A cycle that also knows the last Wait (token, blocker) of each job, so that a commit writes only what is new."""

    waits: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)


def read(session: Session, memory: QueueMemory, *, default_restart_ms: int) -> LedgerCycle:
    """The snapshot; the session must be new, since its isolation is set here (REPEATABLE READ, read only)."""
    session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
    now_ms = int(session.execute(text("SELECT (extract(epoch FROM now()) * 1000)::bigint")).scalar_one())
    found = queue.read(session, memory)
    snapshot = Snapshot(
        tenants=estate.tenants(session),
        quotas=estate.quotas(session),
        usages=estate.usages(session),
        allowances=estate.allowances(session),
        flavors=estate.flavors(session),
        pools=estate.pools(session),
        queued=found.jobs,
        live=living.attempts(session, default_restart_ms=default_restart_ms, wishes=memory.live),
        borrowings=living.borrowings(session),
        overrides=living.overrides(session),
    )
    return LedgerCycle(snapshot=snapshot, now_ms=now_ms, waits={**elastic.waits(session), **found.waits})
