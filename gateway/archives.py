"""Where code archives lie: by tenant and digest, so that no tenant can name another's."""

from pathlib import Path

import fsspec  # type: ignore[import-untyped]

from gateway.settings import Settings


def store_of(settings: Settings) -> str:
    """The fsspec URL of the store."""
    return settings.workdir_store or Path(settings.data_dir).resolve().joinpath("workdirs").as_uri()


def location(store: str, tenant_id: int, sha256: str) -> str:
    """The URL of one archive, whether it is there or not."""
    return f"{store.rstrip('/')}/{tenant_id}/{sha256}"


def exists(store: str, tenant_id: int, sha256: str) -> bool:
    """Whether it was uploaded."""
    fs, path = fsspec.core.url_to_fs(location(store, tenant_id, sha256))
    return bool(fs.exists(path))
