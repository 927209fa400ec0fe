"""Backends are built by kind from a literal table, and what is wrong with their settings is said by field."""

import subprocess
import sys
from pathlib import Path

import pytest

from backends.errors import Misconfigured
from backends.port import Backend, Checkpoints
from backends.registry import KINDS, build, parse

ROOT = Path(__file__).parents[3]
POOL = {"name": "p", "nodes": 1}


def test_a_built_backend_has_the_name_and_touches_nothing(tmp_path: Path) -> None:
    backend: Backend = build("here", "local", {"state_dir": str(tmp_path / "s"), "pools": [POOL]}, "gw")
    assert backend.name == "here"
    assert isinstance(backend, Checkpoints) == backend.capabilities.checkpoint_signal
    assert not (tmp_path / "s").exists()


def test_an_unknown_kind_is_named_with_those_there_are() -> None:
    with pytest.raises(Misconfigured, match=r"backend x: kind 'cray' is unknown; use one of: .*local"):
        build("x", "cray", {}, "gw")


def test_a_wrong_setting_is_named_and_its_value_is_not_shown(tmp_path: Path) -> None:
    config = {"state_dir": str(tmp_path), "pools": [{**POOL, "nodes": "hush-hush"}]}
    with pytest.raises(Misconfigured, match=r"pools\.0\.nodes") as caught:
        parse("here", "local", config)
    assert "hush" not in str(caught.value)
    with pytest.raises(Misconfigured, match="tokn"):
        parse("here", "local", {"state_dir": str(tmp_path), "pools": [POOL], "tokn": "hush"})


def test_the_registry_imports_no_kind_before_it_is_wanted() -> None:
    code = "import backends.registry, sys; print([m for m in sys.modules if m.startswith('backends.local')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_has_its_rooms(kind: str) -> None:
    folder = ROOT / KINDS[kind].package.replace(".", "/")
    for room in ("config", "render", "read", "client", "backend"):
        assert (folder / f"{room}.py").is_file(), f"{kind} has no {room}.py"
