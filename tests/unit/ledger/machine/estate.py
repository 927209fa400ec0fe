"""The ledger under the machine: a small tree with limits of every kind, two flavors, a clock, and a killer."""

import hashlib
from contextlib import ExitStack
from datetime import timedelta
from itertools import count
from typing import Any
from unittest.mock import patch
from uuid import UUID

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from gateway.ledger import acts
from gateway.ledger.check import check
from gateway.ledger.engine import in_transaction, make_engine
from gateway.ledger.tables import metadata
from gateway.ledger.tables.access import ClassAllowance
from gateway.ledger.tables.accounts import BudgetRow
from gateway.ledger.tables.capacity import Flavor, Pool, QuotaRow
from policies.decisions import Admit, Why
from policies.snapshot import Placed, Resources
from tests.builders.ledger import FLAVOR, GPU, POOL
from tests.harness.clock import Clock
from tests.harness.crashes import Crashes
from tests.harness.postgres import Databases
from tests.unit.ledger.machine.model import DAY, HOUR, Job, What
from tests.unit.store import world
from tests.unit.store.world import AT_ONCE, Gate, queued
from workflows.store import Cycle

TENANTS = ("acme", "acme/a", "acme/a/x", "acme/b")
OTHER = "l40"
CARDS, JOBS = "accelerators", "jobs"
QUOTAS: dict[tuple[str, What], tuple[int, int | None]] = {
    ("acme", (FLAVOR, CARDS)): (12 * GPU, 12 * GPU),
    ("acme/a", (FLAVOR, CARDS)): (4 * GPU, 8 * GPU),
    ("acme/a", (FLAVOR, JOBS)): (0, 3),
    ("acme/a/x", (FLAVOR, CARDS)): (1 * GPU, 6 * GPU),
    ("acme/b", (FLAVOR, CARDS)): (4 * GPU, None),
    ("acme", (OTHER, CARDS)): (0, 4 * GPU),
    ("acme/b", (OTHER, CARDS)): (0, 3 * GPU),
}
LENDABLE = 100 * GPU  # of each guarantee, so that there is something to redeem credit against
POLICY = AT_ONCE
_UNTOUCHED = {"decisions", "snapshots"}  # what was dropped is recorded as well, each time


