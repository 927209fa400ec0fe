"""Effective quota: base + the grants that are open at an instant (DESIGN §6). Windows are sets of times in UTC."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any, Final

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

_DAY_MIN: Final = 1440
_WEEK_MIN: Final = 7 * _DAY_MIN
_LAST_DAY: Final = 6


@dataclass(frozen=True, slots=True)
class Effective:
    """Quota at an instant. `protected`: the part of `min` that a grant says no ordinary reclaim touches."""

    min: int = 0
    max: int | None = None
    lendable: int = 0
    protected: int = 0


QuotaKey = tuple[int, str, str]
"""Tenant id, flavor, resource."""

_BASE = text("SELECT tenant_id, flavor, resource, min, max, lendable FROM quotas WHERE tenant_id = ANY(:tenants)")
_GRANTS = text(
    """
    SELECT tenant_id, flavor, resource, delta_min, delta_max, reclaimable, recurrence, instant.now
    FROM grants CROSS JOIN (SELECT coalesce(CAST(:now AS timestamptz), now()) AS now) AS instant
    WHERE tenant_id = ANY(:tenants) AND revoked_at IS NULL
        AND starts_at <= instant.now AND (ends_at IS NULL OR ends_at > instant.now)
    ORDER BY id
    """
)


def effective_quota(
    session: Session, tenant_ids: Iterable[int], now: datetime | None = None
) -> dict[QuotaKey, Effective]:
    """Quota of these tenants at `now` (the database's own without one). No entry: no guarantee and no ceiling there."""
    tenants = list(tenant_ids)
    found = {
        (row.tenant_id, row.flavor, row.resource): Effective(row.min, row.max, row.lendable)
        for row in session.execute(_BASE, {"tenants": tenants})
    }
    for grant in session.execute(_GRANTS, {"tenants": tenants, "now": now}):
        if grant.recurrence is None or is_open(grant.recurrence, grant.now):
            key = (grant.tenant_id, grant.flavor, grant.resource)
            found[key] = _add(found.get(key, Effective()), grant)
    return {key: _not_below_zero(quota) for key, quota in found.items()}


def _add(base: Effective, grant: Row[Any]) -> Effective:
    return Effective(
        min=base.min + grant.delta_min,
        max=None if base.max is None else base.max + grant.delta_max,
        lendable=base.lendable,
        protected=base.protected + (0 if grant.reclaimable else max(0, grant.delta_min)),
    )


def _not_below_zero(sum_: Effective) -> Effective:
    """Of the whole sum, so that the order of grants does not matter: 4 − 8 + 6 is 2."""
    return replace(sum_, min=max(0, sum_.min), max=None if sum_.max is None else max(0, sum_.max))


def is_open(recurrence: Mapping[str, Any], at: datetime) -> bool:
    """Whether the window {"days", "from", "until"} holds `at`; `until` at or before `from` runs into the next day."""
    minute = at.weekday() * _DAY_MIN + at.hour * 60 + at.minute
    return any((minute - start) % _WEEK_MIN < length for start, length in ((s, e - s) for s, e in _spans(recurrence)))


def share_of_week(recurrence: Mapping[str, Any]) -> Fraction:
    """The share of the week that the window covers: Mon-Thu 08-20 is 2/7 (28.6 %)."""
    covered = {minute % _WEEK_MIN for start, end in _spans(recurrence) for minute in range(start, end)}
    return Fraction(len(covered), _WEEK_MIN)


def next_change(recurrence: Mapping[str, Any], after: datetime) -> datetime:
    """The next instant later than `after` at which the window opens or closes."""
    base = after.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=after.weekday())
    edges = sorted({minute % _WEEK_MIN for span in _spans(recurrence) for minute in span})
    for week in (0, 1):
        for edge in edges:
            at = base + timedelta(days=7 * week, minutes=edge)
            if at > after:
                return at
    raise ValueError("recurrence: a window that covers the whole week never changes; leave it out")


def _spans(recurrence: Mapping[str, Any]) -> list[tuple[int, int]]:
    days = recurrence.get("days", list(range(_LAST_DAY + 1)))
    start, end = clock(recurrence.get("from", "00:00"), "from"), clock(recurrence.get("until", "24:00"), "until")
    if not days or any(not isinstance(day, int) or not 0 <= day <= _LAST_DAY for day in days):
        raise ValueError("recurrence.days: numbers 0 (Monday) to 6 (Sunday), at least one")
    length = end - start if end > start else end - start + _DAY_MIN
    return [(day * _DAY_MIN + start, day * _DAY_MIN + start + length) for day in sorted(set(days))]


def clock(value: str, field: str) -> int:
    """Minutes after midnight of `HH:MM`; 24:00 is the end of the day. ValueError names the field."""
    hours, separator, minutes = value.partition(":")
    if separator and hours.isdigit() and minutes.isdigit() and int(minutes) < 60:  # noqa: PLR2004
        total = int(hours) * 60 + int(minutes)
        if total <= _DAY_MIN:
            return total
    raise ValueError(f"recurrence.{field}: {value!r} is no time of day; write it like 08:00 (UTC)")
