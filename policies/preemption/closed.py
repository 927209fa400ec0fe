"""Why nobody gives way in a pool for a job that may preempt: what its Wait says, so that nobody waits for an eviction
that cannot come. Decides nothing.
"""

from collections.abc import Iterable, Mapping

from policies.cycle import State
from policies.decisions import Wait, Why
from policies.placement.filters import Candidate
from policies.snapshot import Pool, QueuedJob
from policies.vocabulary import Pending, PriorityClass

_BY_ROOM = frozenset({Pending.WAITING_FOR_CAPACITY, Pending.TOPOLOGY_UNAVAILABLE})


def closed(pool: Pool, now_ms: int) -> Mapping[str, int | str]:
    """Empty where a preemption may happen; else what keeps it from happening there."""
    if not pool.place_first:
        return {"preemption": "none"}
    if pool.no_preemption_until_ms > now_ms:
        return {"no_preemption_until_ms": pool.no_preemption_until_ms}
    return {}


def explained(waits: Wait, job: QueuedJob, choices: Iterable[Candidate], state: State) -> Wait:
    """The Wait of a P0 or P1 for room, with what closes its pool to preemption."""
    if state.class_of(job) is PriorityClass.P2 or waits.pending not in _BY_ROOM:
        return waits
    pool = next((c.pool for c in choices if c.pool.name == waits.why.numbers.get("pool")), None)
    if pool is None or not (found := closed(pool, state.now_ms)):
        return waits
    words = "wait for running jobs to end, or allow another pool: "
    words += f"{pool.name} preempts nobody" if "preemption" in found else f"{pool.name} preempts nobody for a while"
    why = Why(waits.why.token, {**waits.why.numbers, **found}, words)
    return Wait(waits.job, waits.version, waits.pending, why, waits.blocker, waits.starts_ms, waits.chunk)
