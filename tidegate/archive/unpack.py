"""Opens a code archive into an EMPTY folder, as whoever calls it; on any error the folder is left empty again.

Never follows a link, never overwrites, never sets an owner, a time or a special mode bit. Standard library, Python 3.9.
Run as a program it is `python -m tidegate.archive.unpack ARCHIVE FOLDER [SHA256]`, for use under another uid.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tidegate.archive.tar import Archive, ArchiveError, Limits

__all__ = ["ArchiveError", "Limits", "Unpacked", "check", "main", "unpack"]

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REFUSED_EXIT = 65


class Unpacked(NamedTuple):
    """What there was in it."""

    files: int
    folders: int
    size_bytes: int


def check(packed: BinaryIO, sha256: str | None = None, limits: Limits | None = None) -> Unpacked:
    """Judge an archive without writing anything. ArchiveError says what is wrong with it."""
    _check_digest(packed, sha256)
    files = folders = size = 0
    for member in Archive(packed, limits):
        files += not member.is_folder
        folders += member.is_folder
        size += member.size
    return Unpacked(files, folders, size)


def unpack(
    archive: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    sha256: str | None = None,
    limits: Limits | None = None,
) -> Unpacked:
    """Unpack `archive` into the existing, empty `folder`; with `sha256`, only if the archive has that digest.

    ArchiveError: refused, and the folder is empty. OSError: the machine could not (disk full), and it is empty too.
    Files become 0644 or 0755 and folders 0755, less the umask.
    """
    with Path(archive).open("rb") as packed:
        _check_digest(packed, sha256)
        root = os.open(folder, _FOLDER)
        try:
            if os.listdir(root):  # noqa: PTH208  (by descriptor, so that the folder cannot be exchanged)
                raise ArchiveError(f"{os.fspath(folder)!r} is not empty; a code archive goes into a new folder")
            try:
                return _write(Archive(packed, limits), root)
            except BaseException:
                _empty(root)
                raise
        finally:
            os.close(root)


def _check_digest(packed: BinaryIO, sha256: str | None) -> None:
    if sha256 is None:
        return
    digest = hashlib.sha256()
    for chunk in iter(lambda: packed.read(1 << 20), b""):
        digest.update(chunk)
    if digest.hexdigest() != sha256.lower():
        raise ArchiveError(f"the archive has another digest than {sha256}; it was changed or cut short on its way")
    packed.seek(0)


def _write(archive: Archive, root: int) -> Unpacked:
    files = folders = size = 0
    # The last folder stays open: members come grouped by folder.
    here: tuple[tuple[str, ...], int] = ((), os.dup(root))
    try:
        for member in archive:
            parent = member.parts if member.is_folder else member.parts[:-1]
            if parent != here[0]:
                opened = _open_folder(root, parent)
                os.close(here[1])
                here = (parent, opened)
            if member.is_folder:
                folders += 1
                continue
            files += 1
            size += member.size
            mode = 0o755 if member.executable else 0o644
            target = os.open(member.parts[-1], _NEW_FILE, mode, dir_fd=here[1])
            with os.fdopen(target, "wb") as out:
                for chunk in archive.contents():
                    out.write(chunk)
    finally:
        os.close(here[1])
    return Unpacked(files, folders, size)


def _open_folder(root: int, parts: Sequence[str]) -> int:
    """Descend one part at a time, so that no link on the way is ever followed; makes what is missing."""
    opened = os.dup(root)
    for part in parts:
        try:
            try:
                inner = os.open(part, _FOLDER, dir_fd=opened)
            except FileNotFoundError:
                os.mkdir(part, 0o755, dir_fd=opened)
                inner = os.open(part, _FOLDER, dir_fd=opened)
        finally:
            os.close(opened)
        opened = inner
    return opened


def _empty(root: int) -> None:
    """Remove all below an open folder, by descriptors: nothing outside can be reached whatever happens beside us."""
    for name in os.listdir(root):
        try:
            inner = os.open(name, _FOLDER, dir_fd=root)
        except OSError:
            os.unlink(name, dir_fd=root)
            continue
        try:
            _empty(inner)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=root)


def main(argv: list[str] | None = None) -> int:
    """0: unpacked. 65: refused, with the reason on standard error. 1: the machine could not."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) not in (2, 3):
        sys.stderr.write("usage: python -m tidegate.archive.unpack ARCHIVE FOLDER [SHA256]\n")
        return 2
    try:
        done = unpack(arguments[0], arguments[1], arguments[2] if len(arguments) > 2 else None)  # noqa: PLR2004
    except ArchiveError as error:
        sys.stderr.write(f"{error}\n")
        return _REFUSED_EXIT
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{done.files} files, {done.folders} folders, {done.size_bytes} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
