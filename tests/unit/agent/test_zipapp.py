"""The one file that goes to images which are not ours: it runs on a bare interpreter and holds only what it says."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.harness.agents import ROOT, agents
from tidegate.agent.build import build_zipapp, sources

# Names of the standard library, or of builtins' methods, that came after 3.9.
TOO_NEW = {"StrEnum", "UTC", "pairwise", "aiter", "anext", "ExceptionGroup", "TaskGroup", "tomllib"}
TOO_NEW_TYPING = {"Self", "TypeAlias", "ParamSpec", "assert_never", "Never", "LiteralString", "Unpack", "override"}
TOO_NEW_KEYWORDS = {("dataclass", "slots"), ("dataclass", "kw_only"), ("zip", "strict")}


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_zipapp(tmp_path_factory.mktemp("zipapp") / "tidegate-agent.pyz")


def test_the_zipapp_is_the_same_each_time(zipapp: Path, tmp_path: Path) -> None:
    again = build_zipapp(tmp_path / "again.pyz")
    assert again.read_bytes() == zipapp.read_bytes()
    assert again.stat().st_mode & 0o111 == 0o111


def test_the_zipapp_holds_helper_agent_and_archive_alone(zipapp: Path) -> None:
    names = zipfile.ZipFile(zipapp).namelist()
    assert {name.split("/")[1] for name in names if name.startswith("tidegate/")} == {
        "agent",
        "archive",
        "job",
        "__init__.py",
    }
    assert "tidegate/archive/pack.py" not in names


def test_every_module_of_it_imports_nothing_but_the_standard_library(zipapp: Path) -> None:
    modules = [
        name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        for name in zipfile.ZipFile(zipapp).namelist()
        if name.startswith("tidegate/") and "__main__" not in name
    ]
    program = (
        "import importlib, sys\n"
        f"sys.path.insert(0, {str(zipapp)!r})\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "from tidegate import job\n"
        "for name in job.__all__: getattr(job, name)\n"
        "known = set(sys.stdlib_module_names) | set(sys.builtin_module_names) | {'tidegate', '__main__'}\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} - known))\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-I", "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_an_agent_from_the_zipapp_runs_members_that_use_the_helper_in_it(zipapp: Path) -> None:
    program = "import os, sys; sys.path.insert(0, os.environ['TIDEGATE_HELPER'])\n"
    program += "from tidegate import job; print(job.context().rank, job.__file__)"
    command = [sys.executable, "-S", "-I", str(zipapp)]
    with agents(1, command=command) as [agent]:
        agent.start("tg-1", argv=[sys.executable, "-S", "-I", "-c", program], env={"RANK": "3", "WORLD_SIZE": "4"})
        assert agent.reaches("ended", "tg-1")["exit_code"] == 0, agent.log("tg-1")
        assert agent.log("tg-1").split() == ["3", f"{zipapp}/tidegate/job/__init__.py"]


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_source_is_python_3_9(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))  # refuses match, except* and the like
    deferred = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            new = TOO_NEW | (TOO_NEW_TYPING if node.module == "typing" else set())
            assert not {alias.name for alias in node.names} & new, f"line {node.lineno}"
        if isinstance(node, ast.Attribute):
            assert node.attr not in TOO_NEW, f"line {node.lineno}"
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            assert not {(name, word.arg) for word in node.keywords} & TOO_NEW_KEYWORDS, f"line {node.lineno}"
    if not deferred:
        unions = [part.lineno for node in ast.walk(tree) for part in _annotations(node) if _has_union(part)]
        assert not unions, f"X | Y in annotations needs `from __future__ import annotations`: lines {unions}"


def _annotations(node: ast.AST) -> list[ast.expr]:
    found = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    return [part for part in found if isinstance(part, ast.expr)]


def _has_union(annotation: ast.expr) -> bool:
    return any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.BitOr) for part in ast.walk(annotation))
