"""Reads tar.gz archives whose maker may be hostile: header by header, every size bounded before it is believed.

Decides which members are acceptable (regular files and folders under one root, plain names, no links, devices or set-id
bits) and never touches the file system. Standard library, Python 3.9: it runs in users' images. Not `tarfile`: the old
ones there follow links and negative sizes (CVE-2007-4559, CVE-2025-4517, CVE-2025-8194).
"""

from __future__ import annotations

import gzip
import unicodedata
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

BLOCK = 512
_CHUNK = 1 << 16
_MAX_EXTENSION = 64 * 1024
_MAX_PATH_BYTES = 1024
_MAX_PART_BYTES = 255
_MAX_DEPTH = 64
_MAX_DIGITS = 18
# The ratio is judged only beyond this size: a few megabytes of zeros hurt nobody.
_RATIO_FLOOR = 16 << 20
# Letters that turn the text around them, so that a listing shows another name than the one opened.
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
_REFUSED = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a named pipe",
    b"S": "a sparse file",
    b"V": "a volume label",
    b"M": "a continued file",
}


class ArchiveError(Exception):
    """The archive is refused; the text names the member and the remedy."""


class Limits(NamedTuple):
    """What an archive may unpack to."""

    max_files: int = 100_000
    max_bytes: int = 4 << 30
    max_ratio: int = 200


class Member(NamedTuple):
    """A file or folder: its path in parts, its size, whether it may be executed."""

    parts: tuple[str, ...]
    is_folder: bool
    size: int
    executable: bool

    @property
    def path(self) -> str:
        """As text."""
        return "/".join(self.parts)


class _Counted:
    """Decompresses, and stops as soon as there is more than the limits allow."""

    def __init__(self, packed: BinaryIO, limits: Limits) -> None:
        self._packed = packed
        self._plain = gzip.GzipFile(fileobj=packed, mode="rb")
        self._limits = limits
        self._seen = 0
        # Headers and padding cost up to three blocks a member, besides the contents.
        self._most = limits.max_bytes + (limits.max_files + 2) * 3 * BLOCK

    def some(self, size: int) -> bytes:
        """Up to `size` bytes, at most one chunk; empty at the end."""
        try:
            data = self._plain.read(min(size, _CHUNK))
        except (EOFError, OSError, zlib.error) as error:
            raise ArchiveError("the archive is damaged or cut short; pack it again") from error
        self._seen += len(data)
        if self._seen > self._most:
            raise ArchiveError(f"the archive unpacks to more than {self._limits.max_bytes} bytes; leave data out of it")
        if self._seen > max(_RATIO_FLOOR, self._limits.max_ratio * self._packed.tell()):
            raise ArchiveError(
                f"the archive unpacks to more than {self._limits.max_ratio} times its size; leave such files out of it"
            )
        return data

    def exactly(self, size: int) -> bytes:
        """`size` bytes, which the caller has bounded."""
        parts = []
        while size:
            data = self.some(size)
            if not data:
                raise ArchiveError("the archive is cut short; pack it again")
            parts.append(data)
            size -= len(data)
        return b"".join(parts)


