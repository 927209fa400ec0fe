"""What one backend is to launch of an attempt, made from its row alone.

Decides ranks, where it resumes from, where it may write and the token it speaks with. A call may come again for the
same attempt, because an answer was lost: the launch that exists then holds the earlier token, so a token lives as long
as its attempt (settling ends them all), and a new one is minted beside it.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import text
from sqlalchemy.orm import Session

from backends.types import GroupLaunch, LaunchRequest, Secret, Workdir
from gateway.ledger.codec import placed_of
from gateway.ledger.config import LedgerSettings, archive_url, base_url
from policies.elastic.batch import batch
from policies.elastic.places import size_of
from policies.snapshot import Placed
from policies.vocabulary import CapacityType, JobKind, Launcher, PriorityClass, Role
from tidegate.wire.spec import JobSpec

TOKEN_BYTES: Final = 32


class NotLiveError(LookupError):
    """There is no live attempt with this id: nothing may be launched for it."""


_ROW = text(
    """
    SELECT a.id, a.job_id, a.number, a.chunk, a.first_index, a.placed, a.resume_from, j.tenant_id, j.principal, j.name,
        j.kind, l.klass, j.spec, j.request, t.path
    FROM attempts a JOIN jobs j ON j.id = a.job_id JOIN tenants t ON t.id = j.tenant_id
    JOIN leases l ON l.id = a.lease_id
    WHERE a.id = :id AND a.ended_at IS NULL
    FOR NO KEY UPDATE OF a
    """
)
_POOLS = text(
    """
    SELECT pools.name, backend, capacity_type FROM pools JOIN flavors ON flavors.name = pools.flavor
    WHERE pools.name = ANY(:names)
    """
)
# The fence: what an attempt of this or a later number wrote is no place to come from, nor is what failed a check.
_NEWEST = text(
    """
    SELECT url FROM checkpoints
    WHERE job_id = :job_id AND array_index = :array_index AND verified >= 1 AND attempt_number < :number
    ORDER BY step DESC, attempt_number DESC LIMIT 1
    """
)
_TOKEN = text(
    """
    INSERT INTO tokens (id, digest, tenant_id, principal, role, attempt_id, note, created_at)
    VALUES (:id, :digest, :tenant_id, :principal, :role, :attempt_id, 'job', now())
    """
)
_RESUMES = text("UPDATE attempts SET resume_from = :url WHERE id = :id")


def request(session: Session, attempt_id: str, backend: str, settings: LedgerSettings) -> LaunchRequest:
    """The request of this backend's part. NotLiveError: the attempt has ended, or never was."""
    row = session.execute(_ROW, {"id": attempt_id}).mappings().one_or_none()
    if row is None:
        raise NotLiveError(f"{attempt_id} is not a live attempt")
    spec = JobSpec.model_validate(row["spec"])
    placed = placed_of(row["placed"])
    pools = {pool.name: pool for pool in session.execute(_POOLS, {"names": [part.pool for part in placed]})}
    groups = _groups(spec, placed, backend, pools)
    checkpoint = spec.checkpoint
    resume_from = _resume_from(session, row) if checkpoint is not None else ""
    if resume_from != row["resume_from"]:
        session.execute(_RESUMES, {"id": attempt_id, "url": resume_from})
    return LaunchRequest(
        key=attempt_id,
        gateway=settings.gateway_name,
        job=str(row["job_id"]),
        attempt=row["number"],
        tenant=row["path"],
        user=row["principal"],
        name=row["name"],
        kind=JobKind(row["kind"]),
        klass=PriorityClass(row["klass"]),
        groups=groups,
        launcher=Launcher(spec.launcher.value),
        setup=spec.setup,
        env=dict(spec.env),
        token=_mint(session, row),
        gateway_url=base_url(settings),
        workdir=_workdir(settings, row["tenant_id"], spec),
        checkpoint_url=f"{checkpoint.url.rstrip('/')}/{_folder(row)}" if checkpoint is not None else "",
        resume_from=resume_from,
        checkpoint_signal=checkpoint.signal.value if checkpoint is not None else "USR1",
        grace_s=settings.default_grace_s if spec.grace is None else spec.grace,
        term_s=settings.term_s,
        max_duration_s=spec.max_duration,
        num_nodes=sum(part.replicas for part in placed),
        array_index=row["chunk"],
        **_at_this_size(spec, placed),
    )


def _at_this_size(spec: JobSpec, placed: Sequence[Placed]) -> dict[str, Any]:
    """What an elastic job is told of its size; training also what that does to its batch (POLICIES §9)."""
    elastic, name = spec.elastic, spec.elastic_group
    if elastic is None or name is None:
        return {}
    size = size_of(tuple(placed), name)
    if spec.kind.value == JobKind.INFERENCE:
        return {"target_replicas": size}
    # A data-parallel degree is so many members to one: where no whole one fits the target, its whole part counts.
    written_for = max(1, elastic.target // spec.size_step)
    found = batch(written_for * spec.size_step, size, elastic.accumulation)
    return {"target_replicas": size, "grad_accum": found.accumulation, "lr_scale": found.scale_text}


def _workdir(settings: LedgerSettings, tenant_id: int, spec: JobSpec) -> Workdir | None:
    if spec.workdir is None:
        return None
    sha256 = spec.workdir.removeprefix("sha256:")
    return Workdir(archive_url(settings, tenant_id, sha256), sha256)


def _folder(row: Mapping[Any, Any]) -> str:
    """`attempt-N`, below the index's own folder in an array: two indexes never write beside each other."""
    return f"attempt-{row['number']}" if row["chunk"] is None else f"index-{row['chunk']}/attempt-{row['number']}"


def _resume_from(session: Session, row: Mapping[Any, Any]) -> str:
    index = -1 if row["chunk"] is None else row["chunk"]
    values = {"job_id": row["job_id"], "array_index": index, "number": row["number"]}
    return session.execute(_NEWEST, values).scalar_one_or_none() or ""


def _groups(spec: JobSpec, placed: Sequence[Placed], backend: str, pools: Mapping[str, Any]) -> tuple[GroupLaunch, ...]:
    """Ranks run over the whole attempt in the order of its placement, whichever backend a part belongs to."""
    commands = {group.name: group.command for group in spec.flat_groups()}
    found: list[GroupLaunch] = []
    first_rank = 0
    names: dict[str, int] = {}
    for part in placed:
        pool = pools[part.pool]
        names[part.group] = names.get(part.group, 0) + 1
        if pool.backend == backend:
            found.append(
                GroupLaunch(
                    # A group over two pools is two objects at the backend: (key, group, member) must stay unique.
                    name=part.group if names[part.group] == 1 else f"{part.group}-{names[part.group]}",
                    pool=part.pool,
                    flavor=part.flavor,
                    replicas=part.replicas,
                    first_rank=first_rank,
                    per_member=part.per_member,
                    command=commands.get(part.group) or ("/bin/sh", "-c", spec.run or ""),
                    capacity_type=CapacityType(pool.capacity_type),
                    nodes=tuple(node for node, count in part.nodes for _ in range(count)),
                )
            )
        first_rank += part.replicas
    return tuple(found)


def _mint(session: Session, row: Mapping[Any, Any]) -> Secret:
    """Only the digest is stored; the token itself leaves in the request and nowhere else."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    session.execute(
        _TOKEN,
        {
            "id": uuid4(),
            "digest": hashlib.sha256(token.encode()).digest(),
            "tenant_id": row["tenant_id"],
            "principal": row["principal"],
            "role": int(Role.VIEWER),
            "attempt_id": row["id"],
        },
    )
    return Secret(token)
