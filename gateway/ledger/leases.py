"""Leases: capacity and quota taken for an attempt, contingent → held → posted or voided, each step once.

`take` checks and writes in one transaction under the locks of the whole tenant path. A contingent lease counts net of
its victims wherever both lie below one level; a victim's end turns its share to held in the same transaction, so that
nobody ever sees it free (CASES QL-04). Never decides who may preempt whom.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from backends.naming import parse_attempt_id
from gateway.ledger import limits
from gateway.ledger.accounts import Key, Line, book, locked
from gateway.ledger.items import items_of, price_of
from gateway.ledger.limits import Amounts, LimitExceeded, amounts_of
from gateway.ledger.lineage import Level, lineage
from gateway.ledger.meter import GPU_MS, HOUR_MS, Meter, Times, gpu_milli_of
from gateway.ledger.tables.accounts import BorrowingRow
from gateway.ledger.tables.work import LeaseRow
from gateway.ledger.transition import move_lease
from policies.decisions import Loan
from policies.snapshot import Placed
from policies.states import LIVE_LEASE_STATES
from policies.vocabulary import Account, LeaseState, Payer, PriorityClass

__all__ = ["LimitExceeded", "post_known_use", "release", "take", "victim_settled", "void_contingent"]

ROLLING_MS: Final = HOUR_MS
"""What a lease without max_duration holds ahead; `gateway.ledger.accrual` renews it."""


def take(
    session: Session,
    *,
    lease_id: UUID,
    attempt_id: str,
    job_id: UUID,
    tenant_id: int,
    placed: Sequence[Placed],
    klass: PriorityClass,
    contingent_on: Sequence[str] = (),
    loans: Sequence[Loan] = (),
    max_duration_ms: int | None = None,
    smaller: bool = False,
) -> LeaseRow:
    """Take the lease or raise LimitExceeded; the caller's savepoint then undoes what was decided with it.

    Victims that are settled already no longer count: with none left the lease is held at once. smaller: it follows, in
    this transaction, one that held no less; no limit is asked then.
    """
    levels = lineage(session, tenant_id)
    items = items_of(placed)
    asked = amounts_of(items)
    meter = Meter(tuple(level.id for level in levels), gpu_milli_of(items), price_of(session, placed))
    balances = locked(session, [*_concurrency_keys(levels, asked), *meter.keys()])
    going = limits.victims(session, contingent_on)
    gpu_milli = sum(meter.gpu_milli.values())
    hold_ms = ROLLING_MS if max_duration_ms is None else max_duration_ms
    ceilings: dict[str, int] = {}
    if not smaller:
        ceilings = limits.check_quota(session, levels, asked, going, balances)
        limits.check_allowance(session, levels, klass, gpu_milli)
        limits.check_budget(session, levels, meter, hold_ms)

    now: datetime = session.execute(select(text("now()"))).scalar_one()
    state = LeaseState.CONTINGENT if going else LeaseState.HELD
    if state is LeaseState.HELD:
        items = [{**item, "held": item["amount"]} for item in items]
    lease = LeaseRow(
        id=lease_id,
        tenant_id=tenant_id,
        job_id=job_id,
        attempt_id=attempt_id,
        state=state,
        contingent_on=[victim.attempt_id for victim in going],
        items=items,
        loans=[{"lender": loan.lender, "flavor": loan.flavor, "amount": loan.amount} for loan in loans],
        klass=klass,
        gpu_milli=gpu_milli,
        price=meter.price,
        held_ms=hold_ms,
        held_gpu_ms=meter.gpu_ms(hold_ms),
        held_money=meter.money(hold_ms),
        covers_until=now + timedelta(milliseconds=hold_ms),
        created_at=now,
    )
    session.add(lease)
    session.flush()
    book(
        session,
        cause=f"lease:{lease_id}:taken",
        kind="lease_taken",
        lines=[
            *_concurrency_lines(levels, asked, pending=state is LeaseState.CONTINGENT),
            *meter.lines(Times(), Times(0, hold_ms)),
        ],
        data={"attempt": attempt_id, "ceilings": ceilings},
        known=balances,
    )
    _borrow(session, lease, loans)
    return lease


def victim_settled(session: Session, victim_attempt_id: str, keeps: Amounts | None = None) -> list[str]:
    """Give the victim's share to those who wait for it; the attempts whose lease is held from now on.

    keeps: what it goes on with, where it was only made smaller.
    """
    waiting = _lock(
        session,
        "state = 'contingent' AND contingent_on @> jsonb_build_array(CAST(:attempt AS text))",
        victim_attempt_id,
    )
    if not waiting:
        return []
    freed = limits.less(_held_by_attempt(session, victim_attempt_id), keeps or {})
    held_now = []
    # The job's own next attempt, where it is moved, comes after those for whom it makes way.
    own, _, _ = parse_attempt_id(victim_attempt_id)
    for lease in sorted(waiting, key=lambda lease: (lease.job_id == own, lease.created_at, lease.id)):
        left = [other for other in lease.contingent_on if other != victim_attempt_id]
        # The last one brings with it whatever was free from the beginning.
        items, moved = _give(lease.items, freed, everything=not left)
        freed = {}  # the oldest claim counts; who else waited was checked without it
        levels = lineage(session, lease.tenant_id)
        book(
            session,
            cause=f"lease:{lease.id}:from:{victim_attempt_id}",
            kind="victim_settled",
            lines=[
                *_concurrency_lines(levels, {what: -amount for what, amount in moved.items()}, pending=True),
                *_concurrency_lines(levels, moved, pending=False),
            ],
        )
        lease.items = items
        lease.contingent_on = left
        session.flush()
        if not left:
            move_lease(session, lease.id, LeaseState.HELD)
            session.refresh(lease)
            held_now.append(lease.attempt_id)
    return held_now


def release(
    session: Session, lease: LeaseRow, *, used_from: datetime | None, used_until: datetime | None, payer: Payer
) -> bool:
    """Resolve a lease: its capacity and quota come back, the real use is posted, the rest of the hold returned. Once.

    used_from None: nothing ever ran, nothing is paid. used_until None with a start: the end is not known, so the hold
    on time stays until `post_known_use` (CASES QL-06 iii). Use is clamped to [lease made, now] and never negative.
    """
    found = _lock(session, "id = :attempt", lease.id)
    if not found or found[0].state not in LIVE_LEASE_STATES:
        return False
    lease = found[0]
    levels = lineage(session, lease.tenant_id)
    meter = meter_of(lease, levels)
    before = Times(lease.used_ms, lease.held_ms)
    unknown = used_from is not None and used_until is None
    now: datetime = session.execute(select(text("now()"))).scalar_one()
    after = before if unknown else Times(_used_ms(lease, used_from, used_until, now), 0)
    amounts, held = amounts_of(lease.items), amounts_of(lease.items, "held")
    known = locked(session, [*_concurrency_keys(levels, amounts), *meter.keys()])
    book(
        session,
        cause=f"lease:{lease.id}:resolved",
        kind="lease_resolved",
        lines=[
            *_concurrency_lines(levels, {what: -amount for what, amount in held.items()}, pending=False),
            *_concurrency_lines(levels, {k: held[k] - amount for k, amount in amounts.items()}, pending=True),
            *meter.lines(before, after, Payer.TENANT if unknown else payer),
        ],
        data={"attempt": lease.attempt_id, "payer": payer, "unknown": unknown},
        known=known,
    )
    more = meter.gpu_ms(after.used_ms) - meter.gpu_ms(before.used_ms)
    limits.charge_allowance(session, levels, PriorityClass(lease.klass), more, min(used_until or now, now))
    posted = lease.state == LeaseState.HELD and (unknown or after.used_ms > 0)
    move_lease(
        session,
        lease.id,
        LeaseState.POSTED if posted else LeaseState.VOIDED,
        values={**time_values(meter, after), "payer": "" if unknown else payer.value, "contingent_on": []},
    )
    record_use(session, lease.attempt_id, meter, after, ends=lease.id)
    session.expire(lease)
    return True


def post_known_use(
    session: Session, lease_id: UUID, *, used_from: datetime, used_until: datetime, payer: Payer
) -> bool:
    """The end of a lease that was resolved without one is known now: post it and return the rest of the hold. Once."""
    found = _lock(session, "id = :attempt AND state = 'posted' AND payer = ''", lease_id)
    if not found:
        return False
    lease = found[0]
    levels = lineage(session, lease.tenant_id)
    meter = meter_of(lease, levels)
    now: datetime = session.execute(select(text("now()"))).scalar_one()
    after = Times(_used_ms(lease, used_from, used_until, now), 0)
    lines = meter.lines(Times(lease.used_ms, lease.held_ms), after, payer)
    if not book(session, cause=f"lease:{lease_id}:known", kind="use_known", lines=lines):
        return False
    more = meter.gpu_ms(after.used_ms) - meter.gpu_ms(lease.used_ms)
    limits.charge_allowance(session, levels, PriorityClass(lease.klass), more, used_until)
    for name, value in time_values(meter, after).items():
        setattr(lease, name, value)
    lease.payer = payer.value
    lease.version += 1
    session.flush()
    record_use(session, lease.attempt_id, meter, after)
    return True


def void_contingent(session: Session, attempt_id: str) -> bool:
    """The waiter is gone: its lease comes back whole. What its victims still hold stays theirs until they end."""
    found = _lock(session, "attempt_id = :attempt AND state = 'contingent'", attempt_id)
    return bool(found) and release(session, found[0], used_from=None, used_until=None, payer=Payer.NOBODY)


def lock_for_end(session: Session, attempt_id: str) -> LeaseRow | None:
    """The lease of an attempt, locked together with those that wait for its end and with every account of theirs.

    Settling resolves one lease, gives its share to others and may grant credit: asked for once, in one order.
    """
    where = """(leases.id = (SELECT lease_id FROM attempts WHERE attempts.id = :attempt) OR (state = 'contingent'
        AND contingent_on @> jsonb_build_array(CAST(:attempt AS text))))"""
    found = _lock(session, where, attempt_id)
    keys: list[Key] = []
    for lease in found:
        levels = lineage(session, lease.tenant_id)
        meter = meter_of(lease, levels)
        keys += _concurrency_keys(levels, amounts_of(lease.items))
        keys += meter.keys()
        for flavor in meter.gpu_milli:
            keys += [Key(Account.CREDIT, lease.tenant_id, flavor, GPU_MS), Key(Account.ISSUANCE, None, flavor, GPU_MS)]
    locked(session, keys)
    return next((lease for lease in found if lease.attempt_id == attempt_id), None)


def meter_of(lease: LeaseRow, levels: Sequence[Level]) -> Meter:
    """The meter of a lease that was taken."""
    return Meter(tuple(level.id for level in levels), gpu_milli_of(lease.items), lease.price)


def time_values(meter: Meter, times: Times) -> dict[str, int]:
    """The columns of a lease that follow from its times."""
    return {
        "used_ms": times.used_ms,
        "held_ms": times.held_ms,
        "held_gpu_ms": meter.gpu_ms(times.held_ms),
        "held_money": meter.money(times.held_ms),
    }


def _concurrency_keys(levels: Sequence[Level], amounts: Amounts) -> list[Key]:
    found = [Key(Account.CONCURRENCY, level.id, *what) for level in levels for what in amounts]
    return found + [Key(Account.CAPACITY, None, *what) for what in amounts]


def _concurrency_lines(levels: Sequence[Level], amounts: Amounts, *, pending: bool) -> list[Line]:
    found = []
    for what, amount in amounts.items():
        found += [Line(Key(Account.CONCURRENCY, level.id, *what), amount, pending) for level in levels]
        found.append(Line(Key(Account.CAPACITY, None, *what), -amount * len(levels), pending))
    return found


def _borrow(session: Session, lease: LeaseRow, loans: Sequence[Loan]) -> None:
    if not loans:
        return
    rows = session.execute(
        text("SELECT id, path FROM tenants WHERE path = ANY(:paths)"), {"paths": [loan.lender for loan in loans]}
    )
    ids = {row.path: row.id for row in rows}
    session.add_all(
        BorrowingRow(
            lease_id=str(lease.id),
            lender_id=ids[loan.lender],
            borrower_id=lease.tenant_id,
            flavor=loan.flavor,
            amount=loan.amount,
            since=lease.created_at,
        )
        for loan in loans
    )
    session.flush()


def _lock(session: Session, where: str, attempt: str | UUID) -> list[LeaseRow]:
    statement = (
        select(LeaseRow)
        .where(text(where).bindparams(attempt=attempt))
        .order_by(text("leases.id"))
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    )
    return list(session.execute(statement).scalars())


def _held_by_attempt(session: Session, attempt_id: str) -> dict[tuple[str, str], int]:
    items = session.execute(
        text("SELECT items FROM leases WHERE id = (SELECT lease_id FROM attempts WHERE attempts.id = :attempt)"),
        {"attempt": attempt_id},
    ).scalar_one_or_none()
    return amounts_of(items or [], "held")


def _give(
    items: Sequence[Mapping[str, Any]], freed: Amounts, *, everything: bool
) -> tuple[list[dict[str, Any]], dict[tuple[str, str], int]]:
    left = dict(freed)
    moved: dict[tuple[str, str], int] = {}
    changed = []
    for item in items:
        what = (item["flavor"], item["resource"])
        missing = item["amount"] - item["held"]
        share = missing if everything else min(missing, left.get(what, 0))
        left[what] = left.get(what, 0) - share
        moved[what] = moved.get(what, 0) + share
        changed.append({**item, "held": item["held"] + share})
    return changed, moved


def _used_ms(lease: LeaseRow, used_from: datetime | None, used_until: datetime | None, now: datetime) -> int:
    if used_from is None or used_until is None:
        return 0
    length = min(used_until, now) - max(used_from, lease.created_at)
    return max(0, length // timedelta(milliseconds=1))


def record_use(session: Session, attempt_id: str, meter: Meter, times: Times, *, ends: UUID | None = None) -> None:
    """What the attempt has used: of this lease so far, and of those it had before a resize.

    ends: the lease that ends with it, whose loans are given back.
    """
    values = {"gpu_ms": meter.gpu_ms(times.used_ms), "money": meter.money(times.used_ms)}
    session.execute(_USE, {"id": attempt_id, "hour_ms": HOUR_MS, "ends": None if ends is None else str(ends), **values})


# Of its present lease, and of those that it had at other sizes.
_USE = text(
    """
    WITH given_back AS (
        UPDATE borrowings SET until = now() WHERE lease_id = CAST(:ends AS text) AND until IS NULL
    )
    UPDATE attempts SET gpu_ms = :gpu_ms + before.gpu_ms, money = :money + before.money
    FROM (
        SELECT coalesce(sum(l.gpu_milli * l.used_ms / 1000), 0)::bigint AS gpu_ms,
            coalesce(sum(l.price * l.used_ms / :hour_ms), 0)::bigint AS money
        FROM leases l JOIN attempts a ON a.id = l.attempt_id WHERE a.id = :id AND l.id <> a.lease_id
    ) AS before
    WHERE attempts.id = :id
    """
)
