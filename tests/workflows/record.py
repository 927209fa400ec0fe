"""`python -m tests.workflows.record [NAME...]`: play scenarios on a real server and store their histories for replay.

Name the scenarios that are new. Record those that are stored anew only when the workflow changed on purpose and no
attempt of the version before is alive any more; else the change belongs behind a patch gate (CASES TP-01).
"""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gateway.embedded import temporal
from tests.workflows.gate import gate
from tests.workflows.scenarios import ALL, histories_of

HISTORIES = Path(__file__).parent / "histories"


async def record(address: str, names: Sequence[str]) -> None:
    for name in names:
        async with gate(address, "one", "two") as made:
            last = await ALL[name](made)
            await last.ended()
            attempts = [last.before, last] if last.before else [last]
            for stored, attempt in zip(histories_of(name), attempts, strict=True):
                history = await attempt.workflow.fetch_history()
                (HISTORIES / f"{stored}.json").write_text(history.to_json() + "\n")
                print(f"{stored}: {len(history.events)} events, {made.store.ends[attempt.key].reason}")  # noqa: T201


def main() -> None:
    HISTORIES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        server = temporal.start(Path(folder), durable=False)
        try:
            asyncio.run(record(server.address, sys.argv[1:] or list(ALL)))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
