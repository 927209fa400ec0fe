"""The closed state tables of jobs, attempts and leases. Who may change a state: `gateway.ledger.transition` alone.

Rendered into docs/STATES.md by a test. A preemption ends an attempt, never a job.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeVar

from policies.vocabulary import AttemptState, JobState, LeaseState

_S = TypeVar("_S", bound=StrEnum)


class IllegalTransitionError(ValueError):
    """The table has no such edge: a defect of ours, never of a user's."""


def _table(edges: dict[_S, set[_S]]) -> Mapping[_S, frozenset[_S]]:
    return MappingProxyType({state: frozenset(after) for state, after in edges.items()})


_J = JobState
_JOB_ENDS = {_J.SUCCEEDED, _J.FAILED, _J.CANCELLED}
JOB_EDGES: Final[Mapping[JobState, frozenset[JobState]]] = _table(
    {
        _J.QUEUED: {_J.ADMITTED, _J.REJECTED, _J.CANCELLED},
        # An attempt may begin and end between two looks, so the ends are reachable before RUNNING was seen.
        _J.ADMITTED: {_J.RUNNING, _J.STOPPING, _J.QUEUED, *_JOB_ENDS},
        _J.RUNNING: {_J.STOPPING, _J.QUEUED, *_JOB_ENDS},
        _J.STOPPING: {_J.QUEUED, *_JOB_ENDS},
        _J.SUCCEEDED: set(),
        _J.FAILED: set(),
        _J.CANCELLED: set(),
        _J.REJECTED: set(),
    }
)

_A = AttemptState
_ENDED_BY_US = {_A.PREEMPTED, _A.REVOKED, _A.STOPPED, _A.RESIZED}
_ATTEMPT_ENDS = {_A.SUCCEEDED, _A.FAILED, _A.LOST, *_ENDED_BY_US}
ATTEMPT_EDGES: Final[Mapping[AttemptState, frozenset[AttemptState]]] = _table(
    {
        # Never launched: nothing can have succeeded or failed yet, but a restored database may have lost the record.
        _A.RESERVED: {_A.PENDING, _A.REFUSED, _A.LOST, *_ENDED_BY_US},
        _A.PENDING: {_A.RUNNING, _A.STOPPING, _A.REFUSED, *_ATTEMPT_ENDS},
        _A.RUNNING: {_A.CHECKPOINTING, _A.STOPPING, *_ATTEMPT_ENDS},
        _A.CHECKPOINTING: {_A.RUNNING, _A.STOPPING, *_ATTEMPT_ENDS},
        _A.STOPPING: _ATTEMPT_ENDS,
        **{end: set() for end in (*_ATTEMPT_ENDS, _A.REFUSED)},
    }
)

_L = LeaseState
LEASE_EDGES: Final[Mapping[LeaseState, frozenset[LeaseState]]] = _table(
    {
        _L.CONTINGENT: {_L.HELD, _L.VOIDED},
        _L.HELD: {_L.POSTED, _L.VOIDED},
        _L.POSTED: set(),
        _L.VOIDED: set(),
    }
)

LIVE_JOB_STATES: Final = frozenset(state for state, after in JOB_EDGES.items() if after)
LIVE_ATTEMPT_STATES: Final = frozenset(state for state, after in ATTEMPT_EDGES.items() if after)
LIVE_LEASE_STATES: Final = frozenset(state for state, after in LEASE_EDGES.items() if after)


def transition(edges: Mapping[_S, frozenset[_S]], current: _S, to: _S) -> _S:
    """Return `to` if the table has the edge, else raise IllegalTransitionError naming both ends."""
    if to not in edges[current]:
        allowed = ", ".join(sorted(edges[current])) or "nothing: it is an end"
        raise IllegalTransitionError(f"{type(current).__name__} {current} may not become {to}; allowed: {allowed}")
    return to


def predecessors(edges: Mapping[_S, frozenset[_S]], to: _S) -> frozenset[_S]:
    """The states from which `to` may be reached: the guard of the UPDATE that writes it."""
    return frozenset(state for state, after in edges.items() if to in after)
