"""The whole gate on one machine: PostgreSQL, Temporal, the API and a worker, started in order and ended in reverse.

Decides nothing else. Jobs' instances are the local backend's and outlive this stack; `tidegate up` finds them again.
"""

import os
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gateway.embedded import postgres, temporal, whereabouts
from gateway.embedded.processes import Child, Ready, spawn, wait_until
from gateway.ledger.migrate import migrate
from gateway.operators.first import first_operator

START_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Stack:
    """A running stack. The operator's token is in `token_file` (0600) and not in `repr`."""

    url: str
    token: str = field(repr=False)
    token_file: Path
    data_dir: Path
    environment: Mapping[str, str] = field(repr=False)
    children: Mapping[str, Child] = field(repr=False)

    @property
    def database_url(self) -> str:
        """Where the ledger is; it carries the password."""
        return self.environment["TIDEGATE_DATABASE_URL"]


def free_port() -> int:
    """A loopback port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _secret_file(path: Path) -> str:
    """The secret in `path`, made on first use and readable by its owner alone."""
    if not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    return path.read_text().strip()


@contextmanager
def servers(data_dir: Path) -> Iterator[None]:
    """PostgreSQL and Temporal of a stack that has run here, and where they are; those that run already are left."""
    data_dir = data_dir.expanduser().resolve()
    with ExitStack() as ends:
        database = postgres.start(data_dir / "postgres")
        if not database.adopted:
            ends.callback(database.stop)
        workflows = temporal.start(data_dir / "temporal")
        if not workflows.adopted:
            ends.callback(workflows.stop)
        found = {"TIDEGATE_DATABASE_URL": database.url(), "TIDEGATE_TEMPORAL_ADDRESS": workflows.address}
        whereabouts.write(data_dir, {**whereabouts.read(data_dir), **found})
        yield


@contextmanager
def running(data_dir: Path, *, port: int = 0, settings: Mapping[str, str] | None = None) -> Iterator[Stack]:
    """Start everything under `data_dir` and stop it in the end. `settings`: more `TIDEGATE_*` for API and worker."""
    data_dir = data_dir.expanduser().resolve()
    data_dir.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    with ExitStack() as ends:
        database = postgres.start(data_dir / "postgres")
        ends.callback(database.stop)
        workflows = temporal.start(data_dir / "temporal")
        ends.callback(workflows.stop)
        migrate(database.url())
        token_file = data_dir / "operator.token"
        token = _secret_file(token_file)
        first_operator(database.url(), token)
        environment = {
            "TIDEGATE_DATABASE_URL": database.url(),
            "TIDEGATE_TEMPORAL_ADDRESS": workflows.address,
            "TIDEGATE_DATA_DIR": str(data_dir),
            "TIDEGATE_LISTEN_PORT": str(port),
            "TIDEGATE_PUBLIC_URL": url,
            **(settings or {}),
        }
        whereabouts.write(data_dir, environment)
        children = {}
        for verb in ("serve", "worker"):
            log = data_dir / "logs" / f"{verb}.log"
            children[verb] = spawn(verb, [sys.executable, "-m", "tidegate", verb], environment, log)
            ends.callback(children[verb].stop)
        wait_until(Ready(f"{url}/v1/readyz"), list(children.values()), START_TIMEOUT_S, "the API")
        yield Stack(url, token, token_file, data_dir, environment, children)
