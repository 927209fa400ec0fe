"""Archives written by hand, header by header: what no honest tool writes, a hostile one does."""

import gzip
import io
import tarfile
from pathlib import Path

BLOCK = 512


def header(
    name: bytes | str,
    *,
    size: int = 0,
    kind: bytes = b"0",
    mode: int = 0o644,
    link: str = "",
    raw_size: bytes | None = None,
) -> bytes:
    """One ustar header with a right checksum, whatever stands in it."""
    raw = name.encode() if isinstance(name, str) else name
    block = bytearray(BLOCK)
    block[0 : len(raw[:100])] = raw[:100]
    block[100:108] = b"%07o\0" % mode
    block[108:116] = block[116:124] = b"%07o\0" % 0
    block[124:136] = raw_size or b"%011o\0" % size
    block[136:148] = b"%011o\0" % 0
    block[156:157] = kind
    block[157 : 157 + len(link)] = link.encode()
    block[257:265] = b"ustar\x0000"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def entry(name: bytes | str, content: bytes = b"x", **more: object) -> bytes:
    """A file with its content and padding."""
    return header(name, size=len(content), **more) + content + b"\0" * (-len(content) % BLOCK)  # type: ignore[arg-type]


def pax(records: dict[str, str], kind: bytes = b"x") -> bytes:
    """An extension header."""
    text = b""
    for key, value in records.items():
        rest = f" {key}={value}\n".encode()
        length = len(rest) + 1
        while len(str(length)) + len(rest) != length:
            length = len(str(length)) + len(rest)
        text += str(length).encode() + rest
    return entry("ext", text, kind=kind)


def archive(path: Path, *parts: bytes, end: bytes = b"\0" * 1024, level: int = 6) -> Path:
    """The parts, an end mark, gzip around it."""
    path.write_bytes(gzip.compress(b"".join(parts) + end, level))
    return path


def with_tarfile(path: Path, members: list[tuple[str, bytes]], form: int) -> Path:
    """As the standard library writes it, in the given format."""
    with tarfile.open(path, "w:gz", format=form) as out:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
            out.addfile(info, io.BytesIO(content))
    return path
