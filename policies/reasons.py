"""Total tables over `Reason` and `StopCause`: end state, retry class, payer, credit and words for the user.

Every reason has exactly one row (a test walks the enum). Preempted and revoked are never failures: the job's own
retries are counted by `RetryClass.USER` alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from policies.vocabulary import AttemptState, JobState, Payer, Reason, RetryClass, StopCause


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one reason means.

    attempt: the attempt's end, or None where the reason can only end a job (a rejection).
    job: the job's end when no further attempt follows.
    credit: the tenant may earn a preemption credit (policies.credit decides whether it does).
    avoid_node: the next attempt is not placed on the node that failed.
    """

    attempt: AttemptState | None
    job: JobState
    retry: RetryClass
    payer: Payer
    words: str
    credit: bool = False
    avoid_node: bool = False


_A, _J, _R, _P = AttemptState, JobState, RetryClass, Payer


def _ended(job: JobState, attempt: AttemptState, words: str) -> Verdict:
    return Verdict(attempt, job, _R.FINAL, _P.TENANT, words)


def _failed(retry: RetryClass, words: str) -> Verdict:
    return Verdict(_A.FAILED, _J.FAILED, retry, _P.TENANT, words)


def _ours(attempt: AttemptState, words: str, *, credit: bool = False) -> Verdict:
    return Verdict(attempt, _J.FAILED, _R.REQUEUE, _P.TENANT, words, credit=credit)


def _revoked(words: str, *, avoid_node: bool = False) -> Verdict:
    payer = _P.PLATFORM if avoid_node else _P.TENANT
    return Verdict(_A.REVOKED, _J.FAILED, _R.INFRASTRUCTURE, payer, words, avoid_node=avoid_node)


def _rejected(words: str) -> Verdict:
    return Verdict(None, _J.REJECTED, _R.FINAL, _P.NOBODY, words)


VERDICTS: Final[Mapping[Reason, Verdict]] = MappingProxyType(
    {
        Reason.COMPLETED: _ended(_J.SUCCEEDED, _A.SUCCEEDED, "finished with exit code 0"),
        Reason.USER_CANCELLED: _ended(_J.CANCELLED, _A.STOPPED, "cancelled by a user"),
        Reason.NON_ZERO_EXIT: _failed(_R.USER, "the command exited with a code other than 0"),
        Reason.OUT_OF_MEMORY: _failed(_R.USER, "the command used more memory than it asked for"),
        Reason.TIME_LIMIT: _failed(_R.FINAL, "ran longer than max_duration"),
        Reason.NO_PROGRESS: _failed(_R.FINAL, "exited 75 twice without a newer valid checkpoint"),
        Reason.INVALID_PARAMETER: _failed(_R.FINAL, "the backend refused a parameter of the job itself"),
        Reason.LAUNCH_FAILED: _failed(_R.USER, "the command could not be started"),
        Reason.SAVED_AND_EXITED: _ours(_A.STOPPED, "saved and asked to be run again (exit code 75)"),
        Reason.REQUEUED: _ours(_A.STOPPED, "was sent back to the queue by a user"),
        Reason.PREEMPTED: _ours(_A.PREEMPTED, "gave way to a job of a higher class", credit=True),
        Reason.RECLAIMED: _ours(_A.PREEMPTED, "gave borrowed quota back to its owner"),
        Reason.BACKFILL_OVERRUN: _ours(_A.PREEMPTED, "overran the time it was backfilled for"),
        Reason.MOVED: _ours(_A.PREEMPTED, "was moved to other capacity", credit=True),
        Reason.RESIZED: _ours(_A.RESIZED, "is being relaunched at another size"),
        Reason.BUDGET_EXHAUSTED: _ours(_A.STOPPED, "the budget of the tenant or job was used up"),
        Reason.BACKEND_WAIT_TIMEOUT: _ours(_A.STOPPED, "waited too long inside the backend and was withdrawn"),
        Reason.GANG_TIMEOUT: _ours(_A.STOPPED, "the gang was not whole within gang_timeout"),
        Reason.GANG_ROLLED_BACK: _ours(_A.STOPPED, "another part of the gang could not be started"),
        Reason.BACKEND_REFUSED: Verdict(
            _A.REFUSED, _J.FAILED, _R.REQUEUE, _P.NOBODY, "the backend refused the launch; nothing was started"
        ),
        Reason.SPOT_REVOKED: _revoked("the provider took a spot instance back"),
        Reason.BACKEND_PREEMPTED: _revoked("somebody else's job in the backend preempted it"),
        Reason.BACKEND_CANCELLED: _revoked("was cancelled in the backend, not through Tidegate"),
        Reason.BACKEND_REQUEUED: _revoked("was requeued by the backend"),
        Reason.EVICTED: _revoked("was evicted by the backend"),
        Reason.DRAINED: _revoked("its node was drained"),
        Reason.STALLED: _revoked("reported no progress for too long"),
        Reason.NODE_LOST: _revoked("a node was lost", avoid_node=True),
        Reason.GPU_XID: _revoked("a GPU reported a fatal Xid", avoid_node=True),
        Reason.GPU_ECC: _revoked("a GPU reported uncorrectable memory errors", avoid_node=True),
        Reason.GPU_LOST: _revoked("a GPU fell off the bus", avoid_node=True),
        Reason.NETWORK_PARTITION: _revoked("members could not reach each other", avoid_node=True),
        Reason.STORAGE_ERROR: _revoked("storage failed under the job"),
        Reason.NCCL_ERROR: _revoked("the collective library reported a system error", avoid_node=True),
        Reason.LOST: Verdict(
            _A.LOST, _J.FAILED, _R.USER, _P.PLATFORM, "no evidence of its end is left; counted as a retry"
        ),
        Reason.DEPENDENCY_IMPOSSIBLE: _rejected("a job it waits for can no longer end as required"),
        Reason.QUEUE_SLO: _rejected("waited longer than sla.max_queue"),
        Reason.DEADLINE_INFEASIBLE: _rejected("its deadline can no longer be met"),
    }
)

CAUSES: Final[Mapping[StopCause, Reason]] = MappingProxyType(
    {
        StopCause.CANCEL: Reason.USER_CANCELLED,
        StopCause.PREEMPT: Reason.PREEMPTED,
        StopCause.RECLAIM: Reason.RECLAIMED,
        StopCause.BACKFILL: Reason.BACKFILL_OVERRUN,
        StopCause.MOVE: Reason.MOVED,
        StopCause.REVOCATION: Reason.SPOT_REVOKED,
        StopCause.DRAIN: Reason.DRAINED,
        StopCause.REQUEUE: Reason.REQUEUED,
        StopCause.RESIZE: Reason.RESIZED,
        StopCause.BUDGET: Reason.BUDGET_EXHAUSTED,
        StopCause.WITHDRAWN: Reason.BACKEND_WAIT_TIMEOUT,
        StopCause.GANG_ROLLBACK: Reason.GANG_ROLLED_BACK,
        StopCause.GANG_TIMEOUT: Reason.GANG_TIMEOUT,
        StopCause.MEMBER_LOST: Reason.NODE_LOST,
        StopCause.STALL: Reason.STALLED,
        StopCause.TIME_LIMIT: Reason.TIME_LIMIT,
        StopCause.WAITER_GONE: Reason.GANG_ROLLED_BACK,
    }
)

SAVED_EXIT_CODE: Final = 75


def verdict(reason: Reason) -> Verdict:
    """The row of `reason`; total, so it never raises KeyError."""
    return VERDICTS[reason]
