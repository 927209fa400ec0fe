"""Builders of snapshots: GPUs, hours and minutes go in, the core's integers come out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from policies.decisions import Admit, Plan, Preempt, Reject, Wait
from policies.plan import plan
from policies.settings import HOUR_MS, MINUTE_MS, PolicySettings
from policies.snapshot import (
    Flavor,
    GroupRequest,
    LiveAttempt,
    Node,
    Placed,
    Pool,
    QueuedJob,
    Quota,
    Resources,
    Snapshot,
    Tenant,
)
from policies.vocabulary import AttemptState, CapacityType, JobKind, PriorityClass, Resource, Tenure

NOW_MS = 1_800_000_000_000
FLAVOR = "h100"
P0, P1, P2 = PriorityClass.P0, PriorityClass.P1, PriorityClass.P2


def gpus(count: int) -> Resources:
    """So many whole cards and nothing else."""
    return Resources(accelerators=count * 1000)


def flavor(name: str = FLAVOR, accelerator: str = "H100", **more: Any) -> Flavor:
    values: dict[str, Any] = {"capacity_type": CapacityType.ON_DEMAND, "zone": "z1", "price": 1_000_000, **more}
    return Flavor(name=name, accelerator=accelerator, accelerator_memory=0, **values)


def nodes(count: int, each: int, prefix: str = "n") -> tuple[Node, ...]:
    return tuple(Node(f"{prefix}{at:03d}", gpus(each)) for at in range(count))


def pool(nodes: Sequence[Node], name: str = "pool", of: str = FLAVOR, **more: Any) -> Pool:
    values: dict[str, Any] = {
        "backend": "here",
        "tenure": Tenure.EXCLUSIVE,
        "places_nodes": True,
        "place_first": True,
        **more,
    }
    return Pool(name=name, flavor=of, nodes=tuple(nodes), **values)


def group(replicas: int = 1, each: int = 1, name: str = "main", **more: Any) -> GroupRequest:
    values: dict[str, Any] = {"min_replicas": replicas, **more}
    return GroupRequest(name=name, replicas=replicas, per_member=gpus(each), **values)


def job(name: str, *groups: GroupRequest, tenant: str = "a", klass: PriorityClass = P2, **more: Any) -> QueuedJob:
    values: dict[str, Any] = {
        "user": "u",
        "kind": JobKind.TRAINING,
        "submitted_ms": NOW_MS - MINUTE_MS,
        "version": 1,
        **more,
    }
    return QueuedJob(id=name, tenant=tenant, klass=klass, groups=groups or (group(),), **values)


def placed(on: Mapping[str, int], each: int = 1, pool: str = "pool", of: str = FLAVOR) -> Placed:
    """Members of `each` GPUs per node, on the named nodes."""
    return Placed("main", pool, of, sum(on.values()), gpus(each), tuple(sorted(on.items())))


def live(name: str, *where: Placed, tenant: str = "a", klass: PriorityClass = P2, **more: Any) -> LiveAttempt:
    values: dict[str, Any] = {
        "job": f"job-of-{name}",
        "user": "u",
        "kind": JobKind.TRAINING,
        "state": AttemptState.RUNNING,
        "version": 3,
        "leased_ms": NOW_MS - 2 * HOUR_MS,
        "started_ms": NOW_MS - 2 * HOUR_MS,
        **more,
    }
    return LiveAttempt(id=name, tenant=tenant, klass=klass, placed=where, **values)


def quota(tenant: str, least: int, most: int | None, lendable: int = 0, of: str = FLAVOR) -> Quota:
    """min, max and lendable in GPUs."""
    ceiling = None if most is None else most * 1000
    return Quota(tenant, of, Resource.ACCELERATORS, least * 1000, ceiling, lendable * 1000)


def snapshot(**parts: Any) -> Snapshot:
    """One flavor unless told otherwise; tenants are made from what is named."""
    found = Snapshot(**{"flavors": (flavor(),), **parts})
    named = {one.tenant for one in found.queued} | {one.tenant for one in found.live}
    named |= {one.tenant for one in found.quotas}
    paths = {path for name in named for path in Tenant(name).lineage}
    return replace(found, tenants=tuple(Tenant(path) for path in sorted(paths))) if not found.tenants else found


class Answers:
    """A plan by job and attempt, for tests to ask."""

    def __init__(self, found: Plan) -> None:
        self.plan = found
        self.admits: dict[str, Admit] = {admit.job: admit for act in found.acts for admit in act.admits}
        self.preempts: dict[str, Preempt] = {one.attempt: one for act in found.acts for one in act.preempts}
        self.waits: dict[str, Wait] = {one.job: one for one in found.waits}
        self.rejects: dict[str, Reject] = {one.job: one for one in found.rejects}

    def token(self, name: str) -> str:
        """The token with which a job waits."""
        return self.waits[name].pending.value


def decide(found: Snapshot, now_ms: int = NOW_MS, **settings: Any) -> Answers:
    return Answers(plan(found, PolicySettings(**settings), now_ms))
