"""The same folder gives the same archive; ignored files stay at home; links are refused by name."""

import ast
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.unit.archive.builders import archive, entry, header, with_tarfile
from tidegate.archive import tar, unpack
from tidegate.archive.pack import members, pack
from tidegate.archive.unpack import ArchiveError, Limits


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def names(folder: Path) -> list[str]:
    return [info.name for _, info in members(folder) if not info.isdir()]


def test_the_same_contents_have_the_same_digest_whenever_and_whoever_packs(tmp_path: Path) -> None:
    files = {"b.py": "b", "a/c.py": "c", "a.py": "a", "ünï.txt": "u"}
    first, second = tree(tmp_path / "1", files), tree(tmp_path / "2", dict(reversed(files.items())))
    os.utime(second / "b.py", (1, 1))
    (second / "a.py").chmod(0o600)
    one, two = pack(first, tmp_path / "1.tgz"), pack(second, tmp_path / "2.tgz")
    assert one.sha256 == two.sha256
    assert (one.files, one.size_bytes) == (4, 4)
    (second / "b.py").chmod(0o755)
    assert pack(second, tmp_path / "3.tgz").sha256 != one.sha256
    assert (tmp_path / "1.tgz").stat().st_mode & 0o777 == 0o600


def test_what_was_packed_comes_out_again(tmp_path: Path) -> None:
    long = "/".join(["folder-with-a-long-name"] * 8) + "/" + "f" * 120
    source = tree(tmp_path / "in", {"run.sh": "#!/bin/sh\n", long: "deep", "empty": "", "名前.py": "n"})
    (source / "run.sh").chmod(0o755)
    (source / "void").mkdir()
    packed = pack(source, tmp_path / "a.tgz")
    out = tmp_path / "out"
    out.mkdir()
    done = unpack.unpack(packed.path, out, packed.sha256)
    assert done.files == 4
    assert (out / long).read_text() == "deep"
    assert (out / "void").is_dir()
    assert (out / "名前.py").read_text() == "n"
    assert os.access(out / "run.sh", os.X_OK)
    assert not (out / "empty").stat().st_mode & 0o111


def test_ignore_files_are_honoured_as_git_does(tmp_path: Path) -> None:
    root = tree(
        tmp_path / "repo",
        {
            ".git/config": "",
            ".git/info/exclude": "excluded.txt\n",
            ".gitignore": "*.log\nbuild/\n/top-only\n# comment\n",
            "top-only": "",
            "excluded.txt": "",
            "a.log": "",
            "build/x": "",
            "src/build.py": "",
            "src/top-only": "",
            "src/.gitignore": "!keep.log\n*.tmp\n",
            "src/keep.log": "",
            "src/b.log": "",
            "src/c.tmp": "",
            "src/deep/d.tmp": "",
            "build/.gitignore": "!x\n",
            "d.tmp": "",
            ".tidegateignore": "/data\n",
            "data/huge": "",
        },
    )
    kept = [".gitignore", ".tidegateignore", "d.tmp", "src/.gitignore", "src/build.py", "src/keep.log", "src/top-only"]
    assert names(root) == kept
    # A folder of a repository obeys the rules above it, too.
    assert names(root / "src") == [".gitignore", "build.py", "keep.log", "top-only"]


ODD = (
    "x.o",
    "important.o",
    "out/1",
    "out/keep",
    "q/cache/z",
    "cache",
    "a/b",
    "a/bc",
    "c/a/b",
    "#odd",
    "name with space",
)


def test_git_itself_agrees_on_what_is_ignored(tmp_path: Path) -> None:
    root = tree(
        tmp_path / "repo",
        {
            ".gitignore": "*.o\n!important.o\nout/*\n!out/keep\n**/cache\n/a/b\nname with space\n\\#odd\n",
            **dict.fromkeys(ODD, ""),
        },
    )
    git = ["git", "-C", str(root), "-c", "core.excludesFile="]
    subprocess.run([*git, "init", "-q"], check=True)
    listed = subprocess.run(
        [*git, "ls-files", "-z", "--others", "--exclude-standard"], check=True, capture_output=True, text=True
    )
    assert names(root) == sorted(filter(None, listed.stdout.split("\0")))


