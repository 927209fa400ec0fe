"""The environment and command of one member, the same at every backend. Pure; it starts nothing and reads no file.

The user's variables travel byte for byte. Ours are laid over them, so that no job can pretend to be another; names
that belong to a scheduler, to the loader or to us are refused rather than dropped in silence (DESIGN §7, §8).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from backends.errors import Refused
from backends.types import GroupLaunch, LaunchRequest
from policies.vocabulary import Launcher, Reason

RESERVED_PREFIXES: Final = ("SLURM_", "SBATCH_", "SRUN_", "TIDEGATE_", "LD_")


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a launch: the `index`-th of its group."""

    group: GroupLaunch
    index: int

    @property
    def rank(self) -> int:
        """Its rank in the whole attempt, over all groups and backends."""
        return self.group.first_rank + self.index

    @property
    def node(self) -> str:
        """The node that the arbiter chose, or "" where the backend chooses."""
        return self.group.nodes[self.index] if self.group.nodes else ""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the members of one attempt meet. `hosts` are the addresses by rank, where they are known beforehand."""

    master_addr: str
    master_port: int
    coord_port: int
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberFiles:
    """Where a member finds its notice and its token; an empty text leaves the variable out."""

    notice_file: str = ""
    token_file: str = ""


def members(request: LaunchRequest) -> tuple[Member, ...]:
    """All members of the launch in the order of their ranks."""
    found = [Member(group, index) for group in request.groups for index in range(group.replicas)]
    return tuple(sorted(found, key=lambda member: member.rank))


def check(request: LaunchRequest) -> None:
    """Raise Refused (permanent) naming the field, if a launch could not be carried out faithfully anywhere."""
    _check_shape(request)
    _check_names("env", request.env)
    _check_names("secrets", {name: secret.reveal() for name, secret in request.secrets.items()})
    for group in request.groups:
        _check_names(f"groups[{group.name}].env", group.env)
        if any("\0" in word for word in group.command):
            raise _invalid(f"groups[{group.name}].command", "contains a NUL byte; remove it")
    if "\0" in request.setup:
        raise _invalid("setup", "contains a NUL byte; remove it")


def member_environment(
    request: LaunchRequest,
    member: Member,
    rendezvous: Rendezvous,
    files: MemberFiles,
    *,
    base: Mapping[str, str] | None = None,
    gpus: tuple[int, ...] | None = None,
) -> dict[str, str]:
    """Everything one member sees: `base` (PATH, HOME …), then the user's, then ours. Call `check` first.

    `gpus` are the indices it may use; None where the backend's own runtime sets the visible devices.
    """
    environment = dict(base or {})
    environment.update(request.env)
    environment.update(member.group.env)
    environment.update({name: secret.reveal() for name, secret in request.secrets.items()})
    environment.update(_ours(request, member, rendezvous, files))
    if gpus is not None:
        environment["TIDEGATE_VISIBLE_GPUS"] = environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    return environment


def launcher_command(request: LaunchRequest, member: Member) -> tuple[str, ...]:
    """The launcher's preamble and the user's command, without `setup` (agents run that themselves)."""
    preamble = PREAMBLES.get(request.launcher)
    if preamble is None:
        known = ", ".join(sorted(PREAMBLES))
        raise _invalid("launcher", f"{request.launcher} is not offered by this backend; use one of: {known}")
    return preamble(request, member)


def member_command(request: LaunchRequest, member: Member) -> tuple[str, ...]:
    """The whole argument vector of one member, for backends without an agent: `setup`, preamble and command.

    The setup text runs in a shell that then becomes the command, so signals and exit codes are the command's own.
    """
    command = launcher_command(request, member)
    if not request.setup:
        return command
    return ("/bin/sh", "-c", f'set -e\n{request.setup}\nset +e\nexec "$@"', "setup", *command)


def _plain(request: LaunchRequest, member: Member) -> tuple[str, ...]:
    del request
    return member.group.command


Preamble = Callable[[LaunchRequest, Member], tuple[str, ...]]
PREAMBLES: Final[Mapping[Launcher, Preamble]] = MappingProxyType({Launcher.PLAIN: _plain})


def offered_launchers() -> tuple[Launcher, ...]:
    """What a job may name as its launcher at any backend of today; the rest is refused before anything is stored."""
    return tuple(sorted(PREAMBLES))


def _ours(request: LaunchRequest, member: Member, rendezvous: Rendezvous, files: MemberFiles) -> dict[str, str]:
    variables = {
        "TIDEGATE_JOB_ID": request.job,
        "TIDEGATE_ATTEMPT": str(request.attempt),
        "TIDEGATE_NODE_RANK": str(member.rank),
        "TIDEGATE_NUM_NODES": str(request.num_nodes),
        "TIDEGATE_GROUP": member.group.name,
        "TIDEGATE_GROUP_RANK": str(member.index),
        "TIDEGATE_GROUP_REPLICAS": str(member.group.replicas),
        "TIDEGATE_CHECKPOINT_URL": request.checkpoint_url,
        "TIDEGATE_RESUME_FROM": request.resume_from,
        "TIDEGATE_COORD_PORT": str(rendezvous.coord_port),
        "MASTER_ADDR": rendezvous.master_addr,
        "MASTER_PORT": str(rendezvous.master_port),
    }
    optional = {
        "TIDEGATE_URL": request.gateway_url,
        "TIDEGATE_NOTICE_FILE": files.notice_file,
        "TIDEGATE_TOKEN_FILE": files.token_file,
        "TIDEGATE_HOSTS": ",".join(rendezvous.hosts),
        "TIDEGATE_TARGET_REPLICAS": str(request.target_replicas or ""),
        "TIDEGATE_GRAD_ACCUM": str(request.grad_accum or ""),
        "TIDEGATE_LR_SCALE": request.lr_scale,
        "TIDEGATE_ARRAY_INDEX": "" if request.array_index is None else str(request.array_index),
    }
    variables.update({name: value for name, value in optional.items() if value})
    return variables


def _check_shape(request: LaunchRequest) -> None:
    if not request.groups:
        raise _invalid("groups", "is empty; name at least one group")
    for group in request.groups:
        if group.replicas < 1:
            raise _invalid(f"groups[{group.name}].replicas", "must be at least 1")
        if not group.command or not group.command[0]:
            raise _invalid(f"groups[{group.name}].command", "is empty; give the program to run")
        if group.nodes and len(group.nodes) != group.replicas:
            raise _invalid(f"groups[{group.name}].nodes", "must name one node for each replica, or none at all")
    ranks = [member.rank for member in members(request)]
    if len(set(ranks)) != len(ranks):
        raise _invalid("groups", "overlap in their ranks; first_rank must leave room for the group before")


def _check_names(field: str, variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        if name.startswith(RESERVED_PREFIXES):
            prefixes = " ".join(f"{prefix}*" for prefix in RESERVED_PREFIXES)
            raise _invalid(f"{field}.{name}", f"is reserved ({prefixes}); choose another name")
        if not name or "=" in name or "\0" in name:
            raise _invalid(f"{field}.{name!r}", "is no name for a variable; it must not be empty or contain = or NUL")
        if "\0" in value:  # The value is never shown: it may be a secret.
            raise _invalid(f"{field}.{name}", "has a value with a NUL byte, which no process can receive; remove it")


def _invalid(field: str, problem: str) -> Refused:
    return Refused(f"{field} {problem}", reason=Reason.INVALID_PARAMETER, permanent=True)
