"""The steps of one save, in the order that makes a kill at any point harmless.

shards (each fsynced) → a note per rank → all notes seen by rank 0 → manifest → folder renamed to its final name →
parent fsynced. Before the rename nothing exists that a reader would take; after it everything does.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Dict, List, Mapping, Tuple, cast

from tidegate.job import durable
from tidegate.job import manifest as manifests
from tidegate.job.manifest import InvalidCheckpoint, Manifest, Shard

TEMPORARY = ".tmp"
NOTE = "shards.json"
POLL_S = 0.02


class SaveTimeout(TimeoutError):  # noqa: N818 - the word the API uses
    """Some rank did not deliver its part in time."""


@dataclass(frozen=True)
class Save:
    """One rank's view of one save. `deadline` is on the monotonic clock."""

    final: Path
    step: int
    rank: int
    world_size: int
    incarnation: str
    deadline: float

    @property
    def temporary(self) -> Path:
        """Where everything lies until it is whole."""
        return self.final.with_name(self.final.name + TEMPORARY)


def shard_name(rank: int, name: str) -> str:
    """Where a rank's file lies inside the checkpoint."""
    return f"rank-{rank:05d}/{name}"


def check_name(name: str) -> None:
    """A file's name in a save is a plain one."""
    if PurePosixPath(name).name != name or name in {NOTE, ".", ".."}:
        raise ValueError(f"file name {name!r} must be a plain name, without folders")


def write_shards(save: Save, files: Mapping[str, Any]) -> None:
    """Write this rank's files, digesting as they pass, then the note that says they are all there."""
    if not files:
        raise ValueError(f"rank {save.rank} has no files to save; give it at least one, so that its part can be proved")
    folder = save.temporary / f"rank-{save.rank:05d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NOTE).unlink(missing_ok=True)
    entries: List[Dict[str, Any]] = []
    for name, content in files.items():
        check_name(name)
        size, digest = _write(folder / name, content)
        if size == 0:
            raise ValueError(
                f"file {name!r} of rank {save.rank} is empty; an empty shard cannot be told from a lost one"
            )
        entries.append({"rank": save.rank, "name": shard_name(save.rank, name), "size": size, "sha256": digest})
    durable.sync_folder(folder)
    durable.write_json(folder / NOTE, {"step": save.step, "incarnation": save.incarnation, "shards": entries})


def collect(save: Save) -> Tuple[Shard, ...]:
    """Rank 0: wait until every rank's note is there. SaveTimeout names the ranks that are missing."""
    missing = set(range(save.world_size))
    shards: List[Shard] = []
    while True:
        for rank in sorted(missing):
            note = _note(save, rank)
            if note is not None:
                shards += manifests.shards_from_json(note["shards"])
                missing.discard(rank)
        if not missing:
            return tuple(sorted(shards, key=lambda shard: (shard.rank, shard.name)))
        if time.monotonic() > save.deadline:
            named = ", ".join(map(str, sorted(missing)))
            raise SaveTimeout(f"step {save.step}: no shards from rank {named} of {save.world_size}; nothing was saved")
        time.sleep(POLL_S)


def publish(save: Save, manifest: Manifest) -> None:
    """Rank 0: the manifest last, then the final name."""
    durable.sync_folder(save.temporary)
    durable.write_json(save.temporary / manifests.MANIFEST, manifest.to_json())
    if save.final.exists():
        # No manifest in it, or save() would have taken it: left over by something that is not this code.
        save.final.rename(save.final.with_name(f"{save.final.name}.{time.time_ns()}{TEMPORARY}"))
    save.temporary.rename(save.final)
    durable.sync_folder(save.final.parent)


def await_published(save: Save) -> None:
    """Other ranks: until rank 0 has given the final name."""
    while not (save.final / manifests.MANIFEST).exists():
        if time.monotonic() > save.deadline:
            raise SaveTimeout(f"step {save.step}: rank 0 did not complete the checkpoint")
        time.sleep(POLL_S)


def sweep(folder: Path) -> None:
    """Remove what an earlier start of this very attempt left unfinished, before anybody saves."""
    for entry in folder.iterdir():
        if entry.name.endswith(TEMPORARY) and entry.is_dir():
            remove(entry)


def remove(folder: Path) -> None:
    """Remove a checkpoint: out of sight first, so that a kill leaves no half one under a final name."""
    doomed = folder
    if not folder.name.endswith(TEMPORARY):
        doomed = folder.with_name(f"{folder.name}.{time.time_ns()}{TEMPORARY}")
        folder.rename(doomed)
        durable.sync_folder(folder.parent)
    shutil.rmtree(doomed, ignore_errors=True)


def _write(path: Path, content: Any) -> Tuple[int, str]:
    with path.open("wb") as raw:
        sink = durable.HashingWriter(raw)
        if callable(content):
            content(cast("BinaryIO", sink))
        else:
            sink.write(content)
        raw.flush()
        durable.fsync(raw)
        return sink.size, sink.hexdigest()


def _note(save: Save, rank: int) -> Any:
    try:
        note = durable.read_json(save.temporary / f"rank-{rank:05d}" / NOTE)
    except (ValueError, OSError):
        return None
    if not isinstance(note, dict) or note.get("incarnation") != save.incarnation or note.get("step") != save.step:
        return None
    try:
        manifests.shards_from_json(note["shards"])
    except (KeyError, TypeError, InvalidCheckpoint):
        return None
    return note
