"""How much credit one preemption earns, in GPU-milliseconds of its flavor. Books nothing.

GPUs × (gap + save + restart), and a bonus for a tenant that is preempted often. What a job claims about its
checkpoints is clamped by the caller to the time of receipt and can only lower the credit.
"""

from dataclasses import dataclass
from typing import Final

from policies.preemption.cost import MILLI
from policies.settings import PolicySettings
from policies.vocabulary import StopCause

_EARNS: Final = frozenset({StopCause.PREEMPT, StopCause.MOVE})
"""A move earns only when it was made for another tenant. Reclaim, backfill, spot, drain and lending earn nothing."""


@dataclass(frozen=True, slots=True)
class Credit:
    """The amount with its terms; `bonus_gpu_ms` is part of `gpu_ms`."""

    gpu_ms: int
    gap_ms: int
    save_ms: int
    restart_ms: int
    bonus_gpu_ms: int
    milli_gpu: int


def earns(cause: StopCause, victim_tenant: str, waiter_tenant: str, *, by_operator: bool = False) -> bool:
    """Whether this stop is one that earns credit at all."""
    return cause in _EARNS and victim_tenant != waiter_tenant and not by_operator


def credit_of(
    *,
    milli_gpu: int,
    started_ms: int | None,
    ended_ms: int,
    checkpoint_ms: int | None,
    save_ms: int,
    restart_ms: int,
    preemptions_in_period: int,
    settings: PolicySettings,
) -> Credit:
    """The credit of one victim attempt.

    checkpoint_ms: end of the newest L1-verified checkpoint, None without one. save_ms: duration of the save made
    inside this notice, 0 if none. preemptions_in_period counts earlier ones of the tenant's job, not this one.
    An attempt that never started has lost nothing and earns nothing.
    """
    if started_ms is None:
        return Credit(0, 0, 0, 0, 0, milli_gpu)
    since = started_ms if checkpoint_ms is None else max(started_ms, checkpoint_ms)
    gap = min(max(0, ended_ms - since), settings.max_credited_gap_ms)
    plain = milli_gpu * (gap + save_ms + restart_ms) // MILLI
    often = preemptions_in_period + 1 > settings.frequency_after
    bonus = plain * settings.frequency_bonus_percent // 100 if often else 0
    return Credit(plain + bonus, gap, save_ms, restart_ms, bonus, milli_gpu)


def redeemable_gpu_ms(balance_gpu_ms: int, lendable_milli_gpu: int, period_ms: int, settings: PolicySettings) -> int:
    """How much of a balance a period's grant may use: within `credit_share_percent` of what the lenders may lend."""
    share = lendable_milli_gpu * settings.credit_share_percent * period_ms // (100 * MILLI)
    return max(0, min(balance_gpu_ms, share, settings.credit_cap_gpu_ms))
