"""Launch requests with sensible values, so that a test names only what it is about."""

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from backends.naming import attempt_id
from backends.types import GroupLaunch, LaunchRequest
from policies.snapshot import Resources
from policies.vocabulary import JobKind, PriorityClass

GPU = 1000
GIB = 2**30
ONE_GPU = Resources(GPU, 1000, GIB)


def a_key() -> str:
    return attempt_id(uuid.uuid4(), 1)


def a_group(
    pool: str,
    command: tuple[str, ...],
    *,
    replicas: int = 1,
    first_rank: int = 0,
    per_member: Resources = ONE_GPU,
    name: str = "workers",
    nodes: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
) -> GroupLaunch:
    return GroupLaunch(name, pool, "flavor", replicas, first_rank, per_member, command, nodes=nodes, env=env or {})


def a_launch(*groups: GroupLaunch, **changes: Any) -> LaunchRequest:
    """A launch of these groups; any field of LaunchRequest may be named."""
    key = changes.pop("key", None) or a_key()
    request = LaunchRequest(
        key=key,
        gateway="gw",
        job=key.split("-")[1],
        attempt=1,
        tenant="acme/research",
        user="ada",
        name="train",
        kind=JobKind.TRAINING,
        klass=PriorityClass.P2,
        groups=groups,
        grace_s=5,
        term_s=1,
        num_nodes=sum(group.replicas for group in groups),
    )
    return replace(request, **changes)
