"""Writes `job.schema.json` from the wire types: `python -m tidegate.schema.generate`. A test compares the two.

Says what pydantic cannot say by itself: the short forms of accelerators, and that a job runs something.
"""

import json
from pathlib import Path
from typing import Any, Final

from tidegate.wire.spec import RESERVED_ENV, JobSpec

PATH: Final = Path(__file__).with_name("job.schema.json")
IDENTIFIER: Final = "https://tidegate.dev/schemas/job.schema.json"
_SHORT_ACCELERATORS: Final = r"^([^:]{0,63}:)?[0-9]+(\.[0-9]+)?m?$"


def job_schema() -> dict[str, Any]:
    """The schema of one document of a job file."""
    schema = JobSpec.model_json_schema()
    accelerators = schema["$defs"]["Resources"]["properties"]["accelerators"]
    accelerators.pop("default", None)
    schema["$defs"]["Resources"]["properties"]["accelerators"] = {
        "description": "A count (8), a model and a count (H100:8), or both apart.",
        "anyOf": [
            {"$ref": "#/$defs/Accelerators"},
            {"type": "number", "minimum": 0},
            {"type": "string", "pattern": _SHORT_ACCELERATORS},
        ],
    }
    env = schema["properties"]["env"]
    reserved = "|".join(prefix.rstrip("_") + "_" for prefix in RESERVED_ENV)
    env["propertyNames"] = {"pattern": f"^(?!{reserved})[A-Za-z_][A-Za-z0-9_]{{0,254}}$"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": IDENTIFIER,
        **schema,
        "title": "Tidegate job",
        "anyOf": [{"required": ["run"]}, {"required": ["groups"]}],
    }


def text() -> str:
    """The file's contents."""
    return json.dumps(job_schema(), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the file anew."""
    PATH.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
