"""A newer attempt fences an older one's folder, so that a zombie's late save never counts.

The fence lists what was complete when it went up. It is raised once: the first newer attempt wins.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import FrozenSet, Iterable, Optional

from tidegate.job import durable

FENCE = "fence.json"


class Fenced(RuntimeError):  # noqa: N818 - the word the API uses
    """A newer attempt of this job has begun; whatever this process still saves is void."""


def raise_fence(folder: Path, *, by: int, names: Iterable[str]) -> None:
    """Close a folder to its own attempt. Idempotent; a fence that stands is left as it is."""
    temporary = folder / f".{FENCE}.{by}.{os.getpid()}"
    document = {"by": by, "at": time.time(), "checkpoints": sorted(names)}
    temporary.write_text(json.dumps(document))
    try:
        # A link fails if the name exists: whole and at most once, which neither open nor rename gives together.
        os.link(temporary, folder / FENCE)
    except FileExistsError:
        return
    finally:
        temporary.unlink(missing_ok=True)
    durable.sync_folder(folder)


def allowed(folder: Path) -> Optional[FrozenSet[str]]:
    """The names that count in a fenced folder; None while it has no fence."""
    try:
        document = durable.read_json(folder / FENCE)
        return None if document is None else frozenset(document["checkpoints"])
    except (ValueError, KeyError, TypeError):
        return None


def check(folder: Path) -> None:
    """Raise Fenced when a newer attempt has closed this folder."""
    if (folder / FENCE).exists():
        raise Fenced(f"a newer attempt has begun and closed {folder}; this one must stop")
