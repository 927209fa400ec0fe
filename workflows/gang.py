"""Questions about the parts of a gang, one part per backend, as last observed. Pure; decides nothing."""

from typing import Final

from policies.vocabulary import Reason
from workflows.messages import AttemptView, GroupSeen

# backends.types.Phase, as it stands in messages
PENDING: Final = "Pending"
RUNNING: Final = "Running"
ENDED: Final = "Ended"
ABSENT: Final = "Absent"
_NEVER = GroupSeen(backend="")


def seen(view: AttemptView, backend: str) -> GroupSeen:
    """The newest observation there; one that was never made has as_of_ms 0 and says Absent."""
    return next((part for part in view.seen if part.backend == backend), _NEVER)


def begun_parts(view: AttemptView) -> list[GroupSeen]:
    """Parts that have been started, by our record or by their own look (an answer may have been lost)."""
    by_look = {part.backend for part in view.seen if part.phase in {PENDING, RUNNING, ENDED}}
    return [part for part in view.seen if part.backend in by_look or part.backend in view.started]


def begun(view: AttemptView) -> bool:
    """Whether anything of the attempt was started."""
    return bool(view.started) or bool(begun_parts(view))


def incomplete(view: AttemptView) -> bool:
    """Whether something has still to be started, or was and the record of it is missing: starting is idempotent."""
    return any(backend not in view.started for backend in view.backends)


def living(view: AttemptView) -> list[GroupSeen]:
    """Begun parts that have not ended; an observed absence after our stop is an end."""
    return [part for part in begun_parts(view) if not _over(view, part)]


def all_over(view: AttemptView) -> bool:
    """Every part has ended. One that was never started is over once a stop was sent: that took it away."""
    if not begun(view):
        return False
    for backend in view.backends:
        part = seen(view, backend)
        if part.phase == ENDED or (part.as_of_ms and _over(view, part)):
            continue
        if view.stop_sent and backend not in view.started and part.phase not in {PENDING, RUNNING}:
            continue
        return False
    return bool(view.backends)


def _over(view: AttemptView, part: GroupSeen) -> bool:
    if part.phase == ENDED:
        return True
    told_ms = view.stopping_ms if view.stop_sent else None
    return part.phase == ABSENT and told_ms is not None and part.as_of_ms > told_ms


def failed(part: GroupSeen) -> bool:
    """An ended part that has not simply done its work."""
    if part.phase != ENDED:
        return False
    return part.cause not in {"", Reason.COMPLETED} or part.exit_code not in {0, None}


def first_failure(view: AttemptView) -> GroupSeen | None:
    """The part that failed first by end time, ties by lowest rank (DESIGN §9: its code is the job's)."""
    failures = [part for part in view.seen if failed(part)]
    return min(failures, key=lambda part: (part.ended_ms or 0, part.failed_rank or 0, part.backend), default=None)


def has_run(view: AttemptView, backend: str) -> bool:
    """Whether this part runs or has run to its end."""
    return seen(view, backend).phase in {RUNNING, ENDED}


def all_running(view: AttemptView) -> bool:
    """Whether every part runs (or ran, and is done already)."""
    return bool(view.backends) and all(has_run(view, backend) for backend in view.backends)


def waiting(view: AttemptView) -> list[str]:
    """Backends where a part has been started and does not run yet."""
    return [backend for backend in view.backends if backend in view.started and not has_run(view, backend)]


def first_running_ms(view: AttemptView) -> int | None:
    """Since when some part runs while the others may not: gang_timeout runs from here."""
    times = [part.started_ms or part.as_of_ms for part in view.seen if part.phase == RUNNING]
    return view.first_running_ms or (min(times) if times else None)


def last_started_ms(view: AttemptView) -> int | None:
    """When the last part came up: from then on the gang is whole."""
    return max((part.started_ms for part in view.seen if part.started_ms is not None), default=None)
