"""The manifest of a checkpoint: what makes it complete (L1) and unharmed (L2).

It is written last, names every shard with size and SHA-256, and is the only proof that a checkpoint exists. Any
program may write one; this file is the contract (DESIGN §7, POLICIES §10).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Dict, List, Mapping, Optional, Tuple

from tidegate.job import durable

FORMAT = "tidegate.checkpoint/1"
MANIFEST = "manifest.json"
#: What a full state consists of; a part that is missing is a warning, not an error (POLICIES §10).
EXPECTED_PARTS = ("model", "optimizer", "scheduler", "rng", "data")


class InvalidCheckpoint(ValueError):  # noqa: N818 - the word the API uses
    """This folder is not a checkpoint to resume from; the message is the reason."""


@dataclass(frozen=True)
class Shard:
    """One file of one rank; `name` is relative to the checkpoint's folder."""

    rank: int
    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """See `Checkpoints.save`. `parallelism` holds whole numbers such as tp, pp, dp."""

    step: int
    attempt: int
    world_size: int
    shards: Tuple[Shard, ...]
    parts: Tuple[str, ...] = ()
    reshardable: bool = False
    parallelism: Mapping[str, int] = field(default_factory=dict)
    save_ms: int = 0
    created_at: float = 0.0
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all shards."""
        return sum(shard.size for shard in self.shards)

    @property
    def missing_parts(self) -> Tuple[str, ...]:
        """Parts of a full state that this checkpoint does not name."""
        return tuple(part for part in EXPECTED_PARTS if part not in self.parts)

    def to_json(self) -> Dict[str, Any]:
        """The document that `read` understands."""
        return {
            "format": FORMAT,
            "step": self.step,
            "attempt": self.attempt,
            "world_size": self.world_size,
            "parts": list(self.parts),
            "reshardable": self.reshardable,
            "parallelism": dict(self.parallelism),
            "save_ms": self.save_ms,
            "created_at": self.created_at,
            "metadata": dict(self.metadata),
            "shards": [
                {"rank": shard.rank, "name": shard.name, "size": shard.size, "sha256": shard.sha256}
                for shard in self.shards
            ],
        }


def read(folder: Path) -> Manifest:
    """Read and check by shape alone. InvalidCheckpoint says what is wrong."""
    try:
        raw = durable.read_json(folder / MANIFEST)
    except (ValueError, OSError) as error:
        raise InvalidCheckpoint(f"manifest cannot be read: {error}") from error
    if raw is None:
        raise InvalidCheckpoint("no manifest: the save did not finish")
    try:
        if raw.get("format") != FORMAT:
            raise InvalidCheckpoint(f"manifest has format {raw.get('format')!r}, not {FORMAT!r}")
        return Manifest(
            step=int(raw["step"]),
            attempt=int(raw.get("attempt", 0)),
            world_size=int(raw["world_size"]),
            shards=tuple(_shard(entry) for entry in raw["shards"]),
            parts=tuple(str(part) for part in raw.get("parts", ())),
            reshardable=bool(raw.get("reshardable", False)),
            parallelism={str(key): int(value) for key, value in raw.get("parallelism", {}).items()},
            save_ms=int(raw.get("save_ms", 0)),
            created_at=float(raw.get("created_at", 0)),
            metadata=dict(raw.get("metadata", {})),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, InvalidCheckpoint):
            raise
        raise InvalidCheckpoint(f"manifest is malformed: {type(error).__name__} {error}") from error


def check_complete(folder: Path, manifest: Manifest) -> None:
    """L1: every rank has shards, and every shard is there in its full size. InvalidCheckpoint otherwise."""
    absent = sorted(set(range(manifest.world_size)) - {shard.rank for shard in manifest.shards})
    if absent:
        raise InvalidCheckpoint(f"no shard of rank {', '.join(map(str, absent))} of {manifest.world_size}")
    for shard in manifest.shards:
        try:
            size = (folder / shard.name).stat().st_size
        except OSError:
            raise InvalidCheckpoint(f"shard {shard.name} is missing") from None
        if size == 0:
            raise InvalidCheckpoint(f"shard {shard.name} is empty")
        if size != shard.size:
            raise InvalidCheckpoint(f"shard {shard.name} has {size} bytes, not {shard.size}")


def check_digests(folder: Path, manifest: Manifest, rank: Optional[int] = None) -> None:
    """L2: every shard (or those of one rank) reads back with its digest. InvalidCheckpoint otherwise."""
    for shard in manifest.shards:
        if rank is not None and shard.rank != rank:
            continue
        try:
            found = durable.sha256_of(folder / shard.name)
        except OSError as error:
            raise InvalidCheckpoint(f"shard {shard.name} cannot be read: {error}") from error
        if found != shard.sha256:
            raise InvalidCheckpoint(f"shard {shard.name} has another digest than the manifest says")


def shards_from_json(entries: List[Any]) -> Tuple[Shard, ...]:
    """The shards of one rank's note; InvalidCheckpoint or a KeyError for anything else."""
    return tuple(_shard(entry) for entry in entries)


def _shard(entry: Any) -> Shard:
    name = str(entry["name"])
    inner = PurePosixPath(name)
    if inner.is_absolute() or ".." in inner.parts or not inner.parts:
        raise InvalidCheckpoint(f"shard name {name[:80]!r} leaves the checkpoint's folder")
    return Shard(rank=int(entry["rank"]), name=name, size=int(entry["size"]), sha256=str(entry["sha256"]))
