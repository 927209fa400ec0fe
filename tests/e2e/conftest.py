"""One embedded stack for all end-to-end tests: real PostgreSQL, Temporal, API, worker and instances."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.demo import run as demo
from gateway.directory import BackendDirectory
from gateway.embedded.stack import Stack, running
from gateway.ledger.engine import make_engine
from tidegate.client import Client

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Gate:
    """The running gate with the demo's operators' files applied."""

    stack: Stack
    operator: Client
    backends: BackendDirectory

    def cli(self, *arguments: str, timeout_s: float = 90, **more: str) -> subprocess.CompletedProcess[str]:
        """Run `tidegate ARGUMENTS` as the operator, from the repository's root."""
        return subprocess.run(
            [sys.executable, "-m", "tidegate", *arguments],
            cwd=ROOT,
            env=self.environment(more),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """What a person exports after `tidegate up`."""
        mine = {"TIDEGATE_URL": self.stack.url, "TIDEGATE_TOKEN_FILE": str(self.stack.token_file)}
        return {**os.environ, **mine, **(more or {})}


@pytest.fixture(scope="session")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    """Started once; every test uses names of its own."""
    folder = tmp_path_factory.mktemp("gate")
    for parent in (folder, folder.parent, folder.parent.parent):
        parent.chmod(0o755)  # instances may run as other users, one per tenant
    with ExitStack() as ends:
        stack = ends.enter_context(running(folder, settings=demo.SETTINGS))
        operator = ends.enter_context(Client(stack.url, token=stack.token))
        demo.apply(operator, stack.data_dir)
        engine = make_engine(stack.database_url)
        ends.callback(engine.dispose)
        backends = BackendDirectory(engine, "tidegate", stack.data_dir)
        ends.callback(backends.close)
        ends.callback(backends[demo.BACKEND].end_instances)  # type: ignore[attr-defined]
        yield Gate(stack, operator, backends)
