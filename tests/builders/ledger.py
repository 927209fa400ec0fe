"""Rows for tests of the ledger, as few words each as a test can be read with."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session

from backends.naming import attempt_id
from gateway.ledger import leases
from gateway.ledger.codec import placed_json
from gateway.ledger.tables.access import ClassAllowance, Tenant
from gateway.ledger.tables.accounts import AccountRow, BudgetRow
from gateway.ledger.tables.capacity import BackendRow, Flavor, Pool, QuotaRow
from gateway.ledger.tables.work import AttemptRow, JobRow, LeaseRow
from policies.snapshot import Placed, Resources
from policies.vocabulary import AttemptState, JobState, PriorityClass

FLAVOR = "h100"
POOL = "pool"
GPU = 1000


def gpus(count: int, *, pool: str = POOL, flavor: str = FLAVOR) -> tuple[Placed, ...]:
    """One member with so many whole GPUs."""
    return (Placed("main", pool, flavor, 1, Resources(accelerators=count * GPU)),)


@dataclass(frozen=True)
class Try:
    """A job with one attempt and its lease."""

    job_id: uuid.UUID
    attempt_id: str
    lease_id: uuid.UUID


class World:
    """A ledger with one flavor and one pool, and the tenants a test names."""

    def __init__(self, engine: Engine, *, price: int = 0) -> None:
        self.engine = engine
        with self.session() as session:
            session.add_all([Flavor(name=FLAVOR, accelerator="H100", price=price), BackendRow(name="b", kind="local")])
            session.flush()
            session.add(Pool(name=POOL, backend="b", flavor=FLAVOR))
            session.commit()

    def session(self) -> Session:
        return Session(self.engine, expire_on_commit=False)

    def tenant(self, path: str, *, max_gpus: int | None = None, min_gpus: int = 0, lendable: int = 0) -> int:
        """Make the tenant (its parents must be there), with a quota when one is given."""
        with self.session() as session:
            parent = session.execute(
                text("SELECT id FROM tenants WHERE path = :path"), {"path": path.rpartition("/")[0]}
            ).scalar_one_or_none()
            row = Tenant(path=path, parent_id=parent)
            session.add(row)
            session.flush()
            assert row.id is not None
            if max_gpus is not None or min_gpus:
                session.add(
                    QuotaRow(
                        tenant_id=row.id,
                        flavor=FLAVOR,
                        resource="accelerators",
                        min=min_gpus * GPU,
                        max=None if max_gpus is None else max_gpus * GPU,
                        lendable=lendable * GPU,
                    )
                )
            session.commit()
            return row.id

    def limit(self, tenant_id: int, resource: str, most: int) -> None:
        with self.session() as session:
            session.add(QuotaRow(tenant_id=tenant_id, flavor=FLAVOR, resource=resource, max=most))
            session.commit()

    def allowance(self, tenant_id: int, klass: str, gpu_hours: int) -> None:
        with self.session() as session:
            session.add(ClassAllowance(tenant_id=tenant_id, klass=klass, gpu_ms=gpu_hours * 3_600_000))
            session.commit()

    def budget(self, tenant_id: int, unit: str, amount: int) -> None:
        with self.session() as session:
            session.add(BudgetRow(tenant_id=tenant_id, unit=unit, amount=amount))
            session.commit()

    def job(self, tenant_id: int, *, klass: str = "P2", retry_max: int = 0, **columns: Any) -> uuid.UUID:
        job_id = uuid.uuid4()
        request = {"groups": [], "retry": {"max": retry_max}, **columns.pop("request", {})}
        with self.session() as session:
            session.add(
                JobRow(
                    id=job_id,
                    tenant_id=tenant_id,
                    principal="ann",
                    name="train",
                    kind="training",
                    klass=klass,
                    request=request,
                    **columns,
                )
            )
            session.commit()
        return job_id

    def admit(
        self,
        job_id: uuid.UUID,
        placed: Sequence[Placed],
        *,
        contingent_on: Sequence[str] = (),
        max_duration_ms: int | None = None,
        number: int | None = None,
        **columns: Any,
    ) -> Try:
        """Take the lease and write the attempt as the arbiter's commit does; LimitExceeded as it comes."""
        with self.session() as session, session.begin():
            job = session.get_one(JobRow, job_id, with_for_update={"key_share": True})
            count = job.attempts + 1 if number is None else number
            made = Try(job_id, attempt_id(job_id, count, columns.get("chunk")), uuid.uuid4())
            leases.take(
                session,
                lease_id=made.lease_id,
                attempt_id=made.attempt_id,
                job_id=job_id,
                tenant_id=job.tenant_id,
                placed=placed,
                klass=PriorityClass(job.klass),
                contingent_on=contingent_on,
                max_duration_ms=max_duration_ms,
            )
            job.state = JobState.ADMITTED
            job.attempts = count
            session.add(
                AttemptRow(
                    id=made.attempt_id,
                    job_id=job_id,
                    number=count,
                    lease_id=made.lease_id,
                    placed=placed_json(placed),
                    **columns,
                )
            )
        return made

    def runs(self, made: Try, *, for_s: float = 0) -> None:
        """The attempt runs, and has run for so long: everything about it is moved into the past."""
        past = timedelta(seconds=for_s)
        with self.session() as session, session.begin():
            session.execute(text("UPDATE jobs SET state = 'RUNNING' WHERE id = :id"), {"id": made.job_id})
            session.execute(
                text(
                    "UPDATE attempts SET state = :state, created_at = now() - :past, started_at = now() - :past"
                    " WHERE id = :id"
                ),
                {"state": AttemptState.RUNNING, "past": past, "id": made.attempt_id},
            )
            session.execute(
                text(
                    "UPDATE leases SET created_at = now() - :past,"
                    " covers_until = covers_until - CAST(:past AS interval) WHERE id = :id"
                ),
                {"past": past, "id": made.lease_id},
            )

    def balance(self, kind: str, tenant_id: int | None, unit: str, flavor: str = FLAVOR) -> tuple[int, int]:
        """(posted, pending)."""
        with self.session() as session:
            row = session.execute(
                select(AccountRow).where(
                    text(
                        "kind = :kind AND tenant_id IS NOT DISTINCT FROM :tenant AND unit = :unit AND flavor = :flavor"
                    )
                ),
                {"kind": kind, "tenant": tenant_id, "unit": unit, "flavor": flavor},
            ).scalar_one_or_none()
            return (row.posted, row.pending) if row else (0, 0)

    def held(self, tenant_id: int) -> int:
        """GPUs held, pending ones included."""
        return sum(self.balance("concurrency", tenant_id, "accelerators")) // GPU

    def lease(self, made: Try) -> LeaseRow:
        with self.session() as session:
            found = session.get(LeaseRow, made.lease_id)
            assert found is not None
            return found

    def row(self, table: type[Any], key: Any) -> Any:
        with self.session() as session:
            return session.get(table, key)

    def scalar(self, statement: str, **values: Any) -> Any:
        with self.session() as session:
            return session.execute(text(statement), values).scalar()
