"""Renders docs/SETTINGS.md from `gateway.settings`: `python -m gateway.settings_doc`. A test compares the file."""

import json
from pathlib import Path

from pydantic import SecretStr
from pydantic_core import PydanticUndefined

from gateway.settings import Settings

TARGET = Path(__file__).parents[1] / "docs" / "SETTINGS.md"
SCHEMA = TARGET.with_name("settings.schema.json")


def _default(value: object) -> str:
    if value is PydanticUndefined or value in (None, "", {}, ()):
        return "–"
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    return f"`{value}`"


def render() -> str:
    """The whole page."""
    lines = [
        "# Settings",
        "",
        "Read from the environment by `tidegate serve`, `worker`, `migrate`, `check` and `recover`. Rendered from",
        "`gateway/settings.py` by `make docs`; as JSON Schema: [settings.schema.json](settings.schema.json).",
        "",
        "| variable | default | meaning |",
        "| --- | --- | --- |",
    ]
    for name, field in Settings.model_fields.items():
        default = {} if field.default_factory else field.default
        lines.append(f"| `TIDEGATE_{name.upper()}` | {_default(default)} | {field.description} |")
    return "\n".join(lines) + "\n"


def schema() -> str:
    """The same as JSON Schema, for editors and for whoever checks a deployment's values."""
    return json.dumps(Settings.model_json_schema(), indent=2, ensure_ascii=False) + "\n"
