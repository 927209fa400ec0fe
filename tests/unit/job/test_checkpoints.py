"""Finding, saving, fencing and pruning checkpoints (CASES CK-01 and CK-02, POLICIES §10)."""

import json
import os
import threading
from pathlib import Path

import pytest

from tests.builders.checkpoints import a_checkpoint, shard
from tidegate.job import Checkpoint, Checkpoints, Fenced, SaveTimeout, context


def checkpoints(root: Path, attempt: int = 1, *, rank: int = 0, ranks: int = 1, timeout_s: float = 10) -> Checkpoints:
    env = {
        "TIDEGATE_ATTEMPT": str(attempt),
        "TIDEGATE_CHECKPOINT_URL": str(root / f"attempt-{attempt}"),
        "TIDEGATE_NODE_RANK": str(rank),
        "TIDEGATE_NUM_NODES": str(ranks),
    }
    return Checkpoints(ctx=context(env), save_timeout_s=timeout_s)


def spoilt_run(root: Path) -> Path:
    """The trigger of CK-01: one good checkpoint and five that are not."""
    attempt = root / "attempt-1"
    good = a_checkpoint(attempt, 100, ranks=4)
    shard(a_checkpoint(attempt, 200, ranks=4), 3).unlink()
    shard(a_checkpoint(attempt, 250, ranks=4), 1).write_bytes(b"STATE of rank 1 after step 250")
    shard(a_checkpoint(attempt, 300, ranks=4), 2).write_bytes(b"")
    a_checkpoint(attempt, 400, ranks=4, name="step_400.tmp")
    return good


def test_ck_01_resumes_from_the_last_whole_checkpoint_and_says_why_not_from_others(tmp_path: Path) -> None:
    good = spoilt_run(tmp_path)
    found = checkpoints(tmp_path, 2).newest_valid()
    assert found is not None
    assert (found.path, found.step, found.verified) == (good, 100, 2)
    reasons = {rejected.path.name: rejected.reason for rejected in found.rejected}
    assert set(reasons) == {"step_200", "step_250", "step_300", "step_400.tmp"}
    assert "rank-00003/model.bin is missing" in reasons["step_200"]
    assert "another digest" in reasons["step_250"]
    assert "rank-00002/model.bin is empty" in reasons["step_300"]
    assert "unfinished" in reasons["step_400.tmp"]


def test_ck_01_the_only_good_checkpoint_is_never_pruned(tmp_path: Path) -> None:
    good = spoilt_run(tmp_path)
    newer = a_checkpoint(tmp_path / "attempt-1", 500)
    shard(newer, 0).write_bytes(b"STATE of rank 0 after step 500")  # right size, wrong content
    store = checkpoints(tmp_path)
    store.prune(keep=1)
    assert good.exists()
    found = store.newest_valid()
    assert found is not None
    assert found.step == 100


