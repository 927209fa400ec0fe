"""The published schema is the one that the types give, and it judges job files as they do."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from pydantic import ValidationError

from tidegate.schema import generate
from tidegate.wire.spec import JobSpec

ROOT = Path(__file__).parents[3]
SCHEMA = Draft202012Validator(generate.job_schema())
BASE = {"name": "n", "run": "true"}

GOOD: list[dict[str, Any]] = [
    BASE,
    BASE | {"resources": {"accelerators": "H100:8", "memory": "16Gi", "cpus": 0.5}},
    BASE | {"resources": {"accelerators": 8}},
    BASE | {"resources": {"accelerators": {"model": "A100", "count": 2}}},
    BASE | {"resources": {"accelerators": "0.5"}},
    BASE | {"max_duration": "4h", "grace": 30},
    BASE | {"array": {"indexes": 10, "parallelism": 2}},
    BASE | {"env": {"LIST": "a,b", "_X": "y"}},
    {"name": "n", "groups": [{"name": "a", "command": ["x"]}]},
]
BAD: list[dict[str, Any]] = [
    {},
    {"name": "n"},
    {"name": "", "run": "true"},
    {"name": "x" * 300, "run": "true"},
    BASE | {"unknown": 1},
    BASE | {"kind": "gaming"},
    BASE | {"priority": "P9"},
    BASE | {"max_duration": "-4h"},
    BASE | {"max_duration": "4 hours"},
    BASE | {"resources": {"memory": "NaN"}},
    BASE | {"resources": {"accelerators": "H100:many"}},
    BASE | {"resources": {"accelerators": True}},
    BASE | {"env": {"SLURM_X": "y"}},
    BASE | {"env": {"1X": "y"}},
    BASE | {"tenant": "Acme//x"},
    BASE | {"num_nodes": 0},
]


def valid_by_types(document: dict[str, Any]) -> bool:
    try:
        JobSpec.model_validate(document)
    except ValidationError:
        return False
    return True


def test_the_published_file_is_what_the_types_give() -> None:
    assert generate.PATH.read_text(encoding="utf-8") == generate.text(), "run: python -m tidegate.schema.generate"


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(generate.job_schema())


@pytest.mark.parametrize("document", GOOD + BAD, ids=str)
def test_schema_and_types_agree(document: dict[str, Any]) -> None:
    expected = document in GOOD
    assert valid_by_types(document) is expected
    assert SCHEMA.is_valid(document) is expected


@pytest.mark.parametrize(
    "path", [p for p in sorted(ROOT.glob("examples/**/*.yaml")) if p.name != "operators.yaml"], ids=lambda p: p.name
)
def test_the_examples_are_valid(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        assert list(SCHEMA.iter_errors(document)) == []
        assert valid_by_types(document)
