"""Sizes and habits that keep every file one that somebody would like to open."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_LINES = 400
MAX_FUNCTION_LINES = 70
PACKAGES = ("tidegate", "policies", "backends", "workflows", "gateway")


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return [ROOT / name for name in listed if (ROOT / name).is_file()]


def python_files() -> list[Path]:
    return [path for path in tracked("*.py") if "migrations/versions" not in path.as_posix()]


@pytest.mark.parametrize("path", python_files(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_no_file_is_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", python_files(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_no_function_is_too_long(path: Path) -> None:
    for function in functions(ast.parse(path.read_text())):
        lines = (function.end_lineno or 0) - function.lineno + 1
        assert lines <= MAX_FUNCTION_LINES, f"{function.name} has {lines} lines"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_says_what_it_is_for(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        if "migrations/versions" in path.as_posix():
            continue
        text = path.read_text()
        assert not text.strip() or ast.get_docstring(ast.parse(text)), f"{path.relative_to(ROOT)} has no docstring"


def test_no_kind_of_backend_is_named_outside_its_folder() -> None:
    """No `if kind == ...`: behaviour follows declared capabilities."""
    ladder = re.compile(r"""(kind|backend|type)\s*(==|!=|in)\s*[\[({]?["'](slurm|kubernetes|aws|local)["']""")
    for path in python_files():
        if path.relative_to(ROOT).parts[0] in PACKAGES:
            assert not ladder.search(path.read_text()), path


def test_no_shell_ever_runs_a_users_text() -> None:
    for path in python_files():
        if path.relative_to(ROOT).parts[0] in PACKAGES:
            assert "shell=True" not in path.read_text(), path
            assert "os.system(" not in path.read_text(), path


def test_the_tree_names_no_registry_and_no_private_path() -> None:
    hosts = r"pypi\.or[g]|pythonhosted\.or[g]|npmjs\.or[g]|deb\.debian\.or[g]|proxy\.golang\.or[g]|sum\.golang\.or[g]"
    for path in tracked():
        if path.suffix in {".png", ".gz", ".whl"}:
            continue
        text = path.read_text(errors="replace")
        assert not re.search(hosts, text), f"{path} names a package registry"
        assert not re.search(r"(^|[^a-zA-Z0-9_.])/wor[k]/", text), f"{path} names a path of one machine"


def test_importing_any_module_does_nothing() -> None:
    """In a fresh interpreter without settings: no engine, no client, no thread, no file is opened by an import."""
    code = (
        "import sys, threading, importlib, pkgutil\n"
        "names = []\n"
        "for package in ('tidegate', 'policies', 'backends', 'workflows', 'gateway'):\n"
        "    module = importlib.import_module(package)\n"
        "    for info in pkgutil.walk_packages(module.__path__, package + '.'):\n"
        "        if '.migrations' in info.name or info.name.endswith('__main__'): continue\n"
        "        importlib.import_module(info.name); names.append(info.name)\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "print(len(names))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30
