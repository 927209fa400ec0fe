"""Files that are either whole or not there: temporary name, fsync, rename, fsync of the folder.

Decides nothing about what is written. Shared by checkpoints and the node agent.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

CHUNK_BYTES = 1 << 20
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)


def sync_folder(folder: Path) -> None:
    """Make the names inside a folder durable."""
    descriptor = os.open(str(folder), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync(file: BinaryIO) -> None:
    """Make the bytes of an open file durable."""
    os.fsync(file.fileno())


def write_bytes(path: Path, data: bytes, *, mode: int = 0o644, owner: tuple[int, int] | None = None) -> None:
    """Replace `path` whole and durably. The mode is exact, whatever the umask; `owner` is (uid, gid)."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    # O_EXCL: in a folder that a job owns nobody may lay a link in our way.
    descriptor = os.open(str(temporary), os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        os.fchmod(file.fileno(), mode)
        if owner is not None:
            os.fchown(file.fileno(), owner[0], owner[1])
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def write_json(path: Path, value: Any, *, mode: int = 0o644, owner: tuple[int, int] | None = None) -> None:
    """`write_bytes` of a JSON document."""
    write_bytes(path, json.dumps(value, indent=1, sort_keys=True).encode() + b"\n", mode=mode, owner=owner)


def read_json(path: Path) -> Any:
    """The document, or None when there is no such file. ValueError when it is no JSON."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


def sha256_of(path: Path) -> str:
    """Lower-case hex SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for piece in iter(lambda: file.read(CHUNK_BYTES), b""):
            digest.update(piece)
    return digest.hexdigest()


class HashingWriter(io.RawIOBase):
    """A sink that digests what passes. It cannot seek, so the digest is of exactly what lies in the file.

    `numpy.savez`, `torch.save`, `pickle` and `zipfile` all write to sinks that cannot seek.
    """

    def __init__(self, sink: BinaryIO) -> None:
        super().__init__()
        self._sink = sink
        self._digest = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._sink.write(view)
        self._digest.update(view)
        self.size += view.nbytes
        return view.nbytes

    def hexdigest(self) -> str:
        """Of all bytes so far."""
        return self._digest.hexdigest()
