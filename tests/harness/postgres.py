"""One real PostgreSQL per test run, whatever the number of workers, and a fresh migrated database per test from a
template (0.03 s). The last worker to leave stops the server.
"""

import contextlib
import fcntl
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from psycopg import sql

from gateway.embedded import postgres
from gateway.ledger.migrate import migrate

TEMPLATE = "template_tidegate"


class Databases:
    """Makes and drops databases on the run's server."""

    def __init__(self, server: postgres.EmbeddedPostgres) -> None:
        self.server = server
        self._numbers = itertools.count(1)

    @contextlib.contextmanager
    def fresh(self) -> Iterator[str]:
        """The URL of a new migrated database, dropped afterwards with whoever is still connected."""
        name = f"t{os.getpid()}_{next(self._numbers)}"
        with self.server.connect("postgres") as connection:
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY").format(
                    sql.Identifier(name), sql.Identifier(TEMPLATE)
                )
            )
        try:
            yield self.server.url(name)
        finally:
            with self.server.connect("postgres") as connection:
                connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextlib.contextmanager
def databases(run: str) -> Iterator[Databases]:
    """The server of this run (`run` is equal in all its workers)."""
    folder = _folder(run)
    _sweep()
    folder.mkdir(exist_ok=True)
    users = folder / "users"
    with _counted(users, +1):
        server = postgres.start(folder, durable=False, database="postgres", settings={"max_connections": "300"})
        _template(server)
    try:
        yield Databases(server)
    finally:
        with _counted(users, -1) as left:
            if left == 0:
                server.stop()
                if server.data_dir.parent != folder:
                    shutil.rmtree(server.data_dir, ignore_errors=True)
                shutil.rmtree(folder, ignore_errors=True)


def _folder(run: str) -> Path:
    return Path(tempfile.gettempdir()) / f"tidegate-tests-{os.getuid()}-{run}"


def _sweep() -> None:
    """End what runs that were killed have left: their folders carry the pid of a process that is no more."""
    for folder in _folder("").parent.glob(f"{_folder('').name}*"):
        run = folder.name.rpartition("-")[2]
        if run.isdigit() and len(run) < 10 and not Path(f"/proc/{run}").exists():
            pid_file = folder / "data" / "postmaster.pid"
            with contextlib.suppress(OSError, ValueError):
                pid = int(pid_file.read_text().split("\n", 1)[0])
                postgres.EmbeddedPostgres(folder / "data", folder / "data", pid, "").stop()  # checks whose pid it is
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _counted(path: Path, step: int) -> Iterator[int]:
    """Count the workers that use the server, one at a time; yields the new count."""
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        count = int(file.read() or 0) + step
        file.truncate(0)
        file.write(str(count))
        file.flush()
        yield count


def _template(server: postgres.EmbeddedPostgres) -> None:
    with server.connect("postgres") as connection:
        known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (TEMPLATE,)).fetchone()
        if known is not None:
            return
        connection.execute("CREATE DATABASE template_part")
        migrate(server.url("template_part"))
        connection.execute(sql.SQL("ALTER DATABASE template_part RENAME TO {}").format(sql.Identifier(TEMPLATE)))
