"""Settings of the server, read once by `gateway.bootstrap`, from the environment (`TIDEGATE_*`) or given as arguments.

Every setting is documented in docs/SETTINGS.md, which a test renders from here. Importing this module reads nothing.
"""

from ipaddress import ip_network
from pathlib import Path

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Where the servers are and how patient the gate is. Durations in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="TIDEGATE_", extra="ignore", frozen=True, hide_input_in_errors=True)

    database_url: SecretStr = Field(
        default=SecretStr("postgresql+psycopg:///tidegate"),
        description="SQLAlchemy URL of the PostgreSQL that holds the ledger.",
    )
    database_pool_size: int = Field(default=20, ge=2, le=200, description="Connections each process may hold.")
    temporal_address: str = Field(default="127.0.0.1:7233", description="host:port of the Temporal frontend.")
    temporal_namespace: str = Field(default="default", description="Temporal namespace of this gate.")
    temporal_api_key: SecretStr | None = Field(default=None, description="API key, where Temporal asks for one.")
    temporal_tls: bool = Field(default=False, description="Connect to Temporal with TLS.")
    gateway_name: str = Field(
        default="tidegate",
        pattern=r"^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$",
        description="Tag on every outside object. Two gates on one cluster need two names.",
    )
    listen_host: str = Field(default="127.0.0.1", description="Address that the API listens on.")
    listen_port: int = Field(default=8080, ge=0, le=65535, description="Port that the API listens on; 0 takes any.")
    public_url: str = Field(default="", description="URL under which jobs reach the API; empty: host and port above.")
    data_dir: Path = Field(default=Path(".tidegate"), description="Folder for code archives and the embedded stack.")
    workdir_store: str = Field(
        default="", description="fsspec URL for code archives (s3://bucket/prefix); empty: a folder in data_dir."
    )
    workdir_max_bytes: int = Field(default=512 << 20, ge=1, description="Largest code archive, packed.")
    body_max_bytes: int = Field(default=4 << 20, ge=1024, description="Largest request body, code archives aside.")
    cursor_key: SecretStr | None = Field(
        default=None, description="Key that signs page cursors; empty: made at first use and kept in the database."
    )
    queue_limit: int = Field(
        default=0, ge=0, description="Waiting jobs of a tenant without a queue_limit of its own; 0: any number."
    )
    cycle_idle_s: float = Field(default=1.0, gt=0, le=60, description="Longest pause between two cycles.")
    cycle_debounce_ms: int = Field(default=50, ge=0, le=5000, description="Pause that gathers wake-ups into one cycle.")
    capacity_every_s: float = Field(default=2.0, gt=0, le=3600, description="How often each pool's capacity is read.")
    reconcile_every_s: float = Field(
        default=30.0, gt=0, le=3600, description="How often objects and rows are compared."
    )
    accrue_every_s: float = Field(default=300.0, gt=0, le=3600, description="How often running use is posted.")
    backend_wait_timeout_s: int = Field(
        default=600, ge=1, description="A job stuck so long inside a shared backend is withdrawn and placed elsewhere."
    )
    place_timeout_s: int = Field(
        default=60, ge=1, description="A job whose victims wait for its objects gives up and spares them after so long."
    )
    recovery_s: int = Field(
        default=60, ge=1, description="After grace, a stopped object that the backend cannot confirm counts as gone."
    )
    default_grace_s: int = Field(default=300, ge=0, description="Grace of a job that asks for none.")
    default_restart_s: int = Field(
        default=60, ge=0, description="Estimated restart (pull, load, rendezvous) until one was measured."
    )
    term_s: int = Field(default=10, ge=0, description="SIGTERM comes so long before the end of the grace.")
    policy: dict[str, int | str | bool] = Field(
        default_factory=dict, description="Changes to policies.settings.PolicySettings, by name, as JSON."
    )
    webhook_key: SecretStr | None = Field(
        default=None, description="Key that tenants' webhook secrets are made of; empty: made of the database's URL."
    )
    webhook_allow: tuple[str, ...] = Field(
        default=(), description='Networks off the public Internet that webhooks may reach, as JSON: ["10.0.0.0/8"].'
    )
    webhook_ca_file: Path | None = Field(
        default=None, description="PEM file of the only authorities to trust for webhooks; empty: the system's."
    )
    webhook_tries: int = Field(
        default=12, ge=1, le=20, description="Tries of a webhook, with pauses of 10 s doubled up to an hour."
    )
    worker_threads: int = Field(default=32, ge=4, le=512, description="Threads for activities of one worker.")
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$", description="Least level logged.")

    @field_validator("webhook_allow")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            ip_network(text)  # its ValueError names the text and what is wrong with it
        return value
