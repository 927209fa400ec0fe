"""Real gateway processes, `tidegate serve`, as many as a test wants on one database."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx

from gateway.embedded.processes import Child, spawn
from tests.harness.ports import free_port
from tests.harness.waiting import eventually

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def gateways(database_url: str, folder: Path, count: int) -> Iterator[list[str]]:
    """The base URLs of `count` processes that answer; all are ended afterwards."""
    with contextlib.ExitStack() as ends:
        children: list[Child] = []
        urls = []
        for number in range(count):
            port = free_port()
            environment = {
                "TIDEGATE_DATABASE_URL": database_url,
                "TIDEGATE_LISTEN_PORT": str(port),
                "TIDEGATE_DATA_DIR": str(folder),
                "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            }
            argv = [sys.executable, "-m", "tidegate", "serve"]
            child = spawn(f"serve {number}", argv, environment, folder / f"serve-{number}.log")
            ends.callback(child.stop)
            children.append(child)
            urls.append(f"http://127.0.0.1:{port}")
        for child, url in zip(children, urls, strict=True):
            eventually(lambda child=child, url=url: _answers(child, url), timeout_s=90, what=f"{child.name} to answer")  # type: ignore[misc]
        yield urls


def _answers(child: Child, url: str) -> bool:
    child.check()
    try:
        return httpx.get(f"{url}/v1/healthz", timeout=5).is_success
    except httpx.TransportError:
        return False
