"""`python -m tests.workflows.record`: play every scenario on a real server and store its history for the replay tests.

Run it when the workflow changed on purpose and no attempt of the version before is alive any more; else the change
belongs behind a patch gate (CASES TP-01).
"""

import asyncio
import tempfile
from pathlib import Path

from gateway.embedded import temporal
from tests.workflows.gate import gate
from tests.workflows.scenarios import ALL

HISTORIES = Path(__file__).parent / "histories"


async def record(address: str) -> None:
    for name, scenario in ALL.items():
        async with gate(address, "one", "two") as made:
            attempt = await scenario(made)
            await attempt.ended()
            history = await attempt.workflow.fetch_history()
            (HISTORIES / f"{name}.json").write_text(history.to_json() + "\n")
            print(f"{name}: {len(history.events)} events, {made.store.ends[attempt.key].reason}")  # noqa: T201


def main() -> None:
    HISTORIES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        server = temporal.start(Path(folder), durable=False)
        try:
            asyncio.run(record(server.address))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
