"""The documents say what the code says."""

import re
from pathlib import Path

import pytest

from gateway.settings import Settings
from gateway.settings_doc import SCHEMA, TARGET, render, schema

ROOT = Path(__file__).parents[2]


def test_every_setting_is_documented() -> None:
    assert render() == TARGET.read_text(), "run: make docs"
    assert schema() == SCHEMA.read_text(), "run: make docs"
    assert all(field.description for field in Settings.model_fields.values())


def test_a_setting_never_shows_a_secret() -> None:
    settings = Settings(database_url="postgresql://u:hunter2@h/d")
    assert "hunter2" not in repr(settings) + str(settings)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda p: p.name)
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_target_of_the_makefile_that_documents_name_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for named in re.findall(r"(?:`|^    )make ([a-z-]+)", page.read_text() if page.exists() else "", re.MULTILINE):
            assert named in targets, f"{page.name} names make {named}"
