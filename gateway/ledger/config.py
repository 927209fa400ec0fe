"""What the ledger wants to know of the server's settings. `gateway.settings.Settings` has all of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class LedgerSettings(Protocol):
    """Durations in seconds."""

    @property
    def gateway_name(self) -> str: ...
    @property
    def public_url(self) -> str: ...
    @property
    def listen_host(self) -> str: ...
    @property
    def listen_port(self) -> int: ...
    @property
    def backend_wait_timeout_s(self) -> int: ...
    @property
    def place_timeout_s(self) -> int: ...
    @property
    def recovery_s(self) -> int: ...
    @property
    def default_grace_s(self) -> int: ...
    @property
    def default_restart_s(self) -> int: ...
    @property
    def term_s(self) -> int: ...
    @property
    def workdir_store(self) -> str: ...
    @property
    def data_dir(self) -> Path: ...


@dataclass(frozen=True, slots=True)
class PlainSettings:
    """The same as a value, for tests and tools."""

    gateway_name: str = "tidegate"
    public_url: str = "http://127.0.0.1:8080"
    listen_host: str = "127.0.0.1"
    listen_port: int = 8080
    backend_wait_timeout_s: int = 600
    place_timeout_s: int = 60
    recovery_s: int = 60
    default_grace_s: int = 300
    default_restart_s: int = 60
    term_s: int = 10
    workdir_store: str = ""
    data_dir: Path = Path(".tidegate")


def base_url(settings: LedgerSettings) -> str:
    """Where jobs reach the API."""
    return settings.public_url or f"http://{settings.listen_host}:{settings.listen_port}"


def archive_url(settings: LedgerSettings, tenant_id: int, sha256: str) -> str:
    """Where the archive with this digest lies: by tenant, so that none can name another's (`gateway.archives`)."""
    store = settings.workdir_store or settings.data_dir.resolve().joinpath("workdirs").as_uri()
    return f"{store.rstrip('/')}/{tenant_id}/{sha256}"
