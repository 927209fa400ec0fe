"""Where a member's files lie and who may see them. Root keeps status and spec; the job owns only `job/`."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from tidegate.job import durable


class Folder(NamedTuple):
    """The folder of one member."""

    path: Path

    @property
    def spec(self) -> Path:
        """The request, without the token."""
        return self.path / "spec.json"

    @property
    def status(self) -> Path:
        """How it is, or how it ended."""
        return self.path / "status.json"

    @property
    def lock(self) -> Path:
        """Held by the keeper while it lives."""
        return self.path / "keeper.lock"

    @property
    def log(self) -> Path:
        """Default place of the output."""
        return self.path / "log"

    @property
    def job(self) -> Path:
        """Owned by the job's user."""
        return self.path / "job"

    @property
    def work(self) -> Path:
        """Where the code archive is unpacked and the command starts."""
        return self.job / "work"

    @property
    def notice(self) -> Path:
        """What the member is told."""
        return self.job / "notice.json"

    @property
    def token(self) -> Path:
        """The attempt's token."""
        return self.job / "token"

    def read_status(self) -> Optional[Dict[str, Any]]:
        """None when there is none; a document that cannot be read is an error, for it is ours alone to write."""
        status = durable.read_json(self.status)
        return status if isinstance(status, dict) else None

    def write_status(self, status: Dict[str, Any]) -> None:
        """Durable when it returns."""
        durable.write_json(self.status, status, mode=0o600)


def member_folder(root: Path, launch: str, rank: int) -> Folder:
    """The folder of (launch, rank) below the agent's own; it need not exist."""
    return Folder(root / "members" / launch / str(rank))


def member_folders(root: Path) -> List[Folder]:
    """Every member's folder on disk that has a status."""
    return [Folder(path.parent) for path in sorted((root / "members").glob("*/*/status.json"))]


def make(path: Path, mode: int, owner: Optional[tuple[int, int]] = None) -> None:
    """A folder with exactly this mode and owner."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(mode)
    if owner is not None:
        os.chown(path, owner[0], owner[1])


def try_lock(path: Path) -> Optional[int]:
    """A descriptor that holds the lock until it is closed; None when somebody else holds it."""
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
