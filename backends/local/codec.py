"""A launch request as JSON and back, byte for byte. Secrets apart, so that they can lie in a file of their own."""

from dataclasses import asdict
from typing import Any

from backends.types import GroupLaunch, LaunchRequest, Secret, Workdir
from policies.snapshot import Resources
from policies.vocabulary import CapacityType, JobKind, Launcher, PriorityClass

_PLAIN = (
    *("key", "gateway", "job", "attempt", "tenant", "user", "name", "setup", "gateway_url", "checkpoint_url"),
    *("resume_from", "checkpoint_signal", "grace_s", "term_s", "max_duration_s", "num_nodes", "master_addr"),
)


def encode(request: LaunchRequest) -> dict[str, Any]:
    """Everything but secrets and token."""
    return {
        **{name: getattr(request, name) for name in _PLAIN},
        "kind": request.kind.value,
        "klass": request.klass.value,
        "launcher": request.launcher.value,
        "env": dict(request.env),
        "workdir": None if request.workdir is None else asdict(request.workdir),
        "groups": [
            {
                "name": group.name,
                "pool": group.pool,
                "flavor": group.flavor,
                "replicas": group.replicas,
                "first_rank": group.first_rank,
                "per_member": asdict(group.per_member),
                "command": list(group.command),
                "capacity_type": group.capacity_type.value,
                "nodes": list(group.nodes),
                "env": dict(group.env),
            }
            for group in request.groups
        ],
    }


def encode_secrets(request: LaunchRequest) -> dict[str, Any]:
    """What goes into the private file."""
    return {
        "token": None if request.token is None else request.token.reveal(),
        "secrets": {name: secret.reveal() for name, secret in request.secrets.items()},
    }


def decode(value: dict[str, Any], private: dict[str, Any] | None) -> LaunchRequest:
    """The request as it was given; without secrets where their file is gone (after the end)."""
    hidden = private or {"token": None, "secrets": {}}
    groups = (
        GroupLaunch(
            **{
                **group,
                "per_member": Resources(**group["per_member"]),
                "command": tuple(group["command"]),
                "capacity_type": CapacityType(group["capacity_type"]),
                "nodes": tuple(group["nodes"]),
            }
        )
        for group in value["groups"]
    )
    return LaunchRequest(
        **{name: value[name] for name in _PLAIN},
        kind=JobKind(value["kind"]),
        klass=PriorityClass(value["klass"]),
        launcher=Launcher(value["launcher"]),
        env=value["env"],
        workdir=None if value["workdir"] is None else Workdir(**value["workdir"]),
        groups=tuple(groups),
        token=None if hidden["token"] is None else Secret(hidden["token"]),
        secrets={name: Secret(text) for name, text in hidden["secrets"].items()},
    )
