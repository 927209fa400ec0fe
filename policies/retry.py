"""Whether an ended attempt is followed by another, when, and what it costs the job's counters.

Preempted and revoked are never failures: only `RetryClass.USER` counts against `retry.max` and waits longer each time.
"""

from dataclasses import dataclass

from policies.reasons import Verdict
from policies.settings import PolicySettings
from policies.vocabulary import AttemptState, JobState, RetryClass


@dataclass(frozen=True, slots=True)
class Counters:
    """How often the job's attempts have ended in each way before this one."""

    failures: int = 0
    preemptions: int = 0
    revocations: int = 0


@dataclass(frozen=True, slots=True)
class Next:
    """What becomes of the job: QUEUED (not before an instant, or at once), or its end; and the new counters."""

    job_state: JobState
    not_before_ms: int | None
    failures: int
    preemptions: int
    revocations: int


def next_step(
    verdict: Verdict,
    counters: Counters,
    *,
    retry_max: int,
    now_ms: int,
    settings: PolicySettings,
    cancel_wanted: bool = False,
) -> Next:
    """The next step of a job whose attempt ended with `verdict`.

    `retry_max` is how many failures are forgiven: with 0 the first is the end. `cancel_wanted`: a user asked for the
    end while the attempt was stopping for another cause, so that no attempt may follow.
    """
    failed = verdict.retry is RetryClass.USER
    failures = counters.failures + failed
    preemptions = counters.preemptions + (verdict.attempt is AttemptState.PREEMPTED)
    revocations = counters.revocations + (verdict.attempt is AttemptState.REVOKED)

    def then(state: JobState, not_before_ms: int | None = None) -> Next:
        return Next(state, not_before_ms, failures, preemptions, revocations)

    if verdict.retry is RetryClass.FINAL:
        return then(verdict.job)
    if cancel_wanted:
        return then(JobState.CANCELLED)
    if failed:
        if failures > retry_max:
            return then(verdict.job)
        return then(JobState.QUEUED, now_ms + backoff_ms(failures, settings))
    if verdict.attempt is AttemptState.REFUSED:
        return then(JobState.QUEUED, now_ms + settings.refused_delay_ms)
    return then(JobState.QUEUED)


def backoff_ms(failures: int, settings: PolicySettings) -> int:
    """Delay before the attempt after the n-th failure: base, doubled each time, bounded. No jitter: replays agree."""
    doublings = min(max(failures - 1, 0), 30)  # beyond it any base is above any cap
    return int(min(settings.backoff_base_ms << doublings, settings.backoff_cap_ms))
