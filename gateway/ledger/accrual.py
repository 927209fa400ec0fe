"""Running use posted as it grows, rolling leases renewed before they run out, classes lowered when their allowance is
used up (DESIGN §6). One transaction per lease; a lease that fails stops no other.

Never stops an attempt: it reports those whose renewal was refused, and the caller writes the wish.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Engine, Row, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from gateway.ledger import credits as credit
from gateway.ledger import events, leases, limits
from gateway.ledger.accounts import book, locked
from gateway.ledger.engine import in_transaction
from gateway.ledger.limits import LimitExceeded
from gateway.ledger.lineage import Level, lineage
from gateway.ledger.meter import Meter, Times
from gateway.ledger.partitions import ensure_partitions
from gateway.ledger.tables.work import LeaseRow
from policies.vocabulary import LeaseState, Payer, PriorityClass

log = logging.getLogger(__name__)

RENEW_AHEAD: Final = timedelta(minutes=10)
UNKNOWN_AFTER: Final = timedelta(days=7)
_MS: Final = timedelta(milliseconds=1)
_LOWER: Final = {PriorityClass.P0: PriorityClass.P1, PriorityClass.P1: PriorityClass.P2}


@dataclass(frozen=True, slots=True)
class Accrued:
    """What one round did: leases posted, attempts to stop for BUDGET, attempts whose class was lowered, failures."""

    touched: int = 0
    refused: tuple[str, ...] = ()
    lowered: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _One:
    touched: bool = False
    refused: bool = False
    lowered: bool = False


@dataclass(slots=True)
class _Sums:
    touched: int = 0
    refused: list[str] = field(default_factory=list)
    lowered: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def accrue(engine: Engine) -> Accrued:
    """One round over every live lease, then what is due by time: unknown ends, credits, partitions."""
    with Session(engine) as session:
        rows = session.execute(_LIVE).all()
    sums = _Sums()
    for row in rows:
        try:
            one = in_transaction(engine, lambda session, row=row: accrue_lease(session, row.id))  # type: ignore[misc]
        except (SQLAlchemyError, LookupError, ArithmeticError):
            log.exception("accrual of lease %s failed; the next round tries again", row.id)
            sums.failed.append(row.attempt_id)
            continue
        sums.touched += one.touched
        if one.refused:
            sums.refused.append(row.attempt_id)
        if one.lowered:
            sums.lowered.append(row.attempt_id)
    in_transaction(engine, _give_up_unknown)
    in_transaction(engine, credit.burn_running)
    in_transaction(engine, credit.expire)
    _months_ahead(engine)
    return Accrued(sums.touched, tuple(sums.refused), tuple(sums.lowered), tuple(sums.failed))


def _months_ahead(engine: Engine) -> None:
    """Partitions of the coming months, where this login owns the tables; elsewhere `migrate` makes them."""
    try:
        with engine.begin() as connection:
            made = ensure_partitions(connection)
    except SQLAlchemyError as error:
        log.warning("no new partitions (%s); rows go to the DEFAULT ones until `tidegate migrate` runs", type(error))
    else:
        if made:
            log.info("partitions made: %s", ", ".join(made))


def accrue_lease(session: Session, lease_id: UUID) -> _One:
    """Post one lease's use up to now, cut at the ends of periods, and renew it when it runs out soon."""
    job_id = session.execute(_JOB, {"id": lease_id}).scalar_one_or_none()
    if job_id is None:
        return _One()
    session.execute(_LOCK_JOB, {"job": job_id})  # job before lease, as everybody locks them: an event may follow
    row = session.execute(_LOCK, {"id": lease_id}).one_or_none()
    if row is None:
        return _One()
    lease = session.get_one(LeaseRow, lease_id, populate_existing=True)
    levels = lineage(session, lease.tenant_id)
    meter = leases.meter_of(lease, levels)
    locked(session, meter.keys())
    posted = row.started_at is not None and _post(session, lease, meter, levels, row)
    lowered = lease.state == LeaseState.HELD and _lower_class(session, lease, levels)
    one = _One(touched=posted, lowered=lowered)
    if not row.rolling or lease.state != LeaseState.HELD:
        return one
    if lease.covers_until is None or lease.covers_until - row.now > RENEW_AHEAD:
        return one
    renewed = _renew(session, lease, meter, levels, row.now)
    return replace(one, touched=one.touched or renewed, refused=not renewed)


def _post(session: Session, lease: LeaseRow, meter: Meter, levels: Sequence[Level], row: Row[Any]) -> bool:
    since: datetime = lease.accrued_until or max(row.started_at, lease.created_at)
    posted = False
    for until in [*_period_ends(session, levels, since, row.now), row.now]:
        length = (until - since) // _MS
        if length <= 0:
            continue
        before = Times(lease.used_ms, lease.held_ms)
        after = Times(before.used_ms + length, max(0, before.held_ms - length))
        cause = f"lease:{lease.id}:used:{after.used_ms}"
        book(session, cause=cause, kind="use_posted", lines=meter.lines(before, after, Payer.TENANT))
        more = meter.gpu_ms(after.used_ms) - meter.gpu_ms(before.used_ms)
        limits.charge_allowance(session, levels, PriorityClass(lease.klass), more, until)
        # Whole milliseconds only, so that the rest is counted next time.
        since += length * _MS
        _save(session, lease, meter, after, accrued_until=since)
        _roll_budgets(session, levels, until)
        posted = True
    return posted


