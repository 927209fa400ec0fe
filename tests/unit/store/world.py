"""Builders for the store's tests: a small estate, specs and plans made by hand."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Engine, text

from backends.types import PoolCapacity
from gateway.ledger.config import PlainSettings
from gateway.ledger.engine import in_transaction
from gateway.ledger.store import PostgresStore
from gateway.ledger.submit import submit
from gateway.ledger.wishes import WishResult
from policies.decisions import Act, Admit, Plan, Preempt, Why
from policies.settings import PolicySettings
from policies.snapshot import LiveAttempt, Node, Placed, QueuedJob, Resources
from policies.vocabulary import AttemptState, Reason, StopCause
from tests.builders.ledger import FLAVOR, GPU, POOL, World
from tidegate.wire.spec import JobSpec
from workflows.messages import EndRequest, Settled
from workflows.store import CommitReport, Cycle


def a_spec(**changes: Any) -> JobSpec:
    fields: dict[str, Any] = {
        "name": "train",
        "run": "python train.py",
        "resources": {"accelerators": "H100:4", "cpus": 4, "memory": "8Gi"},
        **changes,
    }
    return JobSpec.model_validate(fields)


def scalar(engine: Engine, query: str, **values: Any) -> Any:
    with engine.connect() as connection:
        return connection.execute(text(query), values).scalar_one()


def rows(engine: Engine, query: str, **values: Any) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(text(query), values).all())


def write(engine: Engine, query: str, **values: Any) -> None:
    with engine.begin() as connection:
        connection.execute(text(query), values)


def add_tenant(engine: Engine, path: str) -> int:
    """A tenant whose parents are there."""
    parent = path.rpartition("/")[0]
    with engine.begin() as connection:
        return int(
            connection.execute(
                text(
                    "INSERT INTO tenants (path, parent_id, active, contact, version)"
                    " VALUES (:path, (SELECT id FROM tenants WHERE path = :parent), true, '', 1) RETURNING id"
                ),
                {"path": path, "parent": parent},
            ).scalar_one()
        )


AT_ONCE = PolicySettings(backoff_base_ms=1, backoff_cap_ms=1, refused_delay_ms=1)
"""Nobody waits between two attempts."""


class Gate:
    """A store over a small estate: one pool of two nodes with eight H100 each, and whatever tenants a test names."""

    def __init__(self, engine: Engine, url: str) -> None:
        self.engine = engine
        self.world = World(engine, price=2_000_000)
        self.store = PostgresStore(engine, url, PlainSettings(), policy=AT_ONCE)
        self.tenants: dict[str, int] = {}
        node = Resources(8 * GPU, 64_000, 512 << 30, 1 << 40)
        self.store.capacity("b", [PoolCapacity(POOL, (Node("n1", node), Node("n2", node)), datetime.now(UTC))])

    def tenant(self, path: str, **quota: Any) -> int:
        self.tenants[path] = self.world.tenant(path, **quota)
        return self.tenants[path]

    def submit(self, tenant: str, **changes: Any) -> str:
        spec = a_spec(**changes)
        result = in_transaction(
            self.engine,
            lambda session: submit(
                session,
                tenant_id=self.tenants[tenant],
                principal="ada",
                spec=spec,
                key=None,
                body_digest=b"",
                job_id=uuid4(),
            ),
        )
        return str(result.job_id)

    def wish(self, act: Callable[..., WishResult], job: str, *args: Any, **kwargs: Any) -> WishResult:
        return in_transaction(self.engine, lambda session: act(session, UUID(job), "ada", *args, **kwargs))

    def commit(self, cycle: Cycle, *acts: Act, epoch: int | None = None, **parts: Any) -> CommitReport:
        if epoch is None:
            epoch = int(scalar(self.engine, "SELECT epoch FROM arbiter"))
        return self.store.commit(epoch, cycle, Plan(acts=acts, policy="by-hand", **parts))

    def admit(self, job: str, gpus: int = 4, node: str = "n1") -> str:
        """One cycle that admits the job alone; its attempt."""
        cycle = self.store.cycle()
        report = self.commit(cycle, Act(admits=(an_admit(cycle, job, gpus, node),)))
        assert report.admitted == (job,), report
        return self.attempt(job)

    def attempt(self, job: str) -> str:
        return str(
            scalar(
                self.engine, "SELECT id FROM attempts WHERE job_id = :job ORDER BY number DESC LIMIT 1", job=UUID(job)
            )
        )

    def is_placed(self, attempt: str, backend: str = "b") -> None:
        """Its objects exist and have not been started; a waiter's victims are told."""
        self.store.mark(attempt, AttemptState.PENDING)
        self.store.prepared(attempt, backend, f"native/{attempt}")

    def runs(self, attempt: str, backend: str = "b") -> None:
        self.is_placed(attempt, backend)
        self.store.started(attempt, backend)
        self.store.mark(attempt, AttemptState.RUNNING)

    def ends(self, attempt: str, reason: Reason = Reason.COMPLETED, code: int | None = 0) -> Settled:
        return self.store.settle(EndRequest(attempt, reason.value, exit_code=code))

    def job(self, job: str) -> Any:
        return rows(self.engine, "SELECT * FROM jobs WHERE id = :job", job=UUID(job))[0]

    def outbox(self, kind: str) -> list[str]:
        found = rows(
            self.engine, "SELECT target FROM outbox WHERE kind = :kind AND done_at IS NULL ORDER BY id", kind=kind
        )
        return [row.target for row in found]


def queued(cycle: Cycle, job: str) -> QueuedJob:
    return next(one for one in cycle.snapshot.queued if one.id == job)


def live(cycle: Cycle, attempt: str) -> LiveAttempt:
    return next(one for one in cycle.snapshot.live if one.id == attempt)


def an_admit(cycle: Cycle, job: str, gpus: int = 4, node: str = "n1", victims: tuple[str, ...] = ()) -> Admit:
    one = queued(cycle, job)
    members = Resources(gpus * GPU, 4000, 8 << 30)
    placed = (Placed("main", POOL, FLAVOR, 1, members, ((node, 1),)),)
    return Admit(job, one.version, placed, Why("Fits", {"free_milli_gpu": 16 * GPU}), contingent_on=victims)


def a_preempt(cycle: Cycle, attempt: str, waiter: str, grace_ms: int = 300_000) -> Preempt:
    return Preempt(
        attempt, live(cycle, attempt).version, waiter, StopCause.PREEMPT, grace_ms, credit=True, why=Why("CheapestSet")
    )
