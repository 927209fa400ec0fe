"""The client's wheel ships `tidegate` and nothing else, with the same version and dependencies as the root says."""

import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
CLIENT = ROOT / "packaging" / "client"


def project(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    done = subprocess.run(build, cwd=CLIENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_contains_tidegate_and_only_that(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"tidegate", f"tidegate-{project(CLIENT)['version']}.dist-info"}
    packed = {name for name in wheel.namelist() if name.endswith(".py")}
    assert packed == {path.relative_to(ROOT).as_posix() for path in (ROOT / "tidegate").rglob("*.py")}
    assert {"tidegate/schema/job.schema.json", "tidegate/py.typed"} <= set(wheel.namelist())
    assert not [name for name in wheel.namelist() if "__pycache__" in name or name.endswith(".pyc")]


def test_its_dependencies_are_the_roots_base_list(wheel: zipfile.ZipFile) -> None:
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    said = Parser().parsestr(wheel.read(metadata).decode())
    assert sorted(said.get_all("Requires-Dist") or []) == sorted(project(ROOT)["dependencies"])
    assert said["Requires-Python"] == project(ROOT)["requires-python"]
    assert said["Version"] == project(ROOT)["version"]
    assert said["License-Expression"] == project(ROOT)["license"]


def test_the_wheel_alone_is_a_command_line_and_an_sdk(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """Unpacked away from the tree, so that nothing of the server can be found; its verbs then say what to install."""
    wheel.extractall(tmp_path)
    code = (
        "import sys, tidegate; from tidegate.cli.main import run\n"
        "assert tidegate.__file__.startswith(sys.argv[1]), tidegate.__file__\n"
        "import importlib.metadata as m; m.entry_points = lambda **k: ()\n"
        "import tidegate.cli.server_verbs as v; v.entry_points = m.entry_points\n"
        "tidegate.Client; tidegate.AsyncClient; tidegate.JobSpec\n"
        "assert run(['version']) == 0\n"
        "sys.exit(run(['serve', '--port', '1']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(tmp_path)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 69, done.stderr
    assert "pip install 'tidegate-server[server,embedded]'" in done.stderr
    assert done.stdout.startswith(f"tidegate {project(ROOT)['version']}")