def _renew(session: Session, lease: LeaseRow, meter: Meter, levels: Sequence[Level], now: datetime) -> bool:
    more = leases.ROLLING_MS - lease.held_ms
    if more > 0:
        try:
            limits.check_budget(session, levels, meter, more)
        except LimitExceeded as refused:
            data = refused.numbers
            events.append(
                session,
                lease.job_id,
                events.RENEWAL_REFUSED,
                attempt_id=lease.attempt_id,
                reason=str(refused),
                data=data,
            )
            return False
        before, after = Times(lease.used_ms, lease.held_ms), Times(lease.used_ms, leases.ROLLING_MS)
        cause = f"lease:{lease.id}:renewed:{lease.version}"
        book(session, cause=cause, kind="lease_renewed", lines=meter.lines(before, after))
        _save(session, lease, meter, after)
    lease.covers_until = now + leases.ROLLING_MS * _MS
    session.flush()
    return True


def _lower_class(session: Session, lease: LeaseRow, levels: Sequence[Level]) -> bool:
    """Used up at any level: one class lower from here on, and the job is told."""
    klass = PriorityClass(lease.klass)
    if klass not in _LOWER or not lease.gpu_milli:
        return False
    if limits.allowance_left(session, levels, klass):
        return False
    lease.klass = _LOWER[klass].value
    session.flush()
    data = {"from": klass.value, "to": lease.klass}
    events.append(session, lease.job_id, events.CLASS_LOWERED, attempt_id=lease.attempt_id, data=data)
    return True


def _roll_budgets(session: Session, levels: Sequence[Level], until: datetime) -> None:
    """Periods that ended by `until` begin anew with what was posted by then."""
    session.execute(_ROLL, {"tenants": [level.id for level in levels], "until": until})


def _period_ends(session: Session, levels: Sequence[Level], since: datetime, now: datetime) -> list[datetime]:
    rows = session.execute(_ENDS, {"tenants": [level.id for level in levels]})
    return sorted({row.ends_at for row in rows if since < row.ends_at < now})


def _save(
    session: Session, lease: LeaseRow, meter: Meter, times: Times, *, accrued_until: datetime | None = None
) -> None:
    for name, value in leases.time_values(meter, times).items():
        setattr(lease, name, value)
    if accrued_until is not None:
        lease.accrued_until = accrued_until
    lease.version += 1
    session.flush()
    leases.record_use(session, lease.attempt_id, meter, times)


def _give_up_unknown(session: Session) -> int:
    """An end that stayed unknown for a week: the platform pays for what could have been used, the hold goes back."""
    rows = session.execute(_UNKNOWN, {"after": UNKNOWN_AFTER}).all()
    return sum(
        leases.post_known_use(
            session, row.id, used_from=row.started_at, used_until=row.resolved_at, payer=Payer.PLATFORM
        )
        for row in rows
    )


_LIVE = text("SELECT id, attempt_id FROM leases WHERE state IN ('held', 'contingent') ORDER BY id")
_JOB = text("SELECT job_id FROM leases WHERE id = :id")
_LOCK_JOB = text("SELECT id FROM jobs WHERE id = :job FOR NO KEY UPDATE")
_LOCK = text(
    """
    SELECT attempts.started_at, jobs.request->>'max_duration_ms' IS NULL AS rolling, now() AS now
    FROM leases JOIN attempts ON attempts.id = leases.attempt_id JOIN jobs ON jobs.id = attempts.job_id
    WHERE leases.id = :id AND leases.state IN ('held', 'contingent') AND attempts.ended_at IS NULL
    FOR NO KEY UPDATE OF leases
    """
)
_ENDS = text(
    """
    SELECT period_started_at + make_interval(secs => period_s) AS ends_at FROM budgets WHERE tenant_id = ANY(:tenants)
    UNION SELECT period_started_at + make_interval(secs => period_s) FROM class_allowances
    WHERE tenant_id = ANY(:tenants)
    """
)
_ROLL = text(
    """
    UPDATE budgets SET spent_before = (
            SELECT coalesce(sum(posted), 0) FROM accounts
            WHERE accounts.tenant_id = budgets.tenant_id AND accounts.unit = budgets.unit
                AND accounts.kind IN ('gpu_time', 'money')
        ),
        period_started_at = period_started_at + make_interval(secs => period_s)
            * floor(extract(epoch FROM CAST(:until AS timestamptz) - period_started_at) / period_s)
    WHERE tenant_id = ANY(:tenants) AND period_started_at + make_interval(secs => period_s) <= :until
    """
)
_UNKNOWN = text(
    """
    SELECT leases.id, attempts.started_at, leases.resolved_at FROM leases
    JOIN attempts ON attempts.id = leases.attempt_id
    WHERE leases.state = 'posted' AND leases.payer = '' AND leases.resolved_at < now() - CAST(:after AS interval)
    ORDER BY leases.id
    """
)
