"""What must hold after every step: the books balance, no limit is passed, and the ledger says what the model says."""

from dataclasses import dataclass, field
from typing import Any

from tests.unit.ledger.machine.estate import QUOTAS, TENANTS, Estate
from tests.unit.ledger.machine.model import LIVE, Lease, Model, What


@dataclass
class Ceilings:
    """The ceiling by which the newest lease was judged, per level: a window that closes later evicts nobody."""

    judged: dict[tuple[str, What], int] = field(default_factory=dict)

    def of(self, level: str, what: What, now: int | None) -> int | None:
        return None if now is None else max(now, self.judged.get((level, what), 0))


def compare(estate: Estate, model: Model, ceilings: Ceilings) -> None:
    """AssertionError names what differs."""
    violations = estate.violations()
    assert not violations, violations
    _books(estate)
    _limits(estate, model, ceilings)
    _states(estate, model)
    _credits(estate, model)
    _rules(estate)


def _books(estate: Estate) -> None:
    wrong = estate.rows(_BOOKS)
    assert not wrong, wrong


def _limits(estate: Estate, model: Model, ceilings: Ceilings) -> None:
    balances = {
        (row.path, (row.flavor, row.unit)): (row.posted, row.pending)
        for row in estate.rows(
            "SELECT t.path, a.flavor, a.unit, a.posted, a.pending FROM accounts a JOIN tenants t ON t.id = a.tenant_id"
            " WHERE a.kind = 'concurrency'"
        )
    }
    for (level, what), balance in balances.items():
        assert balance == model.sums(level, what), f"{level} {what}"
    for level, what in QUOTAS:
        most = ceilings.of(level, what, model.most(level, what, estate.now, estate.clock.at))
        held = balances.get((level, what), (0, 0))[0]
        assert most is None or held <= most, f"{level} holds {held} of {what}, and {most} is its ceiling"


def _states(estate: Estate, model: Model) -> None:
    jobs = {str(row.id): row for row in estate.rows("SELECT * FROM jobs")}
    assert jobs.keys() == model.jobs.keys()
    for key, job in model.jobs.items():
        found = jobs[key]
        assert found.state == job.state, f"job {key}"
        counted = (found.attempts, found.failures, found.preemptions, found.revocations)
        assert counted == (job.attempts, job.failures, job.preemptions, job.revocations)
        assert found.want_cancel == job.want_cancel
    attempts = {row.id: row for row in estate.rows(_ATTEMPTS)}
    assert attempts.keys() == model.attempts.keys()
    for key, attempt in model.attempts.items():
        row = attempts[key]
        assert row.state == attempt.state, f"attempt {key}"
        assert (row.started, row.ended) == (attempt.started, attempt.ended), f"attempt {key}"
        assert (row.stop_cause, row.stop_for, row.stop_credit) == (attempt.cause, attempt.stop_for, attempt.earns)
        assert row.due == (attempt.due is not None), f"attempt {key}"
        if attempt.live and attempt.cause is not None:
            assert row.told == attempt.told, f"attempt {key}"
        _lease(row, attempt.lease)


def _lease(row: Any, lease: Lease) -> None:
    assert row.lease_state == lease.state, f"lease of {lease.attempt}"
    mine = (lease.used, lease.ahead, lease.payer)
    assert (row.used_ms, row.held_ms, row.payer) == mine, f"lease of {lease.attempt}"
    assert sorted(row.contingent_on) == sorted(lease.waits_for), f"lease of {lease.attempt}"
    if lease.state in LIVE:
        held = {(item["flavor"], item["resource"]): item["held"] for item in row.items if item["held"]}
        assert held == {what: amount for what, amount in lease.held.items() if amount}
    if lease.state == "held" and lease.rolling and row.ended is None:
        assert row.covers == lease.covers


