"""Whether a lease may be taken: quota at every level of the tenant's path, class allowance, budget.

Reads stored balances under the locks that `leases.take` holds, so that no burst passes a limit (CASES QL-01).
Changes nothing but the start of a period that is over.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from gateway.ledger import direct
from gateway.ledger.accounts import Balance, Key
from gateway.ledger.grants import effective_quota
from gateway.ledger.lineage import Level
from gateway.ledger.meter import GPU_MS, HOUR_MS, Meter
from policies.vocabulary import Account, PriorityClass

Amounts = Mapping[tuple[str, str], int]
"""(flavor, resource) -> amount."""


class LimitExceeded(Exception):  # noqa: N818  (an answer of the ledger, not a defect)
    """A limit stands in the way. resource: a quota's, or `class P1`, `gpu_ms`, `micro_usd` for the other limits.

    held: leases and observed direct use; `observed`: the latter's part of it.
    """

    def __init__(
        self, *, tenant: str, flavor: str, resource: str, limit: int, held: int, asked: int, observed: int = 0
    ) -> None:
        what = f"{resource} of {flavor}" if flavor else resource
        direct = ", part of which is in direct use" if observed else ""
        super().__init__(
            f"{tenant}: {asked} more {what} would pass the limit of {limit}{direct};"
            f" an admin of {tenant} or an operator may raise it"
        )
        self.tenant = tenant
        self.flavor = flavor
        self.resource = resource
        self.limit = limit
        self.held = held
        self.asked = asked
        self.observed = observed

    @property
    def numbers(self) -> dict[str, int | str]:
        """What led to the refusal, as a Wait shows it."""
        found: dict[str, int | str] = {"tenant": self.tenant, "resource": self.resource, "limit": self.limit}
        found |= {"used": self.held, "asked": self.asked}
        if self.flavor:
            found["flavor"] = self.flavor
        if self.observed:
            found["observed"] = self.observed
        return found

    @property
    def is_budget(self) -> bool:
        """Whether money or time ran out (BudgetExhausted) and not a count of things held now (TenantLimit)."""
        return not self.flavor


class BudgetExceeded(LimitExceeded):
    """A budget would be passed. `held`: spent in this period and held ahead, together; `spent`: the first of them."""

    def __init__(
        self, *, tenant: str, unit: str, limit: int, spent: int, held: int, asked: int, for_ms: int, ends_at: datetime
    ) -> None:
        super().__init__(tenant=tenant, flavor="", resource=unit, limit=limit, held=spent + held, asked=asked)
        self.spent = spent
        self.for_ms = for_ms
        self.ends_at = ends_at
        self._words = (
            f"the budget of {tenant} is {_amount(limit, unit)} in this period, and what is left of it is less than the"
            f" {_amount(asked, unit)} that this job asks. The next period begins at"
            f" {ends_at.isoformat(timespec='seconds')}; an operator may raise the budget, and a shorter max_duration"
            " asks for less"
        )

    def __str__(self) -> str:
        return self._words

    @property
    def numbers(self) -> dict[str, int | str]:
        """As for every limit, with what is spent, for how long was asked, and when the period ends."""
        ends_at = self.ends_at.isoformat(timespec="seconds")
        return {**super().numbers, "spent": self.spent, "for_ms": self.for_ms, "period_ends_at": ends_at}


def _amount(amount: int, unit: str) -> str:
    hundredths = amount * 100 // (HOUR_MS if unit == GPU_MS else 1_000_000)
    return f"{hundredths // 100}.{hundredths % 100:02d} {'GPU-hours' if unit == GPU_MS else 'dollars'}"


@dataclass(frozen=True, slots=True)
class Victim:
    """A lease that is to end before a contingent one is held. Only what it holds counts, not what it waits for."""

    attempt_id: str
    path: str
    amounts: Amounts


_CONTINGENT = text(
    """
    SELECT leases.attempt_id, contingent_on, items, tenants.path FROM leases JOIN tenants ON tenants.id = tenant_id
    WHERE state = 'contingent'
    -- A move's next attempt counts on its victim last: the others are those for whom it makes way.
    ORDER BY EXISTS (SELECT FROM attempts a WHERE a.job_id = leases.job_id AND leases.contingent_on ? a.id),
        leases.created_at, leases.id
    """
)
_LEASES = text(
    """
    SELECT leases.attempt_id, items, tenants.path, (
        SELECT resize_to->'items' FROM attempts a WHERE a.id = leases.attempt_id
            AND 'resize' IN (a.stop_cause, a.stop_due->>'cause')) AS keeps
    FROM leases JOIN tenants ON tenants.id = tenant_id
    WHERE leases.attempt_id = ANY(:attempts) AND state IN ('held', 'contingent')
    """
)


def amounts_of(items: Sequence[Mapping[str, Any]], part: str = "amount") -> dict[tuple[str, str], int]:
    """Sums per flavor and resource; part `held`: what a contingent lease already has."""
    found: dict[tuple[str, str], int] = {}
    for item in items:
        key = (item["flavor"], item["resource"])
        found[key] = found.get(key, 0) + item.get(part, 0)
    return found


def victims(session: Session, attempts: Sequence[str]) -> tuple[Victim, ...]:
    """Those of these attempts whose leases are not resolved."""
    rows = session.execute(_LEASES, {"attempts": list(attempts)}) if attempts else ()
    return tuple(
        Victim(row.attempt_id, row.path, less(amounts_of(row.items, "held"), amounts_of(row.keeps or ())))
        for row in rows
    )


def less(amounts: Amounts, kept: Amounts) -> dict[tuple[str, str], int]:
    """What is given up where something is kept, never below 0."""
    return {what: max(0, amount - kept.get(what, 0)) for what, amount in amounts.items()}


def _unclaimed(session: Session, levels: Sequence[Level], going: Sequence[Victim]) -> dict[int, tuple[Victim, ...]]:
    """Per level those below it that no contingent lease below it counts on yet: each is promised once at a level."""
    rows = session.execute(_CONTINGENT).all() if going else ()
    found: dict[int, tuple[Victim, ...]] = {}
    for level in levels:
        claimed = {victim for row in rows if level.holds(row.path) for victim in row.contingent_on}
        found[level.id] = tuple(v for v in going if level.holds(v.path) and v.attempt_id not in claimed)
    return found


def covered(session: Session, levels: Sequence[Level]) -> dict[tuple[int, str, str], int]:
    """Per level: what contingent leases below wait for and victims below still hold: held once, not twice."""
    found: dict[tuple[int, str, str], int] = {}
    claimed: set[tuple[int, str]] = set()  # at one level the oldest claim counts
    for row in session.execute(_CONTINGENT).all():
        mine = [level for level in levels if level.holds(row.path)]
        if not mine:
            continue
        held = amounts_of(row.items, "held")
        going = victims(session, row.contingent_on)
        for level in mine:
            open_ = [v for v in going if level.holds(v.path) and (level.id, v.attempt_id) not in claimed]
            claimed.update((level.id, victim) for victim in row.contingent_on)
            for (flavor, resource), amount in amounts_of(row.items).items():
                freed = sum(v.amounts.get((flavor, resource), 0) for v in open_)
                key = (level.id, flavor, resource)
                found[key] = found.get(key, 0) + min(freed, amount - held[flavor, resource])
    return found


def check_quota(
    session: Session,
    levels: Sequence[Level],
    asked: Amounts,
    going: Sequence[Victim],
    balances: Mapping[Key, Balance],
) -> dict[str, int]:
    """Raise LimitExceeded at the first level, root first, whose max is passed. `going` are the asker's own victims.

    The ceilings that the asker was held to, by `ceiling_key`: none where it takes no more than its victims free.
    """
    quotas = effective_quota(session, [level.id for level in levels])
    limits = {key: quota.max for key, quota in quotas.items() if quota.max is not None}
    judged: dict[str, int] = {}
    if not any((level.id, *what) in limits for level in levels for what in asked):
        return judged
    relief, mine = covered(session, levels), _unclaimed(session, levels, going)
    observed = direct.observed(session, levels)
    for level in levels:
        for (flavor, resource), amount in sorted(asked.items()):
            limit = limits.get((level.id, flavor, resource))
            balance = balances[Key(Account.CONCURRENCY, level.id, flavor, resource)]
            freed = sum(v.amounts.get((flavor, resource), 0) for v in mine[level.id])
            more = amount - freed
            held = balance.posted + balance.pending - relief.get((level.id, flavor, resource), 0)
            if limit is None or more <= 0:
                continue
            beside = observed.get((level.id, flavor, resource), 0)
            if held + beside + more > limit:
                raise LimitExceeded(
                    tenant=level.path,
                    flavor=flavor,
                    resource=resource,
                    limit=limit,
                    held=held + beside,
                    asked=more,
                    observed=beside,
                )
            judged[ceiling_key(level.id, flavor, resource)] = limit
    return judged


def ceiling_key(tenant_id: int, flavor: str, resource: str) -> str:
    """Names a ceiling in the data of a `lease_taken` transaction."""
    return f"{tenant_id}/{flavor}/{resource}"


_ALLOWANCES = text(
    """
    SELECT tenant_id, gpu_ms, period_s, used_gpu_ms, period_started_at, now() AS now FROM class_allowances
    WHERE tenant_id = ANY(:tenants) AND klass = :klass ORDER BY tenant_id FOR UPDATE
    """
)
_RUNNING = text(
    """
    SELECT coalesce(sum(gpu_milli), 0)::bigint FROM leases JOIN tenants ON tenants.id = tenant_id
    WHERE state IN ('held', 'contingent') AND klass = :klass
        AND (tenants.path = :path OR starts_with(tenants.path, :path || '/'))
    """
)


def check_allowance(session: Session, levels: Sequence[Level], klass: PriorityClass, gpu_milli: int) -> None:
    """P0 and P1: the path has an allowance, and each has an hour left for this lease and for every live one."""
    if klass is PriorityClass.P2 or gpu_milli == 0:
        return
    rows = session.execute(_ALLOWANCES, {"tenants": [level.id for level in levels], "klass": klass}).all()
    paths = {level.id: level.path for level in levels}
    asked = gpu_milli * HOUR_MS // 1000
    if not rows:
        raise LimitExceeded(tenant=levels[-1].path, flavor="", resource=f"class {klass}", limit=0, held=0, asked=asked)
    for row in rows:
        used = 0 if period_over(row) else row.used_gpu_ms
        path = paths[row.tenant_id]
        running = session.execute(_RUNNING, {"klass": klass, "path": path}).scalar_one()
        held = used + running * HOUR_MS // 1000
        if held + asked > row.gpu_ms:
            raise LimitExceeded(
                tenant=path, flavor="", resource=f"class {klass}", limit=row.gpu_ms, held=held, asked=asked
            )


def charge_allowance(
    session: Session, levels: Sequence[Level], klass: PriorityClass, gpu_ms: int, until: datetime
) -> None:
    """Count use that ended at `until` (negative: a correction) against every allowance on the path."""
    if klass is PriorityClass.P2 or gpu_ms == 0:
        return
    for row in session.execute(_ALLOWANCES, {"tenants": [level.id for level in levels], "klass": klass}).all():
        # Use up to the very end of a period belongs to it; whatever comes later to the next.
        over = until > row.period_started_at + timedelta(seconds=row.period_s)
        values = {
            "tenant": row.tenant_id,
            "klass": klass,
            "used": max(0, gpu_ms + (0 if over else row.used_gpu_ms)),
            "started": period_start(row) if over else row.period_started_at,
        }
        session.execute(_CHARGE, values)


def allowance_left(session: Session, levels: Sequence[Level], klass: PriorityClass) -> bool:
    """Whether the path has an allowance of the class and none of them is used up."""
    rows = session.execute(_ALLOWANCES, {"tenants": [level.id for level in levels], "klass": klass}).all()
    return bool(rows) and all(period_over(row) or row.used_gpu_ms < row.gpu_ms for row in rows)


_CHARGE = text(
    """
    UPDATE class_allowances SET used_gpu_ms = :used, period_started_at = :started
    WHERE tenant_id = :tenant AND klass = :klass
    """
)
_BUDGETS = text(
    """
    SELECT tenant_id, unit, amount, period_s, spent_before, period_started_at, now() AS now FROM budgets
    WHERE tenant_id = ANY(:tenants) ORDER BY tenant_id, unit FOR UPDATE
    """
)
_SPENT = text(
    """
    SELECT coalesce(sum(posted), 0)::bigint AS posted, coalesce(sum(pending), 0)::bigint AS pending FROM accounts
    WHERE tenant_id = :tenant AND unit = :unit AND kind IN ('gpu_time', 'money')
    """
)
_NEW_PERIOD = text(
    """
    UPDATE budgets SET spent_before = :spent, period_started_at = :started
    WHERE tenant_id = :tenant AND unit = :unit
    """
)


def period_over(row: Row[Any]) -> bool:
    """Whether the row's period has ended at its `now`."""
    return bool(row.now >= row.period_started_at + timedelta(seconds=row.period_s))


