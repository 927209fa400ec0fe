"""Staged saves: training goes on, and a save is a checkpoint only once it is uploaded."""

import threading
from pathlib import Path

import pytest

from tests.harness.waiting import eventually
from tidegate.job import Checkpoints, Fenced, Stager, context


def store(root: Path, attempt: int = 1, rank: int = 0, ranks: int = 1) -> Checkpoints:
    env = {
        "TIDEGATE_ATTEMPT": str(attempt),
        "TIDEGATE_CHECKPOINT_URL": str(root / "shared" / f"attempt-{attempt}"),
        "TIDEGATE_NODE_RANK": str(rank),
        "TIDEGATE_NUM_NODES": str(ranks),
    }
    return Checkpoints(ctx=context(env), save_timeout_s=20)


def test_a_staged_save_is_a_checkpoint_only_once_every_rank_has_uploaded(tmp_path: Path) -> None:
    stagers = [Stager(store(tmp_path, rank=rank, ranks=2), str(tmp_path / f"ssd-{rank}")) for rank in (0, 1)]
    first = stagers[0].save(5, {"part": b"zero"})
    assert first.wait(0.2) is None
    assert stagers[0].drain(0.1) is None
    assert store(tmp_path, 2).newest_valid() is None
    stagers[1].save(5, {"part": lambda file: file.write(b"one")})
    found = first.wait(10)
    assert found is not None
    assert found.file("part", 1).read_bytes() == b"one"
    assert stagers[1].drain(10) is not None
    assert not [path for path in tmp_path.glob("ssd-*/**/*") if path.is_file()]


def test_at_a_notice_the_newest_upload_that_fits_counts(tmp_path: Path) -> None:
    stager = Stager(store(tmp_path), str(tmp_path / "ssd"))
    for step in (1, 2, 3):
        stager.save(step, {"part": b"x" * 1000})
    found = stager.drain(10)
    assert found is not None
    assert found.step == 3


def test_staging_more_than_can_wait_blocks_instead_of_filling_the_disk(tmp_path: Path) -> None:
    stager = Stager(store(tmp_path, ranks=2), str(tmp_path / "ssd"), depth=1)
    done = threading.Event()

    def saves() -> None:
        for step in (1, 2, 3):
            stager.save(step, {"part": b"x"})
        done.set()

    threading.Thread(target=saves, daemon=True).start()
    assert not done.wait(0.3)
    other = Stager(store(tmp_path, rank=1, ranks=2), str(tmp_path / "other"), depth=3)
    for step in (1, 2, 3):
        other.save(step, {"part": b"y"})
    eventually(done.is_set)
    assert stager.drain(10) is not None


def test_a_failed_upload_is_told_to_whoever_waits_and_the_next_goes_on(tmp_path: Path) -> None:
    stager = Stager(store(tmp_path), str(tmp_path / "ssd"))
    assert stager.save(1, {"part": b"x"}).wait(10)
    store(tmp_path, 2).resume()  # fences attempt 1
    with pytest.raises(Fenced):
        stager.save(2, {"part": b"x"}).wait(10)
    with pytest.raises(ValueError, match="without folders"):
        stager.save(3, {"../part": b"x"})
