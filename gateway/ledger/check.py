"""Whether the ledger is true to itself: balances from entries, zero sums, leases against attempts, limits.

Reads everything in one REPEATABLE READ snapshot and changes nothing.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from gateway.ledger.grants import effective_quota
from gateway.ledger.limits import amounts_of, ceiling_key, covered
from gateway.ledger.lineage import Level
from gateway.ledger.meter import GPU_MS, MICRO_USD, Meter, gpu_milli_of


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is not as it must be. rule: a short token; subject: which row."""

    rule: str
    subject: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.message}"


def check(engine: Engine) -> list[Violation]:
    """Every violation; an empty list is a ledger that holds."""
    with Session(engine.execution_options(isolation_level="REPEATABLE READ")) as session:
        paths = {row.id: row.path for row in session.execute(text("SELECT id, path FROM tenants"))}
        return [
            *_balances(session),
            *_zero_sums(session),
            *_signs(session),
            *_leases_and_attempts(session),
            *_counters(session, paths),
            *_limits(session, paths),
            *_credits(session),
        ]


def _balances(session: Session) -> Iterator[Violation]:
    for row in session.execute(_BALANCES):
        yield Violation(
            "balance",
            f"account {row.id}",
            f"{row.kind} {row.unit} {row.flavor}: stored ({row.posted}, {row.pending}),"
            f" entries give ({row.posted_sum}, {row.pending_sum})",
        )


def _zero_sums(session: Session) -> Iterator[Violation]:
    for row in session.execute(_ZERO_SUMS):
        yield Violation(
            "zero_sum", f"transaction {row.transaction_id}", f"entries of {row.unit} {row.flavor} sum to {row.total}"
        )
    for row in session.execute(_ORPHANS):
        yield Violation("zero_sum", f"entry {row.id}", "belongs to no transaction or no account")


def _signs(session: Session) -> Iterator[Violation]:
    for row in session.execute(
        text("SELECT * FROM accounts WHERE tenant_id IS NOT NULL AND (posted < 0 OR pending < 0)")
    ):
        yield Violation("negative", f"account {row.id}", f"{row.kind} {row.unit}: ({row.posted}, {row.pending})")


def _leases_and_attempts(session: Session) -> Iterator[Violation]:
    for row in session.execute(_LEASES):
        live_lease, live_attempt = row.lease_state in {"held", "contingent"}, row.ended_at is None
        if row.attempt_id is None:
            yield Violation("lease", row.lease_of, f"a {row.lease_state} lease without an attempt")
        elif live_attempt and row.lease_state is None:
            yield Violation("lease", row.attempt_id, f"{row.state} without a lease")
        elif live_attempt and row.lease_state == "voided" and row.started_at is None:
            continue  # a waiter that gave up or was displaced, until its workflow has taken away what was prepared
        elif live_attempt != live_lease:
            yield Violation("lease", row.attempt_id, f"{row.state} with a lease that is {row.lease_state}")
    for row in session.execute(_EMPTY_WAITS):
        yield Violation("lease", row.attempt_id, "contingent on attempts that have all ended")
    for row in session.execute(_AFTER_THE_END):
        yield Violation("events", str(row.job_id), "an event follows the job's terminal one")


def _counters(session: Session, paths: Mapping[int, str]) -> Iterator[Violation]:
    wanted: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
    for lease in session.execute(_ALL_LEASES):
        levels = [id_ for id_, path in paths.items() if Level(id_, path).holds(paths[lease.tenant_id])]
        if lease.state in {"held", "contingent"}:
            held = amounts_of(lease.items, "held")
            for (flavor, resource), amount in amounts_of(lease.items).items():
                for level in levels:
                    sums = wanted["concurrency", level, flavor, resource]
                    sums[0] += held[flavor, resource]
                    sums[1] += amount - held[flavor, resource]
        meter = Meter((), gpu_milli_of(lease.items), lease.price)
        pays = lease.payer in {"", "tenant"}
        for level in levels:
            for flavor, milli in meter.gpu_milli.items():
                sums = wanted["gpu_time", level, flavor, GPU_MS]
                sums[0] += milli * lease.used_ms // 1000 if pays else 0
                sums[1] += milli * lease.held_ms // 1000
            sums = wanted["money", level, "", MICRO_USD]
            sums[0] += meter.money(lease.used_ms) if pays else 0
            sums[1] += meter.money(lease.held_ms)
    for row in session.execute(_STORED):
        should = wanted.pop((row.kind, row.tenant_id, row.flavor, row.unit), [0, 0])
        if [row.posted, row.pending] != should:
            yield Violation(
                "counter",
                f"{paths[row.tenant_id]} {row.kind} {row.unit} {row.flavor}",
                f"stored ({row.posted}, {row.pending}), leases give ({should[0]}, {should[1]})",
            )
    for (kind, tenant, flavor, unit), should in wanted.items():
        if any(should):
            yield Violation("counter", f"{paths[tenant]} {kind} {unit} {flavor}", f"no account, leases give {should}")


