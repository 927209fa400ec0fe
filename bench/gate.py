"""A fresh embedded stack for a row, with the demo's operators' files: servers, settings and disk as users have."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gateway.demo import run as demo
from gateway.directory import BackendDirectory
from gateway.embedded.stack import Stack, running
from gateway.ledger.engine import make_engine
from tidegate.client import Client

TENANT = "acme/research"


@dataclass(frozen=True, slots=True)
class Gate:
    """The running stack and somebody who may do everything there."""

    stack: Stack
    operator: Client


@contextmanager
def gate() -> Iterator[Gate]:
    """Started for one row and taken away with all that ran in it."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name, ExitStack() as ends:
        folder = Path(name)
        folder.chmod(0o755)
        stack = ends.enter_context(running(folder))
        operator = ends.enter_context(Client(stack.url, token=stack.token))
        demo.apply(operator, stack.data_dir)
        engine = make_engine(stack.database_url, pool_size=2)
        ends.callback(engine.dispose)
        backends = BackendDirectory(engine, "tidegate", stack.data_dir)
        ends.callback(backends.close)
        ends.callback(cast("demo.Provider", backends[demo.BACKEND]).end_instances)
        yield Gate(stack, operator)
