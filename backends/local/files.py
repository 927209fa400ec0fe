"""Small durable files, locks between processes, and who a process is. Standard library only: instances start fast."""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

PRIVATE_FILE = 0o600
LOCK_PAUSE_S = 0.01


class LockTimeoutError(Exception):
    """Another process held the lock for the whole time."""


class Identity(NamedTuple):
    """A process as itself: its number may be given again, the pair with its start time is not."""

    pid: int
    ticks: int


def write_json(path: Path, value: Any) -> None:
    """Replace the file whole, so that it survives a crash: temporary file, fsync, rename, fsync of the folder."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make what was renamed or removed in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> Any:
    """The value, or None where there is no such file. Anything else that is wrong with it raises."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None


def mtime_ns(path: Path) -> int:
    """When a file was last replaced; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return 0


@contextmanager
def locked(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold an exclusive lock on a file among all threads and processes; LockTimeoutError when it is not to be had."""
    deadline = time.monotonic() + timeout_s
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() >= deadline:
                raise LockTimeoutError(path.name)
            time.sleep(LOCK_PAUSE_S)
        yield
    finally:
        os.close(descriptor)  # The lock goes with its descriptor.


def identity(pid: int) -> Identity | None:
    """Who runs under this number now; None for nobody, and for a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()  # The name before it may hold blanks and brackets.
    return None if fields[0] in {b"Z", b"X"} else Identity(pid, int(fields[19]))


def alive(who: Identity | None) -> bool:
    """Whether that very process lives."""
    return who is not None and identity(who.pid) == who


def parents() -> dict[int, int]:
    """pid → parent's pid of every process."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError, ValueError):
                text = Path(f"/proc/{entry.name}/stat").read_bytes()
                found[int(entry.name)] = int(text[text.rindex(b")") + 2 :].split()[1])
    return found