def _credits(estate: Estate, model: Model) -> None:
    rows = estate.rows(
        "SELECT victim_attempt, preemption, path, flavor, gpu_ms, burned_gpu_ms FROM credits"
        " JOIN tenants ON tenants.id = tenant_id"
    )
    found = sorted((r.victim_attempt, r.preemption, r.path, r.flavor, r.gpu_ms, r.burned_gpu_ms) for r in rows)
    mine = sorted((c.attempt, c.preemption, c.tenant, c.flavor, c.amount, c.burned) for c in model.credits)
    assert found == mine
    accounts = estate.rows(
        "SELECT path, flavor, posted, pending FROM accounts JOIN tenants ON tenants.id = tenant_id"
        " WHERE accounts.kind = 'credit'"
    )
    for row in accounts:
        assert (row.posted, row.pending) == model.credit(row.path, row.flavor), f"credit of {row.path} {row.flavor}"
    total = sum(model.credit(tenant, flavor)[0] for tenant in TENANTS for flavor in {c.flavor for c in model.credits})
    assert total == sum(row.posted for row in accounts)


def _rules(estate: Estate) -> None:
    """What no reading of the ledger may contradict, whatever the model thinks."""
    wrong = estate.rows(_RULES)
    assert not wrong, wrong


_BOOKS = """
    SELECT 'a transaction does not sum to zero' AS wrong, e.transaction_id::text AS subject
    FROM entries e JOIN accounts a ON a.id = e.account_id
    GROUP BY e.transaction_id, a.unit, a.flavor, e.pending HAVING sum(e.amount) <> 0
    UNION ALL SELECT 'all accounts do not sum to zero', unit || flavor FROM accounts GROUP BY unit, flavor
    HAVING sum(posted) <> 0 OR sum(pending) <> 0
    UNION ALL SELECT 'a tenant is below zero', id::text FROM accounts
    WHERE tenant_id IS NOT NULL AND (posted < 0 OR pending < 0)
    UNION ALL SELECT 'a fact without entries', t.cause FROM transactions t
    LEFT JOIN entries e ON e.transaction_id = t.id
    WHERE t.kind = 'lease_taken' AND e.id IS NULL
"""
_ATTEMPTS = """
    SELECT a.id, a.state, a.stop_cause, a.stop_due IS NOT NULL AS due, a.stop_for, a.stop_credit,
        a.stopping_at IS NOT NULL AS told,
        (extract(epoch FROM a.started_at) * 1000)::bigint AS started,
        (extract(epoch FROM a.ended_at) * 1000)::bigint AS ended,
        l.state AS lease_state, l.used_ms, l.held_ms, l.payer, l.contingent_on, l.items,
        (extract(epoch FROM l.covers_until) * 1000)::bigint AS covers
    FROM attempts a JOIN leases l ON l.attempt_id = a.id
"""
# A lease is resolved once, use lies inside its life, an attempt ends once, a live job has exactly one attempt.
_RULES = """
    SELECT 'resolved' AS wrong, l.id::text AS subject FROM leases l
    LEFT JOIN transactions t ON t.cause = concat_ws(chr(58), 'lease', l.id, 'resolved')
    WHERE (l.state IN ('posted', 'voided')) <> (t.id IS NOT NULL)
    UNION ALL SELECT 'use', id::text FROM leases
    WHERE used_ms > extract(epoch FROM coalesce(resolved_at, now()) - created_at) * 1000 OR used_ms < 0 OR held_ms < 0
        OR (state IN ('posted', 'voided') AND payer <> '' AND held_ms <> 0)
    UNION ALL SELECT 'ended twice', attempt_id FROM events WHERE attempt_id IS NOT NULL
        AND kind IN ('SUCCEEDED', 'FAILED', 'PREEMPTED', 'REVOKED', 'STOPPED', 'RESIZED', 'LOST', 'REFUSED')
    GROUP BY attempt_id HAVING count(*) > 1
    UNION ALL SELECT 'job and attempts', j.id::text FROM jobs j
    LEFT JOIN attempts a ON a.job_id = j.id AND a.ended_at IS NULL
    GROUP BY j.id, j.state HAVING (j.state IN ('ADMITTED', 'RUNNING', 'STOPPING')) <> (count(a.id) = 1)
"""
