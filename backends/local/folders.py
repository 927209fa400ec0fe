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
    names = path.parts[1:]
    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        for level, name in enumerate(names):
            own = len(names) - level <= OWN_LEVELS
            with suppress(FileExistsError):
                os.mkdir(name, OWN_MODE if own else PASS_MODE, dir_fd=here)
                os.chmod(name, OWN_MODE if own else PASS_MODE, dir_fd=here)
                if own:
                    os.chown(name, uid, uid, dir_fd=here, follow_symlinks=False)
            below = _enter(here, name, url)
            os.close(here)
            here = below
    finally:
        os.close(here)


def _enter(here: int, name: str, url: str) -> int:
    """Open a folder by name. A link is followed only if root made it."""
    found = os.stat(name, dir_fd=here, follow_symlinks=False)
    follow = stat.S_ISLNK(found.st_mode) and found.st_uid == 0
    flags = os.O_RDONLY | os.O_DIRECTORY | (0 if follow else os.O_NOFOLLOW)
    try:
        return os.open(name, flags, dir_fd=here)
    except OSError as error:
        raise Misconfigured(f"checkpoint url {url}: {name} is no folder that may be entered; remove it") from error
