"""Which folder a checkpoint URL means. Opens nothing."""

from __future__ import annotations

from pathlib import Path


class ContextError(ValueError):
    """A variable of the environment that cannot be understood; the message names it."""


def local_path(url: str, *, variable: str = "TIDEGATE_CHECKPOINT_URL") -> Path:
    """The folder of a plain path or a `file://` URL. Other schemes need a mounted path: ContextError says so."""
    if url.startswith("file://"):
        return Path(url[len("file://") :])
    if "://" in url:
        scheme = url.split("://", 1)[0]
        raise ContextError(f"{variable}: scheme {scheme!r} is not a folder; mount it and give its path, or file://")
    return Path(url)
