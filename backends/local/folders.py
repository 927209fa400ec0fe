"""The folder that an attempt saves into, made for the tenant's user where the storage lies on this machine.

Made by root in a tree where tenants may write, so nothing is followed that a tenant could have planted.
"""

import os
import stat
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit

from backends.errors import Misconfigured

OWN_LEVELS: Final = 2  # the attempt's folder and its job's are the tenant's, what lies above is passed through
OWN_MODE, PASS_MODE = 0o700, 0o711


def local_path(url: str) -> PurePosixPath | None:
    """The path of a `file://` URL or of a plain absolute path; None for any other storage."""
    parts = urlsplit(url)
    if parts.scheme not in {"", "file"} or parts.netloc not in {"", "localhost"}:
        return None
    path = PurePosixPath(unquote(parts.path))
    return path if path.is_absolute() and ".." not in path.parts else None


def make_for(url: str, uid: int) -> None:
    """Make what is missing of the folder, its last two levels owned by `uid`. What exists stays as it is."""
    path = local_path(url)
    if path is None:
        return
    try:
        _make(path.parts[1:], uid)
    except OSError as error:
        text = f"{error.filename or path}: {error.strerror}"
        raise Misconfigured(f"checkpoint url {url} cannot be made for its tenant: {text}") from error


def _make(names: tuple[str, ...], uid: int) -> None:
    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        for level, name in enumerate(names):
            made = False
            with suppress(FileExistsError):
                os.mkdir(name, OWN_MODE, dir_fd=here)
                made = True
            below = _enter(here, name)
            os.close(here)
            here = below
            if made and len(names) - level <= OWN_LEVELS:
                os.fchown(here, uid, uid)
            elif made:
                os.fchmod(here, PASS_MODE)
    finally:
        os.close(here)


def _enter(here: int, name: str) -> int:
    """Open a folder by name. A link is followed only if root made it."""
    found = os.stat(name, dir_fd=here, follow_symlinks=False)
    follow = stat.S_ISLNK(found.st_mode) and found.st_uid == 0
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | (0 if follow else os.O_NOFOLLOW), dir_fd=here)
