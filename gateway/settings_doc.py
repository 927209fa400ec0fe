"""Renders docs/SETTINGS.md from `gateway.settings`: `python -m gateway.settings_doc`. A test compares the file."""

import sys
from pathlib import Path

from pydantic import SecretStr
from pydantic_core import PydanticUndefined

from gateway.settings import Settings

TARGET = Path(__file__).parents[1] / "docs" / "SETTINGS.md"


def _default(value: object) -> str:
    if value is PydanticUndefined or value in (None, "", {}):
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
        "`gateway/settings.py` by `python -m gateway.settings_doc`.",
        "",
        "| variable | default | meaning |",
        "| --- | --- | --- |",
    ]
    for name, field in Settings.model_fields.items():
        default = {} if field.default_factory else field.default
        lines.append(f"| `TIDEGATE_{name.upper()}` | {_default(default)} | {field.description} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(render())
    sys.stdout.write(f"wrote {TARGET.name}\n")
