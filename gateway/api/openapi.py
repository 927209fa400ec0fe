"""Writes docs/openapi.json: `python -m gateway.api.openapi`. A test compares the file with what the code says."""

import json
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

from gateway.api.app import create_app
from gateway.api.deps import Deps
from gateway.settings import Settings

SNAPSHOT = Path(__file__).parents[2] / "docs" / "openapi.json"


def document() -> dict[str, Any]:
    """The OpenAPI 3.1 description. Connects to nothing."""
    engine = create_engine("postgresql+psycopg://nowhere.invalid/none")
    app = create_app(Deps(engine=engine, settings=Settings(), cursor_key=b"for the description only"))
    return app.openapi()


def rendered() -> str:
    """As it stands in the file."""
    return json.dumps(document(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the snapshot."""
    SNAPSHOT.write_text(rendered())
    sys.stdout.write(f"wrote {SNAPSHOT}\n")


if __name__ == "__main__":
    main()
