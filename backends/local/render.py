"""A launch request and its seats → the members' specs for the agents. Pure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from backends.environment import Member, MemberFiles, Rendezvous, launcher_command, member_environment, members
from backends.errors import Refused
from backends.local.config import LocalConfig
from backends.local.records import Placement
from backends.types import LaunchRequest
from policies.vocabulary import Reason

HOST: Final = "127.0.0.1"
FILE_SCHEME: Final = "file://"


def member_specs(
    request: LaunchRequest, placement: Placement, config: LocalConfig, *, uid: int | None, logs: Path
) -> dict[int, dict[str, Any]]:
    """The body of `POST /members` of every rank. The same request and placement give the same bodies."""
    archive = archive_path(request)
    shared = {
        "launch": request.key,
        "setup": request.setup,
        "uid": uid,
        "gid": uid,
        "workdir": archive and {"archive": archive, "sha256": request.workdir.sha256 if request.workdir else ""},
        "token": None if request.token is None else request.token.reveal(),
        "notice_signal": request.checkpoint_signal,
        "grace_s": request.grace_s,
        "term_s": request.term_s,
        "max_duration_s": request.max_duration_s,
        "gang": _gang(request, placement, config),
    }
    seats = {seat.rank: seat for seat in placement.seats}
    return {
        member.rank: {
            **shared,
            "rank": member.rank,
            "group": member.group.name,
            "argv": list(launcher_command(request, member)),
            "env": _environment(request, member, placement),
            "log": str(logs / f"{member.rank}.log"),
            "gpus": list(seats[member.rank].gpus),
        }
        for member in members(request)
    }


def archive_path(request: LaunchRequest) -> str | None:
    """The code archive on this machine, or None where the job has none."""
    if request.workdir is None:
        return None
    path = request.workdir.url.removeprefix(FILE_SCHEME)
    if not path.startswith("/"):
        raise Refused(
            "workdir.url is no file of this machine; upload the code through the gateway, or give an absolute path",
            reason=Reason.INVALID_PARAMETER,
            permanent=True,
        )
    return path


def _environment(request: LaunchRequest, member: Member, placement: Placement) -> Mapping[str, str]:
    """Notice and token files and the visible GPUs are the agent's to add."""
    meeting = Rendezvous(request.master_addr or HOST, placement.master_port, placement.coord_port)
    return member_environment(request, member, meeting, MemberFiles())


def _gang(request: LaunchRequest, placement: Placement, config: LocalConfig) -> dict[str, Any] | None:
    """Heartbeats among the agents, where the whole gang is here."""
    if len(placement.seats) == 1 or len(placement.seats) != request.num_nodes:
        return None
    return {
        "size": len(placement.seats),
        "coordinator": f"{HOST}:{placement.gang_port}",
        "interval_s": config.heartbeat_s,
        "timeout_s": config.heartbeat_timeout_s,
        "secret": placement.secret,
    }
