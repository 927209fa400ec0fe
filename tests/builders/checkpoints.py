"""Checkpoint folders on disk, good and spoilt, made by hand so that the code under test does not vouch for itself."""

import hashlib
import json
from pathlib import Path


def a_checkpoint(attempt: Path, step: int, *, ranks: int = 1, name: str = "", number: int | None = None) -> Path:
    """A complete one below the attempt's folder; `number` is the attempt in its manifest."""
    folder = attempt / (name or f"step_{step}")
    shards = []
    for rank in range(ranks):
        data = f"state of rank {rank} after step {step}".encode()
        path = folder / f"rank-{rank:05d}" / "model.bin"
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        shards.append({"rank": rank, "name": f"rank-{rank:05d}/model.bin", "size": len(data), "sha256": digest})
    manifest = {
        "format": "tidegate.checkpoint/1",
        "step": step,
        "attempt": int(attempt.name.rpartition("-")[2]) if number is None else number,
        "world_size": ranks,
        "parts": ["model"],
        "reshardable": False,
        "shards": shards,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def shard(checkpoint: Path, rank: int) -> Path:
    """One rank's file in it."""
    return checkpoint / f"rank-{rank:05d}" / "model.bin"
