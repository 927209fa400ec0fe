"""Preemption credits (POLICIES §8): granted at settlement, once per victim attempt and preemption; redeemed as a grant,
burned as used, expired in the end. GPU-ms per flavor; the other side is `issuance`, the only one that may be negative.

Decides the terms from rows; `policies.credit` holds the formula. The preemptor's cost is never a precondition.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from gateway.ledger.accounts import Key, Line, book, locked
from gateway.ledger.codec import dumps, to_ms
from gateway.ledger.meter import GPU_MS
from gateway.ledger.tables.capacity import GrantRow
from policies.credit.amount import Credit, credit_of
from policies.settings import PolicySettings
from policies.vocabulary import Account

PERIOD: Final = timedelta(days=30)
PERIODS_KEPT: Final = 3
_MS: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Victim:
    """What a credit is computed from. The only claim of the job's is a checkpoint; it is clamped to [notice, end]."""

    attempt_id: str
    tenant_id: int
    gpu_milli: dict[str, int]  # by flavor
    started_at: datetime
    ended_at: datetime
    noticed_at: datetime | None  # first told with a grace; None: killed without a notice, or not told at all
    restart_ms: int
    preemptions: int  # of the job in this period, before this one


def earned(session: Session, victim: Victim, milli: int, settings: PolicySettings) -> Credit:
    """gap: end − end of the newest L1 checkpoint (or start), capped. save: of the save inside this notice, else 0.

    Inside is what began after the victim was told and had a grace for it: a periodic save that a kill, or the way of
    the notice, happened to meet is the job's own.
    """
    saved = session.execute(_NEWEST, {"attempt": victim.attempt_id}).one_or_none()
    save_ms = 0
    if saved is not None and victim.noticed_at is not None:
        began = saved.at - timedelta(milliseconds=saved.save_ms)
        if began >= victim.noticed_at:
            save_ms = min(saved.save_ms, max(0, (victim.ended_at - victim.noticed_at) // _MS))
    return credit_of(
        milli_gpu=milli,
        started_ms=to_ms(victim.started_at),
        ended_ms=to_ms(victim.ended_at) or 0,
        checkpoint_ms=None if saved is None else to_ms(saved.at),
        save_ms=save_ms,
        restart_ms=victim.restart_ms,
        preemptions_in_period=victim.preemptions,
        settings=settings,
    )


def grant_credit(session: Session, victim: Victim, preemption: str, settings: PolicySettings) -> int:
    """Grant what the preemption cost the victim, per flavor; the GPU-ms granted, 0 when it was granted before."""
    granted = 0
    for number, (flavor, milli) in enumerate(sorted(victim.gpu_milli.items())):
        tenant = Key(Account.CREDIT, victim.tenant_id, flavor, GPU_MS)
        issuance = Key(Account.ISSUANCE, None, flavor, GPU_MS)
        balance = locked(session, [tenant, issuance])[tenant].posted
        found = earned(session, victim, milli, settings)
        amount = min(found.gpu_ms, max(0, settings.credit_cap_gpu_ms - balance))
        if amount <= 0:
            continue
        # One row per flavor: the key of the second and later ones names theirs.
        key = preemption if number == 0 else f"{preemption}/{flavor}"
        terms = {
            "gap_ms": found.gap_ms,
            "save_ms": found.save_ms,
            "restart_ms": found.restart_ms,
            "bonus_gpu_ms": found.bonus_gpu_ms,
            "milli_gpu": found.milli_gpu,
        }
        row = {
            "attempt": victim.attempt_id,
            "preemption": key,
            "tenant": victim.tenant_id,
            "flavor": flavor,
            "gpu_ms": amount,
            "terms": dumps(terms),
            "kept": PERIOD * PERIODS_KEPT,
        }
        if session.execute(_GRANT, row).first() is None:
            continue
        lines = [Line(tenant, amount), Line(issuance, -amount)]
        book(session, cause=f"credit:{victim.attempt_id}:{key}", kind="credit_granted", lines=lines, data=terms)
        granted += amount
    return granted


class CreditRefused(Exception):  # noqa: N818  (an answer of the ledger, not a defect)
    """The redemption is not possible; the message names the field and the remedy."""


def redeem(
    session: Session,
    *,
    tenant_id: int,
    flavor: str,
    gpu_ms: int,
    starts_at: datetime,
    ends_at: datetime,
    principal: str,
    settings: PolicySettings,
) -> GrantRow:
    """Turn credit into a grant: GPUs above min that ordinary reclaim does not touch, for [starts_at, ends_at).

    Bounded by credit_share_percent of what the other tenants lend of this flavor. The credit is held until it is used.
    """
    length_ms = (ends_at - starts_at) // _MS
    if length_ms <= 0 or gpu_ms <= 0:
        raise CreditRefused("ends_at: must lie after starts_at, and gpu_ms be positive")
    account = Key(Account.CREDIT, tenant_id, flavor, GPU_MS)
    issuance = Key(Account.ISSUANCE, None, flavor, GPU_MS)
    balance = locked(session, [account, issuance])[account]
    if gpu_ms > balance.posted - balance.pending:
        raise CreditRefused(f"gpu_ms: {balance.posted - balance.pending} GPU-ms of credit are left; ask for less")
    milli = gpu_ms * 1000 // length_ms
    lent = session.execute(_LENDABLE, {"tenant": tenant_id, "flavor": flavor}).scalar_one()
    taken = session.execute(_REDEEMED, {"flavor": flavor, "from": starts_at, "until": ends_at}).scalar_one()
    room = lent * settings.credit_share_percent // 100 - taken
    if milli < 1 or milli > room:
        raise CreditRefused(
            f"gpu_ms: this is {milli} milli-GPU over the window and {max(0, room)} may be redeemed then;"
            " ask for less or for a longer window"
        )
    grant = GrantRow(
        tenant_id=tenant_id,
        flavor=flavor,
        delta_min=milli,
        reclaimable=False,
        starts_at=starts_at,
        ends_at=ends_at,
        cause="credit",
        approver=principal,
    )
    session.add(grant)
    session.flush()
    lines = [Line(account, gpu_ms, True), Line(issuance, -gpu_ms, True)]
    book(session, cause=f"redeem:{grant.id}", kind="credit_redeemed", lines=lines, data={"gpu_ms": gpu_ms})
    return grant


def burn(session: Session, grant: GrantRow, *, used_gpu_ms: int, last: bool, cause: str) -> int:
    """Burn what was used of a redeemed credit, oldest credits first, and say how much; `last` returns the rest."""
    account = Key(Account.CREDIT, grant.tenant_id, grant.flavor, GPU_MS)
    issuance = Key(Account.ISSUANCE, None, grant.flavor, GPU_MS)
    balance = locked(session, [account, issuance])[account]
    held = _held_by(session, grant)
    burned = min(used_gpu_ms, held, balance.posted)
    back = held if last else burned
    lines = [
        Line(account, -burned),
        Line(issuance, burned),
        Line(account, -back, True),
        Line(issuance, back, True),
    ]
    data = {"grant": grant.id, "released": back}
    if not book(session, cause=f"burn:{grant.id}:{cause}", kind="credit_burned", lines=lines, data=data):
        return 0
    _take_from_oldest(session, grant.tenant_id, grant.flavor, burned)
    return burned


def burn_running(session: Session) -> int:
    """Burn what open redemptions have used since the last time, and close those that are over; the GPU-ms burned.

    Used is what the tenant holds above its own min, up to the grant, as of now: a reading every few minutes. A grant
    that was revoked is over at that instant: what it had not used comes back.
    """
    total = 0
    _lock_accounts(session, session.execute(_RUNNING).all())
    for row in session.execute(_RUNNING).all():  # as it stands now that nobody else can burn of it
        grant = session.get_one(GrantRow, row.id)
        until = min(row.now, row.ends_at)
        last = row.now >= row.ends_at
        used_milli = min(max(0, row.held - row.min), grant.delta_min)
        length_ms = max(0, (until - max(row.starts_at, row.last_at or row.starts_at)) // _MS)
        # The end is a fact of its own, also where a reading fell on the very instant.
        cause = "end" if last else until.isoformat()
        total += burn(session, grant, used_gpu_ms=used_milli * length_ms // 1000, last=last, cause=cause)
    return total


def expire(session: Session, now: datetime | None = None) -> int:
    """Take back credits whose time is over and that no redemption holds; the GPU-ms taken."""
    gone = 0
    _lock_accounts(session, session.execute(_EXPIRING, {"now": now}).all())
    for row in session.execute(_EXPIRED, {"now": now}).all():
        account = Key(Account.CREDIT, row.tenant_id, row.flavor, GPU_MS)
        issuance = Key(Account.ISSUANCE, None, row.flavor, GPU_MS)
        balance = locked(session, [account, issuance])[account]
        left = min(row.gpu_ms - row.burned_gpu_ms, balance.posted - balance.pending)
        cause = f"expire:{row.victim_attempt}:{row.preemption}:{row.burned_gpu_ms}"
        lines = [Line(account, -left), Line(issuance, left)]
        if left > 0 and book(session, cause=cause, kind="credit_expired", lines=lines):
            session.execute(_BURN, {"attempt": row.victim_attempt, "preemption": row.preemption, "by": left})
            gone += left
    return gone


def _lock_accounts(session: Session, rows: Iterable[Row[Any]]) -> None:
    """Every account that these rows (tenant_id, flavor) will touch, asked for once: in ascending id, before any row."""
    keys = []
    for row in rows:
        keys += [
            Key(Account.CREDIT, row.tenant_id, row.flavor, GPU_MS),
            Key(Account.ISSUANCE, None, row.flavor, GPU_MS),
        ]
    locked(session, keys)


def _held_by(session: Session, grant: GrantRow) -> int:
    redeemed: int = session.execute(_HELD, {"cause": f"redeem:{grant.id}"}).scalar_one()
    released: int = session.execute(_RELEASED, {"grant": grant.id}).scalar_one()
    return redeemed - released


def _take_from_oldest(session: Session, tenant_id: int, flavor: str, amount: int) -> None:
    for row in session.execute(_OPEN, {"tenant": tenant_id, "flavor": flavor}).all():
        part = min(amount, row.gpu_ms - row.burned_gpu_ms)
        if part <= 0:
            break
        session.execute(_BURN, {"attempt": row.victim_attempt, "preemption": row.preemption, "by": part})
        amount -= part


def earlier_preemptions(session: Session, attempt_id: str) -> int:
    """How often other attempts of its job were preempted in the last period."""
    found: int = session.execute(_OFTEN, {"attempt": attempt_id, "period": PERIOD}).scalar_one()
    return found


_NEWEST = text(
    """
    SELECT c.at, c.save_ms FROM checkpoints c JOIN attempts a ON a.job_id = c.job_id AND a.number = c.attempt_number
        AND c.array_index = coalesce(a.chunk, -1)
    WHERE a.id = :attempt AND c.verified >= 1 ORDER BY c.at DESC LIMIT 1
    """
)
_GRANT = text(
    """
    INSERT INTO credits (victim_attempt, preemption, tenant_id, flavor, gpu_ms, terms, expires_at)
    VALUES (:attempt, :preemption, :tenant, :flavor, :gpu_ms, CAST(:terms AS jsonb), now() + :kept)
    ON CONFLICT DO NOTHING RETURNING gpu_ms
    """
)
_LENDABLE = text(
    """
    SELECT coalesce(sum(lendable), 0)::bigint FROM quotas
    WHERE flavor = :flavor AND resource = 'accelerators' AND tenant_id <> :tenant
    """
)
_REDEEMED = text(
    """
    SELECT coalesce(sum(delta_min), 0)::bigint FROM grants
    WHERE cause = 'credit' AND flavor = :flavor AND revoked_at IS NULL AND starts_at < :until AND ends_at > :from
    """
)
_HELD = text("SELECT coalesce((SELECT (data->>'gpu_ms')::bigint FROM transactions WHERE cause = :cause), 0)")
_RELEASED = text(
    """
    SELECT coalesce(sum((data->>'released')::bigint), 0)::bigint FROM transactions
    WHERE kind = 'credit_burned' AND (data->>'grant')::int = :grant
    """
)
_RUNNING = text(
    """
    SELECT g.id, g.tenant_id, g.flavor, g.starts_at, least(g.ends_at, g.revoked_at) AS ends_at, now() AS now,
        coalesce(a.posted, 0) AS held, coalesce(q.min, 0) AS min, burned.last_at
    FROM grants g
    LEFT JOIN accounts a ON a.kind = 'concurrency' AND a.tenant_id = g.tenant_id AND a.flavor = g.flavor
        AND a.unit = 'accelerators'
    LEFT JOIN quotas q ON q.tenant_id = g.tenant_id AND q.flavor = g.flavor AND q.resource = 'accelerators'
    JOIN transactions redeemed ON redeemed.cause = 'redeem:' || g.id
    LEFT JOIN LATERAL (
        SELECT max(at) AS last_at, coalesce(sum((data->>'released')::bigint), 0) AS released FROM transactions
        WHERE kind = 'credit_burned' AND (data->>'grant')::int = g.id
    ) burned ON true
    WHERE g.cause = 'credit' AND (g.starts_at <= now() OR g.revoked_at IS NOT NULL)
        AND burned.released < (redeemed.data->>'gpu_ms')::bigint
    ORDER BY g.tenant_id, g.id
    """
)
_OPEN = text(
    """
    SELECT victim_attempt, preemption, gpu_ms, burned_gpu_ms FROM credits
    WHERE tenant_id = :tenant AND flavor = :flavor AND burned_gpu_ms < gpu_ms ORDER BY at, victim_attempt FOR UPDATE
    """
)
_EXPIRING = text(
    """
    SELECT DISTINCT tenant_id, flavor FROM credits
    WHERE expires_at <= coalesce(:now, now()) AND burned_gpu_ms < gpu_ms
    """
)
_EXPIRED = text(
    """
    SELECT victim_attempt, preemption, tenant_id, flavor, gpu_ms, burned_gpu_ms FROM credits
    WHERE expires_at <= coalesce(:now, now()) AND burned_gpu_ms < gpu_ms ORDER BY at, victim_attempt FOR UPDATE
    """
)
_BURN = text(
    """
    UPDATE credits SET burned_gpu_ms = burned_gpu_ms + :by
    WHERE victim_attempt = :attempt AND preemption = :preemption
    """
)
_OFTEN = text(
    """
    SELECT count(*) FROM attempts other JOIN attempts mine ON mine.job_id = other.job_id AND mine.id <> other.id
    WHERE mine.id = :attempt AND other.state = 'PREEMPTED' AND other.ended_at > now() - CAST(:period AS interval)
    """
)
