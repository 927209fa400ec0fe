"""Imports run one way (DESIGN: the house). Read from the syntax trees, so that nothing has to be imported."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("tidegate", "policies", "backends", "workflows", "gateway")
SERVER_PACKAGES = {"fastapi", "starlette", "uvicorn", "sqlalchemy", "sqlmodel", "alembic", "psycopg", "temporalio"}

ALLOWED: dict[str, tuple[str, ...]] = {
    # The longest prefix of a module decides what of ours it may import.
    "tidegate": ("tidegate",),
    "tidegate.wire": ("tidegate.wire",),
    "tidegate.job": ("tidegate.job",),
    "tidegate.agent": ("tidegate.agent", "tidegate.archive.unpack", "tidegate.job"),
    "policies": ("policies",),
    "backends": ("backends", "policies.vocabulary", "policies.snapshot"),
    "backends.local": (
        "backends.local",
        "backends.port",
        "backends.types",
        "backends.errors",
        "backends.naming",
        "backends.environment",
        "policies.vocabulary",
        "policies.snapshot",
        "tidegate.agent",
    ),
    "workflows": ("workflows", "policies", "backends.port", "backends.types", "backends.errors", "backends.naming"),
    "workflows.flows": ("workflows.flows", "workflows.messages", "workflows.steps", "workflows.decide", "policies"),
    "workflows.decide": ("workflows.messages", "workflows.steps", "workflows.gang", "workflows.decide", "policies"),
    "gateway": ("gateway", "tidegate", "policies", "backends", "workflows"),
    "gateway.ledger": (
        "gateway.ledger",
        "policies",
        "backends.types",
        "backends.naming",
        "workflows.messages",
        "workflows.store",
        "tidegate.wire",
    ),
}
FORBIDDEN_OUTSIDE: dict[str, set[str]] = {
    "tidegate": SERVER_PACKAGES | {"numpy", "boto3", "kubernetes"},
    "policies": SERVER_PACKAGES | {"pydantic", "httpx"},
    "gateway.ledger": {"fastapi", "starlette", "uvicorn", "temporalio", "httpx"},
    "workflows.flows": SERVER_PACKAGES - {"temporalio"},
    "workflows.decide": SERVER_PACKAGES,
    "backends": {"fastapi", "starlette", "uvicorn", "sqlalchemy", "sqlmodel", "alembic", "psycopg", "temporalio"},
}


def modules() -> Iterator[tuple[str, Path]]:
    for package in OURS:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide which way an import runs"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def longest_prefix(module: str, table: dict[str, object]) -> str | None:
    parts = module.split(".")
    for size in range(len(parts), 0, -1):
        if (prefix := ".".join(parts[:size])) in table:
            return prefix
    return None


def under(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


@pytest.mark.parametrize(("module", "path"), [pytest.param(*pair, id=pair[0]) for pair in modules()])
def test_a_module_imports_only_what_its_room_may_see(module: str, path: Path) -> None:
    room = longest_prefix(module, dict(ALLOWED))
    assert room is not None
    for name in imports_of(path):
        if name.split(".")[0] in OURS:
            # `from a.b import c` yields both a.b and a.b.c: either being allowed is enough for the pair.
            seen = under(name, ALLOWED[room]) or any(allowed.startswith(name + ".") for allowed in ALLOWED[room])
            parent = name.rpartition(".")[0]
            assert seen or under(parent, ALLOWED[room]), f"{module} may not import {name}"
        for prefix, banned in FORBIDDEN_OUTSIDE.items():
            if under(module, (prefix,)):
                assert name.split(".")[0] not in banned, f"{module} may not import {name}"


def test_no_backend_imports_another() -> None:
    kinds = [path.name for path in (ROOT / "backends").iterdir() if path.is_dir() and path.name != "__pycache__"]
    for module, path in modules():
        for kind in kinds:
            if under(module, (f"backends.{kind}",)):
                others = tuple(f"backends.{other}" for other in kinds if other != kind)
                assert not [name for name in imports_of(path) if under(name, others)], module


def test_only_bootstrap_builds_backends() -> None:
    for module, path in modules():
        if module.startswith("backends.") or module == "gateway.bootstrap":
            continue
        concrete = [n for n in imports_of(path) if n.startswith("backends.") and n.split(".")[1] == "local"]
        assert not concrete or module.startswith("gateway.demo"), f"{module} imports {concrete}"
