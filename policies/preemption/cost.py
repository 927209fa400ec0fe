"""What stopping one attempt would cost, in integer GPU-milliseconds, each term by name. Chooses nobody."""

from dataclasses import dataclass

from policies.settings import DAY_MS, HOUR_MS, PolicySettings
from policies.snapshot import LiveAttempt

MILLI = 1_000


@dataclass(frozen=True, slots=True)
class Penalty:
    """The terms of the disruption penalty in milliseconds; `total_ms` is never below 0."""

    frequency_ms: int = 0
    deadline_ms: int = 0
    below_min_ms: int = 0
    debt_relief_ms: int = 0

    @property
    def total_ms(self) -> int:
        """Sum of the terms, the relief taken off."""
        return max(0, self.frequency_ms + self.deadline_ms + self.below_min_ms - self.debt_relief_ms)


@dataclass(frozen=True, slots=True)
class Cost:
    """One victim's cost with its terms."""

    attempt: str
    milli_gpu: int
    lost_ms: int
    restart_ms: int
    penalty: Penalty
    brought_gpu_ms: int = 0  # of those that go with it: a displaced waiter's own victims

    @property
    def per_gpu_ms(self) -> int:
        """Time lost on each GPU."""
        return self.lost_ms + self.restart_ms + self.penalty.total_ms

    @property
    def gpu_ms(self) -> int:
        """GPUs × (lost + restart + penalty), and the same of those that go with it."""
        return self.milli_gpu * self.per_gpu_ms // MILLI + self.brought_gpu_ms

    @property
    def score_milli(self) -> int:
        """GPUs ÷ hours, in thousandths: shown, never what is chosen by."""
        return self.milli_gpu * HOUR_MS // max(1, self.per_gpu_ms)

    def numbers(self) -> dict[str, int | str]:
        """Every term, for the explanation."""
        return {
            "milli_gpu": self.milli_gpu,
            "lost_ms": self.lost_ms,
            "restart_ms": self.restart_ms,
            "penalty_ms": self.penalty.total_ms,
            "penalty_frequency_ms": self.penalty.frequency_ms,
            "penalty_deadline_ms": self.penalty.deadline_ms,
            "penalty_below_min_ms": self.penalty.below_min_ms,
            "penalty_debt_relief_ms": self.penalty.debt_relief_ms,
            "cost_gpu_ms": self.gpu_ms,
            "score_milli": self.score_milli,
        }


def milli_gpu(attempt: LiveAttempt) -> int:
    """What the whole gang holds of accelerators."""
    return sum(placed.total.accelerators for placed in attempt.placed)


def lost_ms(attempt: LiveAttempt, grace_ms: int, now_ms: int, settings: PolicySettings) -> int:
    """Work lost on each GPU: the save itself if the grace covers it, else what was done since the last checkpoint."""
    if attempt.started_ms is None:
        return 0
    age = max(0, now_ms - attempt.started_ms)
    if attempt.save_ms is not None and grace_ms >= attempt.save_ms:
        return min(age, attempt.save_ms)
    since = age if attempt.checkpoint_ms is None else min(age, max(0, now_ms - attempt.checkpoint_ms))
    bounds = [since, settings.max_credited_gap_ms]
    if attempt.checkpoint_interval_ms is not None:
        bounds.append(2 * attempt.checkpoint_interval_ms)
    return min(bounds)


def cost_of(
    attempt: LiveAttempt,
    *,
    grace_ms: int,
    now_ms: int,
    settings: PolicySettings,
    tenant_use: int = 0,
    tenant_min: int = 0,
    debt: int = 0,
) -> Cost:
    """The cost of one victim. `tenant_use` and `tenant_min` in milli-GPU of its flavor, `debt` in milli-GPU × ms."""
    lost = lost_ms(attempt, grace_ms, now_ms, settings)
    gpus = milli_gpu(attempt)
    late = (
        attempt.deadline_ms is not None
        and attempt.ends_by_ms is not None
        and attempt.ends_by_ms <= attempt.deadline_ms < attempt.ends_by_ms + lost + attempt.restart_ms
    )
    falls = tenant_min > 0 and tenant_use >= tenant_min > tenant_use - gpus
    day_of_min = max(tenant_min, MILLI) * DAY_MS
    relief = min(settings.debt_relief_days * settings.debt_relief_ms, settings.debt_relief_ms * debt // day_of_min)
    penalty = Penalty(
        settings.frequency_penalty_ms * attempt.preemptions_week,
        settings.deadline_penalty_ms if late else 0,
        settings.below_min_penalty_ms if falls else 0,
        relief,
    )
    return Cost(attempt.id, gpus, lost, attempt.restart_ms, penalty)