class Estate:
    """One database for one run of the machine."""

    def __init__(self, databases: Databases) -> None:
        self._ends = ExitStack()
        # Leases are accrued in the order of their ids: drawn at random, one run would not be like the other.
        numbers = count(1)
        for module in (acts, world):
            self._ends.enter_context(patch.object(module, "uuid4", lambda: UUID(int=next(numbers))))
        url = self._ends.enter_context(databases.fresh())
        self.clock = Clock(url)
        self._ends.callback(self.clock.close)
        self.engine: Engine = make_engine(url, pool_size=3)
        self._ends.callback(self.engine.dispose)
        self.gate = Gate(self.engine, url)
        self._ends.callback(self.gate.store.close)
        self.store = self.gate.store
        for path in TENANTS:
            self.gate.tenant(path)
        with Session(self.engine) as session, session.begin():
            self._furnish(session)
        self.epoch = self.store.take_epoch("machine")
        self.crashes = Crashes(self.engine)

    def close(self) -> None:
        self._ends.close()

    @property
    def now(self) -> int:
        return int(self.clock.at.timestamp()) * 1000

    def tenant(self, path: str) -> int:
        return self.gate.tenants[path]

    def tick(self, seconds: int) -> None:
        self.clock.move(timedelta(seconds=seconds))

    def scalar(self, query: str, **values: Any) -> Any:
        with self.engine.connect() as connection:
            return connection.execute(text(query), values).scalar_one()

    def rows(self, query: str, **values: Any) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(text(query), values).all())

    def transaction(self, work: Any) -> Any:
        return in_transaction(self.engine, work)

    def digest(self) -> dict[str, str]:
        """What every table says, so that "nothing has changed" is one comparison."""
        parts = [
            f"SELECT '{name}', coalesce(string_agg(t::text, '|' ORDER BY t::text), '') FROM {name} t"
            for name in sorted(set(metadata.tables) - _UNTOUCHED)
        ]
        found = self.rows(" UNION ALL ".join(parts))
        return {name: hashlib.sha256(content.encode()).hexdigest() for name, content in found}

    def violations(self) -> list[Any]:
        return check(self.engine)

    def room(self, job: Job) -> str:
        """What the allowances and budgets on the path say to an hour (or `duration`) of the job, by the rows alone."""
        milli = sum(amount for (_, what), amount in job.amounts.items() if what == CARDS)
        for row in self.rows(_ALLOWANCES, path=job.tenant, klass=job.klass):
            if row.used + (row.running + milli) * HOUR // 1000 > row.gpu_ms:
                return "class"
        if job.klass != "P2" and not self.rows(_ALLOWANCES, path=job.tenant, klass=job.klass):
            return "class"
        ahead = job.duration or HOUR
        asked = sum(n * ahead // 1000 for (_, what), n in job.amounts.items() if what == CARDS)
        for row in self.rows(_BUDGETS, path=job.tenant):
            if row.taken + asked > row.amount:
                return "budget"
        return ""

    def an_admit(self, cycle: Cycle, job: Job, victims: tuple[str, ...] = ()) -> Admit:
        parts = []
        for flavor, pool in ((FLAVOR, POOL), (OTHER, OTHER)):
            if cards := job.amounts.get((flavor, CARDS)):
                parts.append(Placed(flavor, pool, flavor, 1, Resources(cards, 1000, 1 << 30)))
        version = queued(cycle, job.id).version
        return Admit(job.id, version, tuple(parts), Why("Fits"), contingent_on=victims)

    def _furnish(self, session: Session) -> None:
        session.add(Flavor(name=OTHER, accelerator="L40", price=500_000))
        session.flush()
        session.add(Pool(name=OTHER, backend="b", flavor=OTHER))
        for (path, (flavor, resource)), (least, most) in QUOTAS.items():
            lendable = LENDABLE if least else 0
            row = QuotaRow(tenant_id=self.tenant(path), flavor=flavor, resource=resource, min=least, max=most)
            row.lendable = lendable
            session.add(row)
        for klass, hours in (("P1", 40), ("P0", 20)):
            session.add(
                ClassAllowance(
                    tenant_id=self.tenant("acme"), klass=klass, gpu_ms=hours * HOUR, period_s=2 * DAY // 1000
                )
            )
        session.add(ClassAllowance(tenant_id=self.tenant("acme/a"), klass="P1", gpu_ms=15 * HOUR, period_s=86_400))
        session.add(BudgetRow(tenant_id=self.tenant("acme/a"), unit="gpu_ms", amount=60 * HOUR, period_s=86_400))
        session.add(BudgetRow(tenant_id=self.tenant("acme"), unit="gpu_ms", amount=300 * HOUR, period_s=2 * 86_400))


def uuid_of(job: Job) -> UUID:
    return UUID(job.id)


_ABOVE = "(t.path = :path OR starts_with(:path, t.path || '/'))"
_ALLOWANCES = f"""
    SELECT c.gpu_ms, CASE WHEN c.period_started_at + make_interval(secs => c.period_s) <= now() THEN 0
        ELSE c.used_gpu_ms END AS used, (
        SELECT coalesce(sum(l.gpu_milli), 0)::bigint FROM leases l JOIN tenants u ON u.id = l.tenant_id
        WHERE l.state IN ('held', 'contingent') AND l.klass = c.klass
            AND (u.path = t.path OR starts_with(u.path, t.path || '/'))) AS running
    FROM class_allowances c JOIN tenants t ON t.id = c.tenant_id WHERE c.klass = :klass AND {_ABOVE}
"""
_BUDGETS = f"""
    SELECT b.amount, s.posted + s.pending
        - CASE WHEN b.period_started_at + make_interval(secs => b.period_s) <= now() THEN s.posted
            ELSE b.spent_before END AS taken
    FROM budgets b JOIN tenants t ON t.id = b.tenant_id CROSS JOIN LATERAL (
        SELECT coalesce(sum(posted), 0)::bigint AS posted, coalesce(sum(pending), 0)::bigint AS pending
        FROM accounts WHERE accounts.tenant_id = t.id AND kind = 'gpu_time') s
    WHERE b.unit = 'gpu_ms' AND {_ABOVE}
"""