def test_pruning_removes_nothing_while_nothing_reads_back_unharmed(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        shard(a_checkpoint(tmp_path / "attempt-1", step), 0).write_bytes(b"STATE of rank 0 after step 0")
    assert checkpoints(tmp_path).prune(keep=1) == []
    assert len(list((tmp_path / "attempt-1").iterdir())) == 3


def test_pruning_keeps_the_newest_ones(tmp_path: Path) -> None:
    for step in (90, 100, 1000):
        a_checkpoint(tmp_path / "attempt-1", step)
    checkpoints(tmp_path).prune(keep=2)
    assert {path.name for path in (tmp_path / "attempt-1").iterdir()} == {"step_100", "step_1000"}


def test_ck_02_the_step_decides_and_not_the_file_time(tmp_path: Path) -> None:
    newer = a_checkpoint(tmp_path / "attempt-1", 900)
    a_checkpoint(tmp_path / "attempt-1", 800)
    for path in (newer, newer / "manifest.json"):
        os.utime(path, (1, 1))
    found = checkpoints(tmp_path).newest_valid()
    assert found is not None
    assert found.step == 900


def test_ck_02_ties_go_to_the_later_attempt(tmp_path: Path) -> None:
    for attempt in (2, 3, 10):
        a_checkpoint(tmp_path / f"attempt-{attempt}", 700)
    found = checkpoints(tmp_path, 4).newest_valid()
    assert found is not None
    assert found.path.parent.name == "attempt-3", "attempt 10 is newer than we are and must not count"


def test_ck_02_a_zombies_save_behind_the_fence_does_not_count(tmp_path: Path) -> None:
    zombie = checkpoints(tmp_path, 1)
    zombie.save(10, {"model": b"ten"})
    successor = checkpoints(tmp_path, 2)
    found = successor.resume()
    assert found is not None
    assert found.step == 10
    with pytest.raises(Fenced):
        zombie.save(20, {"model": b"twenty"})
    a_checkpoint(tmp_path / "attempt-1", 30)  # one that does not know of fences
    again = checkpoints(tmp_path, 3).newest_valid()
    assert again is not None
    assert again.step == 10
    assert any("newer attempt" in rejected.reason for rejected in again.rejected)


def test_a_manifest_that_points_outside_its_folder_is_refused(tmp_path: Path) -> None:
    folder = a_checkpoint(tmp_path / "attempt-1", 5)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["shards"][0]["name"] = "../../secret"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    good, bad = checkpoints(tmp_path).list()
    assert good == []
    assert "leaves the checkpoint's folder" in bad[0].reason


def test_a_manifest_without_shards_of_every_rank_is_refused(tmp_path: Path) -> None:
    folder = a_checkpoint(tmp_path / "attempt-1", 5, ranks=2)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["shards"].pop()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    _, bad = checkpoints(tmp_path).list()
    assert "no shard of rank 1 of 2" in bad[0].reason


def test_a_sharded_save_exists_once_every_rank_has_delivered(tmp_path: Path) -> None:
    results: dict[int, Checkpoint] = {}

    def save(rank: int) -> None:
        store = checkpoints(tmp_path, rank=rank, ranks=3)
        results[rank] = store.save(8, {"part": lambda file: file.write(b"rank %d" % rank)}, parts=("model", "rng"))

    threads = [threading.Thread(target=save, args=(rank,)) for rank in range(3)]
    for thread in threads[1:]:
        thread.start()
    assert not (tmp_path / "attempt-1" / "step-8").exists()
    threads[0].start()
    for thread in threads:
        thread.join(10)
    assert {found.path for found in results.values()} == {tmp_path / "attempt-1" / "step-8"}
    manifest = results[0].manifest
    assert [found.rank for found in manifest.shards] == [0, 1, 2]
    assert manifest.world_size == 3
    assert manifest.missing_parts == ("optimizer", "scheduler", "data")
    assert results[2].file("part", 2).read_bytes() == b"rank 2"


def test_a_save_that_lacks_a_rank_ends_in_time_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SaveTimeout, match="no shards from rank 1 of 2"):
        checkpoints(tmp_path, ranks=2, timeout_s=0.2).save(8, {"part": b"zero"})
    assert checkpoints(tmp_path, 2).newest_valid() is None


def test_saving_a_step_again_gives_the_same_checkpoint(tmp_path: Path) -> None:
    store = checkpoints(tmp_path)
    first = store.save(8, {"part": b"one"})
    assert store.save(8, {"part": b"two"}).path == first.path
    assert first.file("part").read_bytes() == b"one"


def test_an_empty_file_is_refused_at_the_save_and_not_at_the_resume(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is empty"):
        checkpoints(tmp_path).save(1, {"part": b""})


def test_every_rank_resumes_from_what_rank_0_chose(tmp_path: Path) -> None:
    checkpoints(tmp_path, 1).save(4, {"part": b"x"})
    chosen = checkpoints(tmp_path, 2, ranks=2).resume()
    a_checkpoint(tmp_path / "attempt-1", 6)  # appears between the two looks
    followed = checkpoints(tmp_path, 2, rank=1, ranks=2).resume(timeout_s=5)
    assert chosen is not None
    assert followed is not None
    assert followed.path == chosen.path


def test_the_first_attempt_has_nothing_to_resume_from(tmp_path: Path) -> None:
    assert checkpoints(tmp_path / "none" / "yet").resume() is None


def test_resuming_from_another_jobs_checkpoint(tmp_path: Path) -> None:
    other = a_checkpoint(tmp_path / "other" / "attempt-3", 50)
    env = {"TIDEGATE_CHECKPOINT_URL": str(tmp_path / "mine" / "attempt-1"), "TIDEGATE_RESUME_FROM": str(other)}
    found = Checkpoints(ctx=context(env)).newest_valid()
    assert found is not None
    assert found.path == other