def test_links_and_pipes_are_refused_by_name_unless_they_are_ignored(tmp_path: Path) -> None:
    root = tree(tmp_path / "in", {"a.py": ""})
    (root / "data").symlink_to("/etc")
    with pytest.raises(ArchiveError, match=r"'data' is a symbolic link.*\.tidegateignore"):
        pack(root, tmp_path / "a.tgz")
    (root / ".tidegateignore").write_text("data\npipe\n")
    os.mkfifo(root / "pipe")
    assert pack(root, tmp_path / "a.tgz").files == 2
    (root / ".tidegateignore").write_text("data\n")
    with pytest.raises(ArchiveError, match="'pipe' is no regular file"):
        pack(root, tmp_path / "a.tgz")


def test_a_folder_that_is_too_much_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    root = tree(tmp_path / "in", {f"f{n}": "12345" for n in range(5)})
    with pytest.raises(ArchiveError, match="more than 4 files"):
        pack(root, tmp_path / "a.tgz", Limits(max_files=4))
    with pytest.raises(ArchiveError, match="more than 24 bytes"):
        pack(root, tmp_path / "a.tgz", Limits(max_bytes=24))
    with pytest.raises(ArchiveError, match="no folder"):
        pack(root / "f1", tmp_path / "a.tgz")


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_of_other_tools_are_read_when_they_are_honest(form: int, tmp_path: Path) -> None:
    long = "/".join(["part"] * 30) + "/file.py"
    packed = with_tarfile(tmp_path / "a.tgz", [("./", b""), ("./d/", b""), ("d/a.py", b"a"), (long, b"b")], form)
    out = tmp_path / "out"
    out.mkdir()
    assert unpack.unpack(packed, out).files == 2
    assert (out / long).read_bytes() == b"b"


def test_an_odd_but_harmless_name_stays_a_name(tmp_path: Path) -> None:
    parts = [entry("..\\..\\evil"), entry("C:"), entry("..."), entry("a\uff0e\uff0e"), header("d//e/", kind=b"5")]
    packed = archive(tmp_path / "a.tgz", *parts)
    out = tmp_path / "out"
    out.mkdir()
    unpack.unpack(packed, out)
    assert {path.name for path in out.rglob("*")} == {"..\\..\\evil", "C:", "...", "a\uff0e\uff0e", "d", "e"}


@pytest.mark.parametrize("module", [tar, unpack])
def test_the_unpacker_needs_the_standard_library_alone_and_reads_as_python_3_9(module: object) -> None:
    source = Path(str(module.__dict__["__file__"])).read_text()
    parsed = ast.parse(source, feature_version=(3, 9))
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            roots = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            roots = [node.module or ""]
        else:
            continue
        for root in roots:
            assert root.partition(".")[0] in sys.stdlib_module_names or root == "tidegate.archive.tar", root


def test_python_3_9_unpacks_and_refuses(tmp_path: Path) -> None:
    """The oldest Python of users' images, where this machine has one."""
    places = [*Path.home().glob(".pyenv/versions/3.9.*/bin/python3.9"), Path(shutil.which("python3.9") or "none")]
    # A shim on the PATH may stand for nothing.
    python = next(
        (p for p in places if p.exists() and subprocess.run([p, "-c", ""], check=False).returncode == 0), None
    )
    if python is None:
        pytest.skip("no python3.9 on this machine; the syntax is checked by the test above")
    packed = pack(tree(tmp_path / "in", {"a/b.py": "b"}), tmp_path / "a.tgz")
    hostile = archive(tmp_path / "b.tgz", entry("../evil"))
    (tmp_path / "out").mkdir()
    (tmp_path / "jail").mkdir()
    command = [str(python), "-m", "tidegate.archive.unpack"]
    root = Path(__file__).parents[3]
    good = subprocess.run([*command, str(packed.path), str(tmp_path / "out"), packed.sha256], cwd=root, check=False)
    bad = subprocess.run([*command, str(hostile), str(tmp_path / "jail")], cwd=root, check=False, capture_output=True)
    assert (good.returncode, bad.returncode) == (0, 65)
    assert (tmp_path / "out" / "a" / "b.py").read_text() == "b"
    assert b"leads out" in bad.stderr
