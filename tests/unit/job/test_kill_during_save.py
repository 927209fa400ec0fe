"""CK-01: kill -9 at five points of a save; a checkpoint that loads exists after each."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.job import Checkpoints, context

SAVER = """
import os, signal, sys
from pathlib import Path
from tidegate.job import Checkpoints, durable, saving

point = sys.argv[1]
def die():
    os.kill(os.getpid(), signal.SIGKILL)

def content(file):
    file.write(b"first half")
    if point == "inside a shard":
        die()
    file.write(b"second half")

store = Checkpoints()
store.save(100, {"model": b"good"})
real_sync, real_rename = durable.sync_folder, Path.rename

def sync(folder):
    if point == "after the shards, before the note" and folder.name == "rank-00000":
        die()
    real_sync(folder)
    if point == "after the rename" and folder.name == "attempt-1":
        die()

def rename(self, target):
    if point == "after the manifest, before the rename":
        die()
    return real_rename(self, target)

def collect(save):
    die()

durable.sync_folder, Path.rename = sync, rename
if point == "after the note, before the manifest":
    saving.collect = collect
store.save(200, {"model": content})
"""


@pytest.mark.parametrize(
    ("point", "step"),
    [
        ("inside a shard", 100),
        ("after the shards, before the note", 100),
        ("after the note, before the manifest", 100),
        ("after the manifest, before the rename", 100),
        ("after the rename", 200),
    ],
)
def test_ck_01_a_kill_at_any_point_of_a_save_leaves_a_checkpoint_that_loads(
    tmp_path: Path, point: str, step: int
) -> None:
    root = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": str(root), "TIDEGATE_CHECKPOINT_URL": str(tmp_path / "attempt-1")}
    killed = subprocess.run([sys.executable, "-c", SAVER, point], env=env, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    env = {"TIDEGATE_ATTEMPT": "2", "TIDEGATE_CHECKPOINT_URL": str(tmp_path / "attempt-2")}
    store = Checkpoints(ctx=context(env))
    found = store.resume()
    assert found is not None
    assert found.step == step
    assert found.file("model").read_bytes() == (b"good" if step == 100 else b"first halfsecond half")
    # The successor goes on and its pruning clears what the kill left.
    store.save(300, {"model": b"next"})
    store.prune(keep=2)
    assert not list((tmp_path / "attempt-1").glob("*.tmp"))
    newest = store.newest_valid()
    assert newest is not None
    assert newest.step == 300
