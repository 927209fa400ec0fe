"""What the kernel tells of processes, and the two prctl calls. On systems without /proc it sees process groups only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Dict, List, Set

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")


def become_subreaper() -> None:
    """Orphans among our descendants become our children, so that none escapes by forking twice."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when its parent ends. Call it after the user has been switched, which clears it."""
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it ended before the call
        os.kill(os.getpid(), signal.SIGKILL)


def descendants(root: int) -> List[int]:
    """All living processes below `root`, zombies left out."""
    children: Dict[int, List[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    found: List[int] = []
    todo = list(children.get(root, ()))
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, ())
    return found


def catchers(pids: List[int], number: int) -> Set[int]:
    """Those that have a handler for the signal. The others would be killed by it, or would not hear it."""
    found = set()
    for pid in pids:
        for line in _lines(pid):
            if line.startswith("SigCgt:") and int(line.split()[1], 16) >> (number - 1) & 1:
                found.add(pid)
    return found


def send(pid: int, number: int) -> None:
    """To one process; that it has gone is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def send_group(group: int, number: int) -> None:
    """To a process group; that it has gone is no error. macOS answers EPERM for a group of zombies."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def can_look() -> bool:
    """Whether /proc tells of processes here."""
    return (_PROC / "self" / "stat").exists()


def _parents() -> Dict[int, int]:
    parents: Dict[int, int] = {}
    if not can_look():
        return parents
    for path in _PROC.iterdir():
        if not path.name.isdigit():
            continue
        try:
            # The name in brackets may itself hold brackets and spaces: split behind the last one.
            state, parent = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it ended while we looked
        if state != "Z":
            parents[int(path.name)] = int(parent)
    return parents


def _lines(pid: int) -> List[str]:
    try:
        return (_PROC / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return []


def _prctl(option: int, value: int) -> None:
    if not sys.platform.startswith("linux"):
        return
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