def period_start(row: Row[Any]) -> datetime:
    """When the period that holds the row's `now` began; periods follow each other without a gap."""
    length = timedelta(seconds=row.period_s)
    return row.period_started_at + length * ((row.now - row.period_started_at) // length)  # type: ignore[no-any-return]


def posted(session: Session, tenant_id: int, unit: str) -> int:
    """What a tenant and all below it have used since ever, in a budget's unit."""
    return int(session.execute(_SPENT, {"tenant": tenant_id, "unit": unit}).one().posted)


def check_budget(session: Session, levels: Sequence[Level], meter: Meter, more_ms: int) -> None:
    """Raise LimitExceeded where `more_ms` of this lease would pass what a level may spend in its period."""
    paths = {level.id: level.path for level in levels}
    for row in session.execute(_BUDGETS, {"tenants": list(paths)}).all():
        asked = meter.gpu_ms(more_ms) if row.unit == GPU_MS else meter.money(more_ms)
        spent = session.execute(_SPENT, {"tenant": row.tenant_id, "unit": row.unit}).one()
        before = row.spent_before
        if period_over(row):
            before = spent.posted
            session.execute(
                _NEW_PERIOD,
                {"tenant": row.tenant_id, "unit": row.unit, "spent": before, "started": period_start(row)},
            )
        used = spent.posted - before
        if asked > 0 and used + spent.pending + asked > row.amount:
            raise BudgetExceeded(
                tenant=paths[row.tenant_id],
                unit=row.unit,
                limit=row.amount,
                spent=used,
                held=spent.pending,
                asked=asked,
                for_ms=more_ms,
                ends_at=period_start(row) + timedelta(seconds=row.period_s),
            )


_LEFT = text(
    """
    SELECT tenants.path, budgets.unit, amount - coalesce(sum(pending), 0)::bigint - CASE
        WHEN period_started_at + make_interval(secs => period_s) <= now() THEN 0
        ELSE coalesce(sum(posted), 0)::bigint - spent_before END AS left_over
    FROM budgets JOIN tenants ON tenants.id = budgets.tenant_id
    LEFT JOIN accounts ON accounts.tenant_id = budgets.tenant_id AND accounts.unit = budgets.unit
        AND accounts.kind IN ('gpu_time', 'money')
    GROUP BY tenants.path, budgets.tenant_id, budgets.unit
    """
)


def budgets_left(session: Session) -> dict[tuple[str, str], int]:
    """(tenant path, unit) -> what new leases may still take of every budget."""
    return {(row.path, row.unit): row.left_over for row in session.execute(_LEFT)}
