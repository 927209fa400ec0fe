"""An archive may be made by anybody. Whatever is wrong with it: nothing outside is touched, nothing is left inside."""

import gzip
import os
import resource
from pathlib import Path

import pytest

from tests.unit.archive.builders import archive, entry, header, pax
from tidegate.archive.unpack import ArchiveError, Limits, check, main, unpack

GOOD = entry("good.py", b"print('hello')\n")

HOSTILE = {
    "zip slip": ([GOOD, entry("../evil")], "leads out"),
    "zip slip inside": ([GOOD, entry("a/../../evil")], "leads out"),
    "dots that would stay inside": ([GOOD, entry("a/b/../c")], "leads out"),
    "absolute path": ([GOOD, entry("/tmp/evil")], "absolute"),
    "two slashes": ([GOOD, entry("//tmp/evil")], "absolute"),
    "absolute path in a pax record": ([GOOD, pax({"path": "/tmp/evil"}), entry("fine")], "absolute"),
    "symbolic link": ([GOOD, header("link", kind=b"2", link="/etc")], "symbolic link"),
    "write through a symbolic link": ([header("d", kind=b"2", link="/tmp"), entry("d/evil")], "symbolic link"),
    "hard link": ([GOOD, header("link", kind=b"1", link="/etc/passwd")], "hard link"),
    "hard link with contents": ([GOOD, entry("link", kind=b"1", link="good.py")], "hard link"),
    "character device": ([GOOD, header("null", kind=b"3")], "character device"),
    "block device": ([GOOD, header("disk", kind=b"4")], "block device"),
    "named pipe": ([GOOD, header("pipe", kind=b"6")], "named pipe"),
    "sparse file of GNU": ([GOOD, header("hole", kind=b"S")], "sparse"),
    "sparse file by pax": ([GOOD, pax({"GNU.sparse.realsize": str(1 << 50)}), entry("hole")], "sparse"),
    "unknown type": ([GOOD, entry("odd", kind=b"Z")], "unknown type"),
    "set-user-id": ([GOOD, entry("sh", mode=0o4755)], "set-user-id"),
    "set-group-id": ([GOOD, entry("sh", mode=0o2755)], "set-user-id"),
    "set-group-id folder": ([GOOD, header("d/", kind=b"5", mode=0o2755)], "set-user-id"),
    "same name twice": ([GOOD, entry("good.py", b"other")], "twice"),
    "same name with a dot": ([GOOD, entry("./good.py", b"other")], "twice"),
    "same name in another Unicode form": ([entry("caf\u00e9"), entry("cafe\u0301")], "twice"),
    "file where a folder is": ([entry("a/b"), entry("a")], "twice"),
    "folder where a file is": ([entry("a"), entry("a/b")], "below a file"),
    "folder entry where a file is": ([entry("a"), header("a/", kind=b"5")], "twice"),
    "huge name": ([GOOD, pax({"path": "a/" * 600 + "x"}), entry("short")], "longer than 1024"),
    "long part": ([GOOD, pax({"path": "x" * 300}), entry("short")], "longer than 255"),
    "deep path": ([GOOD, pax({"path": "a/" * 100 + "x"}), entry("short")], "deeper"),
    "huge extension record": ([GOOD, entry("ext", b"y" * 100_000, kind=b"x")], "64 KiB"),
    "extension that claims terabytes": ([GOOD, header("ext", kind=b"x", size=0o77777777777)], "64 KiB"),
    "empty name": ([GOOD, entry("")], "empty"),
    "name that turns direction": ([GOOD, entry("gpj.\u202eexe")], "control"),
    "name with an escape sequence": ([GOOD, entry("a\x1b[2Jb")], "control"),
    "name with a line break": ([GOOD, entry("a\nb")], "control"),
    "name that is no UTF-8": ([GOOD, entry(b"a\xff\xfeb")], "UTF-8"),
    "overlong dots": ([GOOD, entry(b"\xc0\xae\xc0\xae/evil")], "UTF-8"),
    "NUL in a pax name": ([GOOD, pax({"path": "a\0b"}), entry("short")], "control"),
    "negative size": ([GOOD, header("neg", raw_size=b"\xff" * 12)], "octal"),
    "size in binary": ([GOOD, header("big", raw_size=b"\x80" + b"\0" * 6 + b"\x7f" * 5)], "octal"),
    "size that is no number": ([GOOD, header("odd", raw_size=b"-0000000001\0")], "octal"),
    "pax size that is no number": ([GOOD, pax({"size": "-1"}), entry("short")], "no number"),
    "global names": ([pax({"path": "same"}, kind=b"g"), GOOD], "one name"),
    "endless extensions": ([pax({"comment": "a"})] * 10 + [GOOD], "too many extension"),
    "folder with contents": ([entry("d/", b"abc", kind=b"5")], "contents of its own"),
    "more than the end": ([GOOD, b"\0" * 1024, entry("hidden")], "end mark"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing(case: str, tmp_path: Path) -> None:
    parts, words = HOSTILE[case]
    packed = archive(tmp_path / "a.tgz", *parts)
    inside = tmp_path / "jail" / "work"
    inside.mkdir(parents=True)
    with pytest.raises(ArchiveError, match=words):
        unpack(packed, inside)
    assert list(inside.iterdir()) == []
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.tgz", "jail", "work"]
    assert not Path("/tmp/evil").exists()
    with packed.open("rb") as file, pytest.raises(ArchiveError, match=words):
        check(file)


@pytest.mark.parametrize("keep", [0, 1, 10, 30, 60, -12, -1])
def test_a_truncated_archive_is_refused_and_leaves_nothing(keep: int, tmp_path: Path) -> None:
    packed = archive(tmp_path / "a.tgz", GOOD, entry("big", os.urandom(5000)))
    packed.write_bytes(packed.read_bytes()[:keep])
    inside = tmp_path / "work"
    inside.mkdir()
    with pytest.raises(ArchiveError, match=r"damaged|cut short"):
        unpack(packed, inside)
    assert list(inside.iterdir()) == []


@pytest.mark.parametrize("end", [b"", b"\0" * 100])
def test_an_archive_without_its_end_mark_is_refused(end: bytes, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with pytest.raises(ArchiveError, match="cut short"):
        unpack(archive(tmp_path / "a.tgz", GOOD, end=end), tmp_path / "work")


def test_every_damaged_byte_is_found_or_harmless(tmp_path: Path) -> None:
    """gzip's check sum covers the contents; only its own header's flags, time and system may differ."""
    packed = archive(tmp_path / "a.tgz", GOOD)
    whole = packed.read_bytes()
    harmless = set(range(3, 10))
    for position in range(len(whole)):
        packed.write_bytes(whole[:position] + bytes([whole[position] ^ 0x41]) + whole[position + 1 :])
        inside = tmp_path / f"work-{position}"
        inside.mkdir()
        if position in harmless:
            continue
        with pytest.raises(ArchiveError):
            unpack(packed, inside)
        assert list(inside.iterdir()) == []


def test_a_bomb_is_stopped_long_before_it_has_unfolded(tmp_path: Path) -> None:
    bomb = tmp_path / "a.tgz"
    with gzip.open(bomb, "wb", 9) as out:
        out.write(header("zeros", size=1 << 30))
        for _ in range(64):
            out.write(b"\0" * (1 << 20))
    inside = tmp_path / "work"
    inside.mkdir()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ArchiveError, match="times its size"):
        unpack(bomb, inside)
    assert list(inside.iterdir()) == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


def test_files_and_bytes_are_capped(tmp_path: Path) -> None:
    packed = archive(tmp_path / "a.tgz", *(entry(f"d{n}/f", b"12345") for n in range(4)))
    for limits, words in ((Limits(max_files=7), "more than 7 files"), (Limits(max_bytes=19), "more than 19 bytes")):
        inside = tmp_path / words.replace(" ", "-")
        inside.mkdir()
        with pytest.raises(ArchiveError, match=words):
            unpack(packed, inside, limits=limits)
        assert list(inside.iterdir()) == []
    inside = tmp_path / "fits"
    inside.mkdir()
    assert unpack(packed, inside, limits=Limits(max_files=8, max_bytes=20)).files == 4


def test_only_an_empty_folder_is_unpacked_into(tmp_path: Path) -> None:
    packed = archive(tmp_path / "a.tgz", GOOD)
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("kept")
    with pytest.raises(ArchiveError, match="not empty"):
        unpack(packed, full)
    assert (full / "mine").read_text() == "kept"
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(OSError, match=r"(?i)not a directory|too many levels"):
        unpack(packed, tmp_path / "link")


def test_another_digest_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    packed = archive(tmp_path / "a.tgz", GOOD)
    (tmp_path / "work").mkdir()
    with pytest.raises(ArchiveError, match="another digest"):
        unpack(packed, tmp_path / "work", "0" * 64)


def test_as_a_program_it_says_why_and_exits_65(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "work").mkdir()
    packed = archive(tmp_path / "a.tgz", entry("../evil"))
    assert main([str(packed), str(tmp_path / "work")]) == 65
    assert "leads out" in capsys.readouterr().err
    packed = archive(tmp_path / "b.tgz", GOOD)
    assert main([str(packed), str(tmp_path / "work")]) == 0
    assert main([]) == 2
    assert main([str(tmp_path / "none"), str(tmp_path / "work")]) == 1
