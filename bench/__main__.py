"""`python -m bench [ROW…]`: runs rows, prints each as `name figure peer_figure ratio target ok|short`."""

import json
import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path

from bench.rows import ROWS, load

RESULTS = Path(__file__).parent / "results.json"


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        print(f"no row called {', '.join(unknown)}; there are: {' '.join(ROWS)}", file=sys.stderr)
        return 64
    results = []
    for module in dict.fromkeys(ROWS[name] for name in names or ROWS):
        for row in load(module)():
            print(row, flush=True)
            results.append(asdict(row))
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "machine": platform.machine()}
    RESULTS.write_text(json.dumps({"machine": machine, "rows": results}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
