"""How wishes and placements are written as JSON and read back as the policies' values. Pure.

`request` is the accepted spec once more, flat and in integers, so that the arbiter reads ten thousand of them without
a validator: durations in milliseconds (`_s` where a workflow counts seconds), amounts in policies' units. It never
holds the user's texts (command, environment): those stay in `spec`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from policies.elastic.sizes import Sizes
from policies.snapshot import GroupRequest, Placed, PlacementWish, QueuedJob, Resources
from policies.vocabulary import CapacityWish, JobKind, PriorityClass
from tidegate.wire.spec import JobSpec

Request = dict[str, Any]


def dumps(value: object) -> str:
    """Canonical JSON: sorted keys, no spaces; the same value is always the same text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def plain(text: str) -> str:
    """Foreign text as PostgreSQL can hold it: NUL and halves of surrogate pairs become question marks."""
    return text.replace("\0", "?").encode("utf-8", "replace").decode()


def to_ms(at: datetime | None) -> int | None:
    """Milliseconds since the epoch of an instant, by integer arithmetic."""
    if at is None:
        return None
    gap = at.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return gap.days * 86_400_000 + gap.seconds * 1000 + gap.microseconds // 1000


def from_ms(ms: int) -> datetime:
    """The instant of so many milliseconds since the epoch."""
    return datetime.fromtimestamp(ms // 1000, tz=UTC).replace(microsecond=ms % 1000 * 1000)


def body_digest(spec: JobSpec) -> bytes:
    """SHA-256 of the canonical form: the order of keys and `1` for `1.0` make no other body (CASES RS-01e)."""
    return hashlib.sha256(dumps(spec.model_dump(mode="json")).encode("utf-8", "surrogatepass")).digest()


def request_of(spec: JobSpec) -> Request:
    """The flat request of a spec. ValueError names the field that cannot be read."""
    groups = [
        [
            group.name,
            group.replicas,
            group.min_replicas or group.replicas,
            resources.accelerators.count,
            resources.cpus,
            resources.memory,
            resources.disk,
            resources.accelerators.model,
        ]
        for group in spec.flat_groups()
        if (resources := group.resources) is not None
    ]
    request: Request = {
        "groups": groups,
        "capacity": spec.capacity.type.value,
        "placement": _placement(spec),
        "after": {"ok": list(spec.after.ok), "any": list(spec.after.any), "not_ok": list(spec.after.not_ok)},
        "min_runtime_ms": spec.min_runtime * 1000,
        "gang_timeout_s": spec.gang_timeout,
        "retry": {
            "max": spec.retry.max,
            "on_events": list(spec.retry.on_events),
            "max_duration_s": spec.retry.max_duration,
        },
        "accept_loss": spec.capacity.accept_loss,
    }
    request.update(_limits(spec))
    if spec.checkpoint is not None:
        request["checkpoint"] = {
            "url": spec.checkpoint.url,
            "interval_ms": None if spec.checkpoint.interval is None else spec.checkpoint.interval * 1000,
            "save_timeout_s": spec.checkpoint.save_timeout,
            "signal": spec.checkpoint.signal.value,
        }
    if spec.elastic is not None:
        request["elastic"] = {**spec.elastic.model_dump(), "group": spec.elastic_group, "step": spec.size_step}
    if spec.parallelism is not None:
        request["parallelism"] = {"tp": spec.parallelism.tp, "pp": spec.parallelism.pp}
    if spec.array is not None:
        request["array"] = spec.array.model_dump()
    if spec.stall is not None:
        request["stall"] = {"timeout_s": spec.stall.timeout, "factor": spec.stall.factor}
    return request


def _placement(spec: JobSpec) -> dict[str, Any]:
    wish = spec.placement
    found: dict[str, Any] = {
        "flavors": list(wish.flavors),
        "pools": list(wish.pools),
        "backends": list(wish.backends),
        "zones": list(wish.zones),
        "ordered": wish.ordered,
        "require": dict(wish.require),
        "prefer": dict(wish.prefer),
    }
    return {name: value for name, value in found.items() if value}


def _limits(spec: JobSpec) -> dict[str, int]:
    limits = {
        "max_duration_ms": None if spec.max_duration is None else spec.max_duration * 1000,
        "deadline_ms": None if spec.deadline is None else deadline_ms(spec.deadline),
        "max_queue_ms": None if spec.sla.max_queue is None else spec.sla.max_queue * 1000,
        "max_price": spec.capacity.max_price,
        "grace_s": spec.grace,
    }
    return {name: value for name, value in limits.items() if value is not None}


def deadline_ms(text: str) -> int:
    """An instant from RFC 3339 text. ValueError: it is none, or has no offset and so could be several."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"deadline: {text!r} is no instant; write it like 2030-01-31T18:00:00Z") from None
    if at.tzinfo is None:
        raise ValueError(f"deadline: {text!r} has no offset; write {text}Z for UTC")
    return to_ms(at) or 0


def queued_job(row: Mapping[Any, Any], *, chunk: tuple[int, int] | None = None, key: str = "") -> QueuedJob:
    """A queued row as the arbiter sees it, its dependencies still open (`gateway.ledger.queue` closes them)."""
    request: Request = row["request"]
    elastic = request.get("elastic")
    return QueuedJob(
        id=key or str(row["id"]),
        tenant=row["path"],
        user=row["principal"],
        kind=JobKind(row["kind"]),
        klass=PriorityClass(row["klass"]),
        submitted_ms=to_ms(row["submitted_at"]) or 0,
        queued_ms=to_ms(row.get("queued_at")),
        version=row["version"],
        groups=tuple(_group(group, elastic, row["want_size"], row.get("saved")) for group in request["groups"]),
        capacity=CapacityWish(request["capacity"]),
        placement=wish_of(request),
        max_duration_ms=request.get("max_duration_ms"),
        deadline_ms=request.get("deadline_ms"),
        estimated_ms=request.get("estimated_ms"),
        not_before_ms=to_ms(row["not_before"]) or 0,
        on_hold=row["want_hold"],
        max_queue_ms=request.get("max_queue_ms"),
        max_price=request.get("max_price"),
        chunk=chunk,
    )


def _group(
    group: Sequence[Any],
    elastic: Mapping[str, Any] | None,
    want_size: Mapping[str, int] | None,
    saved: Mapping[str, Any] | None,
) -> GroupRequest:
    name, replicas, least, accelerators, cpus, memory, disk, model = group
    each = Resources(accelerators, cpus, memory, disk)
    if elastic is None or name != elastic["group"]:
        return GroupRequest(name, replicas, least, each, model)
    sizes = sizes_of(elastic, want_size)
    if saved is not None and not (saved["reshardable"] and elastic["reshard"]):
        # What it would resume from holds for that size alone (POLICIES §9): it waits for the old size.
        return GroupRequest(name, saved["replicas"], saved["replicas"], each, model, resumes_at=saved["replicas"])
    most, least = sizes.at_most(sizes.target) or sizes.min, sizes.at_least(sizes.min) or sizes.min
    return GroupRequest(name, most, min(least, most), each, model, step=sizes.step)


def sizes_of(elastic: Mapping[str, Any], want_size: Mapping[str, int] | None) -> Sizes:
    """In members. What a user wished last is the target from then on, and min where it lies below."""
    target = (want_size or {}).get(elastic["group"], elastic["target"])
    return Sizes(min(elastic["min"], target), target, max(elastic["max"], target), elastic["step"])


def wish_of(request: Request) -> PlacementWish:
    """Where a job may go."""
    found = request["placement"]
    avoid = tuple(request.get("avoid_nodes", ()))
    refused = tuple((backend, each["remedy"]) for backend, each in sorted(request.get("refused_by", {}).items()))
    if not found and not avoid and not refused:
        return _ANYWHERE
    return PlacementWish(
        flavors=tuple(found.get("flavors", ())),
        pools=tuple(found.get("pools", ())),
        backends=tuple(found.get("backends", ())),
        zones=tuple(found.get("zones", ())),
        ordered=found.get("ordered", False),
        require=found.get("require", {}),
        prefer=found.get("prefer", {}),
        avoid_nodes=avoid,
        refused_by=refused,
    )


_ANYWHERE = PlacementWish()


def placed_json(placed: Sequence[Placed]) -> list[dict[str, Any]]:
    """A placement as `attempts.placed` holds it."""
    return [
        {
            "group": part.group,
            "pool": part.pool,
            "flavor": part.flavor,
            "replicas": part.replicas,
            "per_member": {
                "accelerators": part.per_member.accelerators,
                "cpus": part.per_member.cpus,
                "memory": part.per_member.memory,
                "disk": part.per_member.disk,
            },
            "nodes": [list(pair) for pair in part.nodes],
        }
        for part in placed
    ]


def placed_of(stored: Sequence[Mapping[str, Any]]) -> tuple[Placed, ...]:
    """The reverse of `placed_json`."""
    return tuple(
        Placed(
            group=part["group"],
            pool=part["pool"],
            flavor=part["flavor"],
            replicas=part["replicas"],
            per_member=Resources(**part["per_member"]),
            nodes=tuple((node, count) for node, count in part["nodes"]),
        )
        for part in stored
    )