def _limits(session: Session, paths: Mapping[int, str]) -> Iterator[Violation]:
    """Judged by the ceiling of now or, if that is higher, by the one that the newest lease was held to when it was
    taken: a window that has closed since, or a quota that was lowered, breaks no rule.
    """
    quotas = effective_quota(session, paths)
    relief = covered(session, [Level(id_, path) for id_, path in paths.items()])
    for row in session.execute(_STORED).all():
        key = (row.tenant_id, row.flavor, row.unit)
        quota = quotas.get(key)
        held = row.posted + row.pending - relief.get(key, 0)
        if row.kind != "concurrency" or quota is None or quota.max is None or held <= quota.max:
            continue
        judged = session.execute(_JUDGED, {"key": ceiling_key(*key)}).scalar_one_or_none()
        if judged is None or held > judged:
            yield Violation(
                "limit",
                f"{paths[row.tenant_id]} {row.unit} of {row.flavor}",
                f"{held} held, max is {quota.max}, and was {judged} for the newest lease",
            )


def _credits(session: Session) -> Iterator[Violation]:
    for row in session.execute(_CREDITS):
        yield Violation(
            "credit",
            f"{row.path} {row.flavor}",
            f"stored ({row.posted}, {row.pending}), credits and redemptions give ({row.owed}, {row.held})",
        )


_CREDITS = text(
    """
    SELECT * FROM (
        SELECT t.path, a.flavor, a.posted, a.pending, (
            SELECT coalesce(sum(gpu_ms - burned_gpu_ms), 0)::bigint FROM credits c
            WHERE c.tenant_id = a.tenant_id AND c.flavor = a.flavor) AS owed, (
            SELECT coalesce(sum((taken.data->>'gpu_ms')::bigint - (
                SELECT coalesce(sum((data->>'released')::bigint), 0) FROM transactions
                WHERE kind = 'credit_burned' AND (data->>'grant')::int = g.id)), 0)::bigint
            FROM grants g JOIN transactions taken ON taken.cause = 'redeem:' || g.id
            WHERE g.tenant_id = a.tenant_id AND g.flavor = a.flavor) AS held
        FROM accounts a JOIN tenants t ON t.id = a.tenant_id WHERE a.kind = 'credit'
    ) AS sums WHERE (posted, pending) IS DISTINCT FROM (owed, held)
    """
)
_JUDGED = text(
    """
    SELECT (data->'ceilings'->>:key)::bigint FROM transactions
    WHERE kind = 'lease_taken' AND jsonb_exists(data->'ceilings', :key) ORDER BY id DESC LIMIT 1
    """
)
_BALANCES = text(
    """
    SELECT a.id, a.kind, a.unit, a.flavor, a.posted, a.pending, coalesce(e.posted, 0) AS posted_sum,
        coalesce(e.pending, 0) AS pending_sum
    FROM accounts a LEFT JOIN (
        SELECT account_id, coalesce(sum(amount) FILTER (WHERE NOT pending), 0) AS posted,
            coalesce(sum(amount) FILTER (WHERE pending), 0) AS pending
        FROM entries GROUP BY account_id
    ) e ON e.account_id = a.id
    WHERE a.posted <> coalesce(e.posted, 0) OR a.pending <> coalesce(e.pending, 0)
    """
)
_ZERO_SUMS = text(
    """
    SELECT transaction_id, unit, flavor, sum(amount) AS total FROM entries JOIN accounts ON accounts.id = account_id
    GROUP BY transaction_id, unit, flavor, entries.pending HAVING sum(amount) <> 0
    """
)
_ORPHANS = text(
    """
    SELECT entries.id FROM entries LEFT JOIN transactions ON transactions.id = transaction_id
    LEFT JOIN accounts ON accounts.id = account_id WHERE transactions.id IS NULL OR accounts.id IS NULL
    """
)
_LEASES = text(
    """
    SELECT a.id AS attempt_id, a.state, a.ended_at, a.started_at, l.attempt_id AS lease_of, l.state AS lease_state
    FROM attempts a FULL JOIN leases l ON l.id = a.lease_id
    WHERE (a.id IS NOT NULL AND a.ended_at IS NULL) OR l.state IN ('held', 'contingent')
    """
)
_EMPTY_WAITS = text(
    """
    SELECT attempt_id FROM leases WHERE state = 'contingent' AND NOT EXISTS (
        SELECT FROM jsonb_array_elements_text(contingent_on) AS victim
        JOIN attempts ON attempts.id = victim WHERE attempts.ended_at IS NULL
    )
    """
)
_AFTER_THE_END = text(
    """
    SELECT DISTINCT e.job_id FROM events e JOIN events last ON last.job_id = e.job_id AND last.id < e.id
    WHERE last.attempt_id IS NULL AND last.kind IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'REJECTED')
    """
)
_ALL_LEASES = text("SELECT tenant_id, state, items, price, payer, used_ms, held_ms FROM leases")
_STORED = text(
    """
    SELECT kind, tenant_id, flavor, unit, posted, pending FROM accounts
    WHERE tenant_id IS NOT NULL AND kind IN ('concurrency', 'gpu_time', 'money') ORDER BY id
    """
)
