"""Which `Reason` an attempt ended for, from what we asked, what the backend saw and what the job left behind.

After a stop that we asked for, the cause decides, whatever the exit code: a job killed by its own preemption is not a
failure. Decides no state and no retry: `policies.reasons` and `policies.retry` do that from the reason.
"""

from typing import Final

from policies.reasons import CAUSES, SAVED_EXIT_CODE, verdict
from policies.vocabulary import Reason, RetryClass, StopCause

# Stops that answer something the outside did: what the backend named tells more than our word for it.
_ANSWERS: Final = frozenset({StopCause.REVOCATION, StopCause.DRAIN, StopCause.MEMBER_LOST})
_WORDS_OF_USERS: Final = frozenset({StopCause.CANCEL, StopCause.REQUEUE})
_CANNOT_START: Final = frozenset({126, 127})


def reason_of(
    *,
    stop_cause: StopCause | None,
    seen_cause: Reason | None,
    exit_code: int | None,
    final: bool,
    checkpoints: bool,
    previous_no_progress: bool,
    newer_checkpoint: bool,
) -> Reason:
    """The reason of an end.

    seen_cause: what the backend named, None where it named nothing. final: a FINAL mark lies beside the newest
    checkpoint. checkpoints: the job can save. previous_no_progress: the attempt before exited 75 without a newer
    valid checkpoint. newer_checkpoint: this attempt left a valid checkpoint newer than the one it began from.
    Of a service, which has no end of its own, say `checkpoints=True`: leaving by 0 on SIGTERM does not complete it.
    """
    done = exit_code == 0 and not checkpoints and stop_cause not in _WORDS_OF_USERS
    if final or done:
        # The work is done. That a stop was on its way does not undo it, and running it again would waste it all.
        # Only a user's own word outweighs a command that merely left politely.
        return Reason.COMPLETED
    if stop_cause is not None:
        return _stopped(stop_cause, seen_cause)
    return _left(seen_cause, exit_code, again=previous_no_progress and not newer_checkpoint)


def _stopped(stop_cause: StopCause, seen_cause: Reason | None) -> Reason:
    if stop_cause in _ANSWERS and seen_cause is not None and _taken(seen_cause):
        return seen_cause
    return CAUSES[stop_cause]


def _taken(seen_cause: Reason) -> bool:
    return verdict(seen_cause).retry is RetryClass.INFRASTRUCTURE


def _left(seen_cause: Reason | None, exit_code: int | None, *, again: bool) -> Reason:
    if seen_cause is not None and _taken(seen_cause):
        return seen_cause  # a job that saves on SIGTERM leaves by 0 or 75 when it is evicted, too
    if exit_code == SAVED_EXIT_CODE:
        return Reason.NO_PROGRESS if again else Reason.SAVED_AND_EXITED
    if exit_code == 0:
        # A job with checkpoints that leaves by 0 without a FINAL mark has ended as a program ends.
        return Reason.COMPLETED
    if seen_cause is not None and seen_cause is not Reason.COMPLETED:
        return seen_cause
    if exit_code is None:
        return Reason.LOST if seen_cause is None else Reason.COMPLETED
    return Reason.LAUNCH_FAILED if exit_code in _CANNOT_START else Reason.NON_ZERO_EXIT
