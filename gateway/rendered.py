"""`make docs`: writes anew every file that is rendered from code. Each has a test that compares it with the code."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from gateway import settings_doc
from gateway.api import openapi
from policies import states_page
from tidegate.schema import generate

ROOT = Path(__file__).parents[1]
FILES: Mapping[Path, Callable[[], str]] = {
    settings_doc.TARGET: settings_doc.render,
    settings_doc.SCHEMA: settings_doc.schema,
    ROOT / "docs" / "STATES.md": states_page.page,
    ROOT / "docs" / "openapi.json": openapi.rendered,
    generate.PATH: generate.text,
}


def main() -> int:
    """Write those that differ and name them."""
    for path, render in FILES.items():
        text = render()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
