"""Makes the code archive of a folder: the same contents give the same bytes, hence the same digest and one upload.

Honours `.gitignore` (nested ones, and those above up to the repository's root) and `.tidegateignore`, which has the
same syntax and is for what git must keep and a job does not need. Links and devices are refused, never followed.
"""

import gzip
import hashlib
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from pathspec import GitIgnoreSpec

from tidegate.archive.tar import ArchiveError, Limits

IGNORE_FILES: Final = (".gitignore", ".tidegateignore")
_LEVEL: Final = 6


@dataclass(frozen=True, slots=True)
class Packed:
    """Where the archive is and what is in it."""

    path: Path
    sha256: str
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Rules:
    """The ignore rules of one folder; `base` is that folder."""

    base: Path
    spec: GitIgnoreSpec

    def verdict(self, path: Path, *, is_folder: bool) -> bool | None:
        """True: ignored, False: kept by a `!` rule, None: nothing said."""
        relative = path.relative_to(self.base).as_posix() + ("/" if is_folder else "")
        return self.spec.check_file(relative).include


def pack(folder: Path, target: Path, limits: Limits | None = None) -> Packed:
    """Write the tar.gz of `folder` to `target` (made new, 0600). ArchiveError names what may not be in it."""
    limits = limits or Limits()
    if not folder.is_dir():
        raise ArchiveError(f"workdir: {str(folder)!r} is no folder; name one that exists")
    files = size = entries = 0
    with _create(target) as raw:
        with (
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=_LEVEL, mtime=0) as squeezed,
            tarfile.open(fileobj=squeezed, mode="w", format=tarfile.PAX_FORMAT) as out,
        ):
            for path, info in members(folder):
                entries += 1
                size += info.size
                if entries > limits.max_files:
                    raise ArchiveError(f"workdir: more than {limits.max_files} files; add rules to .tidegateignore")
                if size > limits.max_bytes:
                    raise ArchiveError(f"workdir: more than {limits.max_bytes} bytes; add rules to .tidegateignore")
                if info.isdir():
                    out.addfile(info)
                    continue
                files += 1
                _add(out, path, info)
        raw.flush()
    return Packed(target, _digest(target), files, size)


def members(folder: Path) -> Iterator[tuple[Path, tarfile.TarInfo]]:
    """What goes in, in the order of the names' bytes, each with the header that is written for it."""
    root = folder.resolve()
    yield from _walk(root, root, _rules_above(root))


def _walk(root: Path, folder: Path, rules: tuple[_Rules, ...]) -> Iterator[tuple[Path, tarfile.TarInfo]]:
    rules = (*rules, *_rules_in(folder))
    with os.scandir(folder) as listing:
        entries = sorted(listing, key=lambda entry: os.fsencode(entry.name))
    for entry in entries:
        path = Path(entry.path)
        is_folder = entry.is_dir(follow_symlinks=False)
        if (is_folder and entry.name == ".git") or _ignored(path, rules, is_folder=is_folder):
            continue
        shown = path.relative_to(root).as_posix()
        yield path, _header(shown, entry.stat(follow_symlinks=False))
        if is_folder:
            yield from _walk(root, path, rules)


def _ignored(path: Path, rules: tuple[_Rules, ...], *, is_folder: bool) -> bool:
    """The deepest folder that says anything decides; an ignored folder is not looked into, as git does it."""
    for rule in reversed(rules):
        verdict = rule.verdict(path, is_folder=is_folder)
        if verdict is not None:
            return verdict
    return False


def _rules_in(folder: Path) -> tuple[_Rules, ...]:
    return tuple(rule for name in IGNORE_FILES if (rule := _read_rules(folder, folder / name)) is not None)


def _read_rules(base: Path, path: Path) -> _Rules | None:
    if not path.is_file() or path.is_symlink():
        return None
    lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return _Rules(base, GitIgnoreSpec.from_lines(lines))


def _rules_above(root: Path) -> tuple[_Rules, ...]:
    """Rules of the folders between the repository's root and `root`; none when it is in no repository."""
    above = [root, *root.parents]
    top = next((index for index, folder in enumerate(above) if (folder / ".git").exists()), None)
    if top is None:
        return ()
    repository = above[top]
    excluded = _read_rules(repository, repository / ".git" / "info" / "exclude")
    rules = [] if excluded is None else [excluded]
    for folder in reversed(above[1 : top + 1]):
        rules.extend(_rules_in(folder))
    return tuple(rules)


def _header(name: str, found: os.stat_result) -> tarfile.TarInfo:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ArchiveError(f"workdir: the name {name!r} is not UTF-8; rename the file or ignore it") from error
    info = tarfile.TarInfo(name)
    info.mtime = 0
    if stat.S_ISDIR(found.st_mode):
        info.type = tarfile.DIRTYPE
        info.mode = 0o755
        return info
    if not stat.S_ISREG(found.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "no regular file"
        raise ArchiveError(
            f"workdir: {name!r} is {what}; only files and folders are sent. Replace it or name it in .tidegateignore"
        )
    info.size = found.st_size
    info.mode = 0o755 if found.st_mode & 0o111 else 0o644
    return info


def _add(out: tarfile.TarFile, path: Path, info: tarfile.TarInfo) -> None:
    # O_NOFOLLOW: between the listing and now somebody may have put a link there.
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(opened, "rb") as source:
        if os.fstat(opened).st_size != info.size:
            raise ArchiveError(f"workdir: {info.name!r} changes while it is read; submit again when it is at rest")
        try:
            out.addfile(info, source)
        except OSError as error:
            raise ArchiveError(f"workdir: {info.name!r} could not be read whole: {error}") from error


def _create(target: Path) -> IO[bytes]:
    return os.fdopen(os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb")


def _digest(path: Path) -> str:
    with path.open("rb") as packed:
        return hashlib.file_digest(packed, "sha256").hexdigest()
