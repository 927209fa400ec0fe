"""What is refused at submit: all that the spec and today's configuration prove can never run (DESIGN §9).

Pure. Whatever may change by itself (free capacity, quota) is no business of this file: such a job waits.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit

from backends.environment import offered_launchers
from gateway.api.fitting import fit_refusals
from gateway.ledger.codec import deadline_ms, to_ms
from gateway.operators import urls
from gateway.queries.config import Config
from gateway.queries.scope import lineage
from gateway.webhooks.addresses import Network, may_reach
from policies.vocabulary import CapacityWish
from tidegate.wire.enums import PriorityClass
from tidegate.wire.problem import FieldProblem
from tidegate.wire.spec import JobSpec

LONG_SPOT_S: Final = 4 * 3600  # POLICIES §10
OWN_DISK_SCHEMES: Final = ("file", "local")


def refusals(
    spec: JobSpec, tenant: str, config: Config, now: datetime, *, allow: Sequence[Network] = ()
) -> list[tuple[str, FieldProblem]]:
    """(slug, problem) for each thing that is wrong; empty when the job may be stored."""
    return [
        *_launcher(spec),
        *fit_refusals(spec, tenant, config),
        *_checkpoint(spec, tenant, config),
        *class_refusals(spec.priority, tenant, config),
        *_deadline(spec, now),
        *_notify(spec, allow),
    ]


def _notify(spec: JobSpec, allow: Sequence[Network]) -> Iterator[tuple[str, FieldProblem]]:
    """A host that is itself an address is judged here; a name is judged when it is resolved, at every delivery."""
    for n, hook in enumerate(spec.notify):
        host = urlsplit(hook.url).hostname or ""
        try:
            reached = may_reach(host, allow)
        except ValueError:
            continue
        if not reached:
            yield (
                "webhook-not-public",
                FieldProblem(
                    field=f"notify.{n}.url",
                    detail="this address is not on the public Internet, and no operator allows its network",
                    remedy="name a public receiver, or ask an operator to add its network to TIDEGATE_WEBHOOK_ALLOW",
                ),
            )


def class_refusals(priority: PriorityClass, tenant: str, config: Config) -> Iterator[tuple[str, FieldProblem]]:
    """P0 and P1 need an allowance at the tenant or above it."""
    if priority is PriorityClass.P2:
        return
    if not any((path, priority.value) in config.allowances for path in lineage(tenant)):
        yield (
            "no-class-allowance",
            FieldProblem(
                field="priority",
                detail=f"{tenant} has no allowance of {priority}",
                remedy=f"use P2, or ask an operator for an allowance of {priority}",
            ),
        )


def _launcher(spec: JobSpec) -> Iterator[tuple[str, FieldProblem]]:
    """A launcher that no backend offers would be accepted, placed, and fail at its launch."""
    offered = [launcher.value for launcher in offered_launchers()]
    if spec.launcher.value not in offered:
        yield (
            "launcher-not-offered",
            FieldProblem(
                field="launcher",
                detail=f"no backend offers the launcher {spec.launcher}",
                remedy=f"use one of: {', '.join(offered)}, and start the ranks in `run` from TIDEGATE_NODE_RANK, "
                "TIDEGATE_NUM_NODES, MASTER_ADDR and MASTER_PORT",
            ),
        )


def _deadline(spec: JobSpec, now: datetime) -> Iterator[tuple[str, FieldProblem]]:
    if spec.deadline is None:
        return
    remedy = "give an RFC 3339 instant in the future, for example 2030-01-31T12:00:00Z"
    try:
        at_ms = deadline_ms(spec.deadline)
    except ValueError:
        detail = "not an instant with an offset"
        yield "invalid", FieldProblem(field="deadline", detail=detail, remedy=remedy)
        return
    if at_ms <= (to_ms(now) or 0):
        yield "invalid", FieldProblem(field="deadline", detail="the deadline has passed", remedy=remedy)


def loss_refusals(
    capacity: CapacityWish, max_duration_s: int | None, *, saves: bool, accept_loss: bool
) -> Iterator[tuple[str, FieldProblem]]:
    """Long jobs on spot save, or say that they may lose everything. Without a bound a job is long."""
    if saves or accept_loss or capacity is not CapacityWish.SPOT:
        return
    if max_duration_s is not None and max_duration_s <= LONG_SPOT_S:
        return
    yield (
        "long-spot-without-checkpoint",
        FieldProblem(
            field="checkpoint",
            detail="a spot job of more than 4 h, or of no max_duration, that saves nothing would lose everything at a "
            "revocation",
            remedy="add checkpoint.url, set max_duration to 4h or less, or say capacity.accept_loss: true",
        ),
    )


def _checkpoint(spec: JobSpec, tenant: str, config: Config) -> Iterator[tuple[str, FieldProblem]]:
    if spec.checkpoint is None:
        yield from loss_refusals(
            CapacityWish(spec.capacity.type.value),
            spec.max_duration,
            saves=False,
            accept_loss=spec.capacity.accept_loss,
        )
        return
    field = "checkpoint.url"
    try:
        url = urls.normalise(spec.checkpoint.url)
    except ValueError as error:
        yield "bad-storage-url", FieldProblem(field=field, detail=str(error), remedy="correct the URL")
        return
    prefixes = [prefix for path in lineage(tenant) for prefix in config.storages.get(path, ())]
    if urls.under(url, prefixes):
        return
    allowed = ", ".join(sorted(prefixes)[:10]) or "none is configured for your tenant; ask an operator"
    if urls.scheme_of(url) in OWN_DISK_SCHEMES:
        yield (
            "own-disk-checkpoint",
            FieldProblem(
                field=field,
                detail="this is a disk of the instance itself: it is gone when the instance is",
                remedy=f"save under a storage that outlives the instance: {allowed}",
            ),
        )
        return
    yield (
        "outside-storages",
        FieldProblem(
            field=field, detail=f"{url[:300]} is under no storage of {tenant}", remedy=f"use one of: {allowed}"
        ),
    )