class Archive:
    """Iterate over members; read each file's `contents()` before asking for the next one (or leave it, to skip it)."""

    def __init__(self, packed: BinaryIO, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._source = _Counted(packed, self._limits)
        self._left = 0
        self._padding = 0

    def contents(self) -> Iterator[bytes]:
        """The present file in chunks."""
        while self._left:
            data = self._source.some(self._left)
            if not data:
                raise ArchiveError("the archive is cut short; pack it again")
            self._left -= len(data)
            yield data
        self._source.exactly(self._padding)
        self._padding = 0

    def __iter__(self) -> Iterator[Member]:
        """Every member once, in the archive's order. ArchiveError at the first that is not acceptable."""
        kinds: dict[str, bool] = {}
        total = 0
        while True:
            header = self._header()
            if header is None:
                break
            block, long_path, long_size = header
            member = _member(block, long_path, long_size)
            self._left = member.size
            self._padding = -member.size % BLOCK
            total += member.size
            if total > self._limits.max_bytes:
                raise ArchiveError(
                    f"the archive unpacks to more than {self._limits.max_bytes} bytes; leave data out of it"
                )
            if member.parts:
                _place(member, kinds)
                if len(kinds) > self._limits.max_files:
                    raise ArchiveError(f"the archive holds more than {self._limits.max_files} files and folders")
                yield member
            for _ in self.contents():
                pass
        self._only_zeros_follow()

    def _header(self) -> tuple[bytes, str | None, int | None] | None:
        """The next real header with what extension records before it said; None at the end mark."""
        path: str | None = None
        size: int | None = None
        for _ in range(4):
            block = self._source.exactly(BLOCK)
            if not any(block):
                if path is not None or size is not None:
                    raise ArchiveError("the archive ends after an extension record; pack it again")
                return None
            _check_sum(block)
            kind = block[156:157]
            if kind not in (b"x", b"g", b"L"):
                return block, path, size
            length = _number(block[124:136])
            if length > _MAX_EXTENSION:
                raise ArchiveError("an extension record of the archive is longer than 64 KiB; pack it again")
            text = self._source.exactly(length + -length % BLOCK)[:length]
            if kind == b"L":
                path = _text(text.rstrip(b"\0"))
                continue
            said = _pax(text)
            if kind == b"g" and ("path" in said or "size" in said):
                raise ArchiveError("the archive gives one name or size to all its files; pack it again")
            if kind == b"x":
                path = said.get("path", path)
                size = _decimal(said["size"]) if "size" in said else size
        raise ArchiveError("the archive has too many extension records for one file; pack it again")

    def _only_zeros_follow(self) -> None:
        while True:
            rest = self._source.some(_CHUNK)
            if not rest:
                return
            if any(rest):
                raise ArchiveError("something follows the end mark of the archive; pack it again")


def _check_sum(block: bytes) -> None:
    plain = sum(block) - sum(block[148:156]) + 8 * ord(" ")
    if _number(block[148:156]) != plain:
        raise ArchiveError("this is no tar archive, or it is damaged; pack it again")


def _number(field: bytes) -> int:
    """An octal field. The binary form of GNU tar, which can be negative, is refused."""
    text = field.strip(b" \0")
    if not text:
        return 0
    if any(byte not in b"01234567" for byte in text):
        raise ArchiveError("a number in the archive is not octal; pack it again with a standard tar")
    return int(text, 8)


def _decimal(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_DIGITS:
        raise ArchiveError("a size in the archive is no number; pack it again")
    return int(text)


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArchiveError(f"the name {raw[:80]!r} is not UTF-8; rename the file") from error


def _pax(text: bytes) -> dict[str, str]:
    """Records `<length> <key>=<value>\\n` of one extension header. Sparse files are refused by their keys."""
    said: dict[str, str] = {}
    while text:
        head, space, _ = text.partition(b" ")
        length = _decimal(head.decode("ascii", "replace")) if space else 0
        record = text[len(head) + 1 : length]
        if length <= len(head) + 1 or length > len(text) or record[-1:] != b"\n":
            raise ArchiveError("an extension record of the archive is damaged; pack it again")
        key, equals, value = record[:-1].partition(b"=")
        if not equals:
            raise ArchiveError("an extension record of the archive is damaged; pack it again")
        if key.startswith(b"GNU.sparse"):
            raise ArchiveError("the archive contains a sparse file; pack it without --sparse")
        if key in (b"path", b"size"):
            said[key.decode("ascii")] = _text(value)
        text = text[length:]
    return said


def _member(block: bytes, long_path: str | None, long_size: int | None) -> Member:
    name = long_path
    if name is None:
        name = _text(block[:100].split(b"\0", 1)[0])
        prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
        if prefix:
            name = f"{_text(prefix)}/{name}"
    kind = block[156:157]
    if kind in _REFUSED:
        raise ArchiveError(f"{name[:200]!r} is {_REFUSED[kind]}; only files and folders may be in a code archive")
    if kind not in (b"0", b"\0", b"7", b"5"):
        raise ArchiveError(f"{name[:200]!r} is of an unknown type {kind!r}; only files and folders may be in it")
    mode = _number(block[100:108])
    if mode & 0o6000:
        raise ArchiveError(f"{name[:200]!r} is set-user-id or set-group-id; take that bit away: chmod ug-s")
    is_folder = kind == b"5" or (kind == b"\0" and name.endswith("/"))
    size = _number(block[124:136]) if long_size is None else long_size
    if is_folder and size:
        raise ArchiveError(f"the folder {name[:200]!r} has contents of its own; pack it again")
    if not is_folder and name.endswith("/"):
        raise ArchiveError(f"the file {name[:200]!r} has the name of a folder; pack it again")
    return Member(_parts(name), is_folder, size, bool(mode & 0o111))


def _parts(name: str) -> tuple[str, ...]:
    """The path in parts; empty for the root itself (`./`)."""
    shown = repr(name[:200])
    if not name or name.startswith("/"):
        raise ArchiveError(f"{shown} is an absolute or empty path; pack with paths relative to the folder")
    if len(name.encode("utf-8")) > _MAX_PATH_BYTES:
        raise ArchiveError(f"the path {shown}... is longer than {_MAX_PATH_BYTES} bytes; shorten it")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise ArchiveError(f"{shown} leads out of the folder; pack without `..`")
    if len(parts) > _MAX_DEPTH:
        raise ArchiveError(f"{shown} lies deeper than {_MAX_DEPTH} folders; flatten it")
    for part in parts:
        if len(part.encode("utf-8")) > _MAX_PART_BYTES:
            raise ArchiveError(f"a name in {shown} is longer than {_MAX_PART_BYTES} bytes; shorten it")
    if any(unicodedata.category(letter) == "Cc" or letter in _TURNING for letter in name):
        raise ArchiveError(f"{shown} contains a control character; rename the file")
    return parts


def _place(member: Member, kinds: dict[str, bool]) -> None:
    """Refuse a second member of the same name and a file that stands where a folder is needed.

    Names are compared in Unicode's composed form: two that look the same are the same.
    """
    path = ""
    for part in member.parts[:-1]:
        path += "/" + unicodedata.normalize("NFC", part)
        if not kinds.setdefault(path, True):
            raise ArchiveError(f"{member.path!r} lies below a file; pack it again")
    path += "/" + unicodedata.normalize("NFC", member.parts[-1])
    if path in kinds and not (member.is_folder and kinds[path]):
        raise ArchiveError(f"{member.path!r} is there twice; pack it again")
    kinds[path] = member.is_folder
