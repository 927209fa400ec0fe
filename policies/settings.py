"""Every number a policy may be tuned by, in one frozen value. Decides nothing itself and reads no environment.

`version` names the settings in the explanation of a decision: two plans with the same version followed the same rules.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from policies.vocabulary import PriorityClass

RULES: Final = 1
"""Raised when the code of a policy changes what it decides with unchanged settings."""

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000


def _grace() -> Mapping[PriorityClass, int]:
    # Grace is the WAITER's: how long its victims get. P2 takes by reclaim alone.
    return {PriorityClass.P0: 0, PriorityClass.P1: 300 * SECOND_MS, PriorityClass.P2: 300 * SECOND_MS}


def _min_runtime_caps() -> Mapping[PriorityClass, int]:
    return {PriorityClass.P0: 4 * HOUR_MS, PriorityClass.P1: 2 * HOUR_MS, PriorityClass.P2: HOUR_MS}


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Durations in milliseconds, shares in per mille or percent as the name says. All defaults are documented here."""

    # order (POLICIES §1)
    order: str = "default"  # a name of policies.registry
    ageing_per_hour: int = 10
    ageing_cap: int = 900  # below the distance of two classes, so that none overtakes the next
    ageing_step: int = 100
    max_wait_ms: int = 4 * HOUR_MS  # beyond it a job that is not the head gets a shadow slot too

    # backfill (§5)
    max_slots_per_pool: int = 4  # the head's and those of jobs past max_wait; each narrows what may pass
    backfill: str = "easy"  # or "none": the queue does not pass a blocked head at all

    # preemption (§7)
    grace_ms: Mapping[PriorityClass, int] = field(default_factory=_grace)
    reclaim_grace_ms: int = 300 * SECOND_MS
    reclaim_below_permille: int = 950  # QAD below which an owner may reclaim
    max_reclaim_per_cycle: int = 64_000  # milli-GPU
    max_victims_exact: int = 12  # candidates per pool searched exactly; 2^12 sets
    max_candidates: int = 200  # beyond the exact search, the cheapest so many are looked at
    max_victims_per_cycle: int = 32
    max_searches_per_cycle: int = 64  # waiters for which victims are looked for; the others wait for the next cycle
    max_preemptions_per_job_day: int = 3
    cool_down_ms: int = 30 * MINUTE_MS
    finish_soon_ms: int = 10 * MINUTE_MS
    min_runtime_cap_ms: Mapping[PriorityClass, int] = field(default_factory=_min_runtime_caps)
    lost_preemption_pause_ms: int = 30 * MINUTE_MS  # after foreign load took the room, a pool preempts nobody
    max_credited_gap_ms: int = HOUR_MS
    frequency_penalty_ms: int = HOUR_MS // 4  # per preemption in the last seven days
    deadline_penalty_ms: int = HOUR_MS
    below_min_penalty_ms: int = HOUR_MS // 2
    debt_relief_ms: int = HOUR_MS // 10  # per day of debt, at most debt_relief_days
    debt_relief_days: int = 5
    debt_half_life_ms: int = 7 * DAY_MS

    # elastic (§9)
    resize_cool_down_ms: int = 30 * MINUTE_MS  # between two resizes that nobody asked for
    keep_growth_permille: int = 700  # of what the members added would bring if all scaled perfectly
    growth_retry_ms: int = 6 * HOUR_MS  # after a growth that was not kept

    # credit (§8)
    frequency_after: int = 3  # preempted more often than this in the period: the bonus is added
    frequency_bonus_percent: int = 10
    credit_share_percent: int = 10  # of the lenders' lendable that redeemed credits may use
    credit_cap_gpu_ms: int = 10_000 * HOUR_MS

    # retry
    backoff_base_ms: int = 10 * SECOND_MS
    backoff_cap_ms: int = 10 * MINUTE_MS
    refused_delay_ms: int = 30 * SECOND_MS  # after a refusal nothing was started; the pool may refuse again at once

    @property
    def version(self) -> str:
        """`<rules>-<first 12 hex digits of the settings' digest>`; equal settings have equal versions."""
        text = json.dumps(self.as_json(), sort_keys=True, separators=(",", ":"))
        return f"{RULES}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def as_json(self) -> dict[str, Any]:
        """The settings as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "PolicySettings":
        """The settings of a JSON object; a key that is not a setting raises TypeError naming it."""
        values = dict(data)
        for name in ("grace_ms", "min_runtime_cap_ms"):
            if name in values:
                values[name] = {PriorityClass(klass): int(ms) for klass, ms in values[name].items()}
        return cls(**values)
