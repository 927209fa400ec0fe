"""What happens between fork and exec of a member's process. Runs in a single-threaded child of the keeper.

User text reaches a shell only as the content of a file; the command is executed as a list; the environment is a table.
Errors before exec go back through a pipe as text, so that "not found" is told apart from a program's own code.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import signal
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, NoReturn, Optional

from tidegate.agent import processes
from tidegate.agent.folder import Folder
from tidegate.agent.spec import Spec
from tidegate.job import durable

BASE_VARIABLES = ("PATH", "HOME", "LANG", "TZ", "TMPDIR")
_CODE_FAILED = 127
_RESET = (signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class Phase(NamedTuple):
    """One process of a member: `unpack`, `setup` or `run`."""

    name: str
    argv: Optional[List[str]]  # None: the archive is unpacked without an exec


class Child(NamedTuple):
    """A started phase. `errors` is a pipe that ends at exec, or carries the text of what went wrong before it."""

    pid: int
    errors: int


def phases(spec: Spec, folder: Folder) -> List[Phase]:
    """What will run, in order. Scripts have been written by `write_scripts`."""
    found = [Phase("unpack", None)] if spec.archive else []
    if spec.setup:
        found.append(Phase("setup", ["/bin/sh", "-e", str(folder.job / "setup.sh")]))
    command = spec.argv or ["/bin/sh", "-e", str(folder.job / "run.sh")]
    return [*found, Phase("run", command)]


def owner_of(spec: Spec) -> Optional[tuple[int, int]]:
    """(uid, gid) to switch to; None to stay who we are."""
    if spec.uid is None or (spec.uid == os.geteuid() and spec.gid in (None, os.getegid())):
        return None
    if spec.gid is not None:
        return spec.uid, spec.gid
    try:
        return spec.uid, pwd.getpwuid(spec.uid).pw_gid
    except KeyError:
        return spec.uid, spec.uid


def write_scripts(spec: Spec, folder: Folder, token: Optional[str]) -> None:
    """The job's own files, readable by its user alone."""
    owner = owner_of(spec)
    if spec.setup:
        durable.write_bytes(folder.job / "setup.sh", os.fsencode(spec.setup), mode=0o600, owner=owner)
    if spec.script is not None:
        durable.write_bytes(folder.job / "run.sh", os.fsencode(spec.script), mode=0o600, owner=owner)
    if token is not None:
        durable.write_bytes(folder.token, token.encode(), mode=0o600, owner=owner)


def environment(spec: Spec, folder: Folder, *, token: bool, helper: str) -> Dict[str, str]:
    """The agent's base, the spec's variables byte for byte, and what only the agent knows."""
    found = {name: os.environ[name] for name in BASE_VARIABLES if name in os.environ}
    if owner_of(spec) is not None:
        found["HOME"] = str(folder.job)
    found.update(spec.env)
    found.update(
        TIDEGATE_NOTICE_FILE=str(folder.notice),
        TIDEGATE_CHECKPOINT_SIGNAL=spec.notice_signal,
        TIDEGATE_WORKDIR=str(folder.work),
        TIDEGATE_HELPER=helper,
    )
    if token:
        found["TIDEGATE_TOKEN_FILE"] = str(folder.token)
    if spec.gpus is not None:
        found["TIDEGATE_VISIBLE_GPUS"] = found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, spec.gpus))
    return found


def start(phase: Phase, spec: Spec, folder: Folder, env: Dict[str, str], log: int) -> Child:
    """Fork one phase into a session and process group of its own."""
    reader, writer = os.pipe()
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        _in_child(lambda: _become_and_run(phase, spec, folder, env, (log, keeper)), writer)
    os.close(writer)
    os.set_blocking(reader, False)
    return Child(pid, reader)


def _in_child(body: Callable[[], None], writer: int) -> NoReturn:
    """Never returns and never unwinds into the keeper's code."""
    code = _CODE_FAILED
    try:
        body()
        code = 0
    except BaseException as error:  # noqa: BLE001 - the child must end here, whatever it was
        os.write(writer, f"{type(error).__name__}: {error}"[:1000].encode(errors="replace"))
    finally:
        os._exit(code)


def _become_and_run(phase: Phase, spec: Spec, folder: Folder, env: Dict[str, str], ties: tuple[int, int]) -> None:
    log, keeper = ties
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if phase.argv is None:
        # Imported while we may read the interpreter's folders, which the job's user perhaps may not.
        from tidegate.archive.unpack import unpack  # noqa: PLC0415 - most members have no archive

        copy = _copy_archive(spec, folder)
        _switch_user(spec)
        processes.die_with_parent(keeper)
        unpack(copy, folder.work)
        copy.unlink()
        return
    _switch_user(spec)
    processes.die_with_parent(keeper)
    os.chdir(spec.cwd or str(folder.work))
    try:
        os.execvpe(phase.argv[0], phase.argv, env)  # noqa: S606 - a list, no shell
    except FileNotFoundError:
        raise FileNotFoundError(f"no such command, or its interpreter is missing: {phase.argv[0]}") from None


def _copy_archive(spec: Spec, folder: Folder) -> Path:
    """The archive may be readable by the agent alone, and may change under us: digest the very bytes that are used."""
    assert spec.archive is not None
    copy = folder.job / "archive"
    copy.unlink(missing_ok=True)
    digest = hashlib.sha256()
    with Path(spec.archive).open("rb") as source, copy.open("xb") as target:
        for piece in iter(lambda: source.read(durable.CHUNK_BYTES), b""):
            digest.update(piece)
            target.write(piece)
        owner = owner_of(spec)
        if owner is not None:
            os.fchown(target.fileno(), owner[0], owner[1])
        os.fchmod(target.fileno(), 0o600)
    if spec.archive_sha256 and digest.hexdigest() != spec.archive_sha256:
        raise ValueError("workdir: the archive has another sha256 than was asked for")
    return copy


def _switch_user(spec: Spec) -> None:
    owner = owner_of(spec)
    if owner is None:
        return
    if os.geteuid() != 0:
        raise PermissionError(f"uid: only an agent that is root can run a member as uid {owner[0]}")
    os.setgroups([])
    os.setgid(owner[1])
    os.setuid(owner[0])
