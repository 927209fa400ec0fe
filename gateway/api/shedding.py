"""Shedding (POLICIES §12): a tenant whose queue is over its limit is turned away until 0.94 of the limit.

P2 submits alone; what waits already goes on. Counts are at most a second old (`Configs`), each process adds what it
accepts meanwhile, and that a tenant is being shed stands in the ledger, so that all replicas say the same.
"""

from collections.abc import Iterator
from typing import Final

from sqlalchemy import update
from sqlalchemy.orm import Session
from sqlmodel import col

from gateway.api.problems import ProblemError
from gateway.ledger.tables.access import Tenant
from gateway.queries.config import Config, TenantQueue
from gateway.queries.scope import lineage

RESUME_PERCENT: Final = 94
RETRY_AFTER_S: Final = 30


class Shed(ProblemError):  # noqa: N818  (an answer, not a defect)
    """429 with Retry-After. `begins`: the tenant is over its limit from now on, which `remember` writes down."""

    def __init__(self, path: str, queue: TenantQueue, jobs: int) -> None:
        resume = queue.limit * RESUME_PERCENT // 100
        detail = f"{queue.queued} jobs of {path} wait, its limit is {queue.limit}"
        if queue.queued <= resume:  # then it is this batch that is too large
            remedy = f"send at most {queue.limit - queue.queued} at once"
        else:
            remedy = f"submit P2 jobs again when at most {resume} wait, or ask an operator for a higher queue_limit"
        headers = {"Retry-After": str(RETRY_AFTER_S)}
        field = "priority" if jobs == 1 else "jobs"
        super().__init__(429, slug="queue-full", detail=detail, field=field, remedy=remedy, headers=headers)
        self.path = path
        self.begins = queue.queued >= queue.limit and not queue.shedding


def admit(session: Session, config: Config, tenant: str, *, jobs: int, any_p2: bool) -> None:
    """Count the jobs in, or raise Shed. Without a P2 job they are counted and never turned away."""
    queues = list(_of(config, tenant))
    for path, queue in queues:
        if queue.shedding and queue.queued * 100 <= queue.limit * RESUME_PERCENT:
            queue.shedding = False
            session.execute(update(Tenant).where(col(Tenant.path) == path).values(shedding=False))
        if any_p2 and (queue.shedding or queue.queued + jobs > queue.limit):
            raise Shed(path, queue, jobs)
    for _, queue in queues:
        queue.queued += jobs


def remember(session: Session, shed: Shed, config: Config) -> None:
    """In a transaction of its own, since the refused one is rolled back."""
    session.execute(update(Tenant).where(col(Tenant.path) == shed.path).values(shedding=True))
    config.queues[shed.path].shedding = True


def _of(config: Config, tenant: str) -> Iterator[tuple[str, TenantQueue]]:
    for path in lineage(tenant):
        if (queue := config.queues.get(path)) is not None:
            yield path, queue
