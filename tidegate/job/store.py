"""Saving and finding checkpoints under `<root>/attempt-N/step-S/`.

Decides when a checkpoint exists (its folder has its final name, which it gets after the manifest, which comes after all
shards), which is the newest valid one, and what may be pruned. Never trusts a file time or the order of names as text.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterable, List, Mapping, Optional, Set, Tuple, Union

from tidegate.job import durable, fence, saving
from tidegate.job import manifest as manifests
from tidegate.job.environ import Context, context
from tidegate.job.manifest import InvalidCheckpoint, Manifest
from tidegate.job.names import attempt_of, folder_step
from tidegate.job.urls import ContextError, local_path

log = logging.getLogger("tidegate.job")

Content = Union[bytes, bytearray, memoryview, Callable[[BinaryIO], Any]]
RESUME = "resume.json"


@dataclass(frozen=True)
class Rejected:
    """A folder that looks like a checkpoint and is none, with the reason."""

    path: Path
    reason: str
    broken: bool = False  # it had its final name, so somebody may believe in it


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint. `rejected` are newer folders that were passed over on the way to it."""

    path: Path
    manifest: Manifest
    verified: int  # 1: sizes, 2: digests
    rejected: Tuple[Rejected, ...] = ()

    @property
    def step(self) -> int:
        """The step after which it was saved."""
        return self.manifest.step

    @property
    def attempt(self) -> int:
        """The attempt that saved it."""
        return self.manifest.attempt

    def file(self, name: str, rank: int = 0) -> Path:
        """Where one rank's file of that name lies."""
        return self.path / saving.shard_name(rank, name)


class Checkpoints:
    """The checkpoints of one job, as seen from one rank of one attempt.

    `url` is where this attempt may write (`TIDEGATE_CHECKPOINT_URL`, `<root>/attempt-N`); another folder name gets
    `attempt-N` appended. Rank 0 tells `on_saved` of each checkpoint that it completes, and `on_broken` of each folder
    that turned out to be none when it looked for what to resume from.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        *,
        ctx: Optional[Context] = None,
        on_saved: Optional[Callable[[Checkpoint], None]] = None,
        on_broken: Optional[Callable[[Rejected], None]] = None,
        save_timeout_s: float = 600.0,
    ) -> None:
        self.context = ctx or context()
        chosen = url or self.context.checkpoint_url
        if not chosen:
            raise ContextError("no checkpoint folder: set checkpoint.url in the job, or pass url")
        folder = local_path(chosen)
        number = attempt_of(folder.name)
        self.attempt = self.context.attempt if number is None else number
        self.folder = folder if number is not None else folder / f"attempt-{self.attempt}"
        self.root = self.folder.parent
        self.save_timeout_s = save_timeout_s
        self._on_saved = on_saved
        self._on_broken = on_broken
        self._root_url = chosen.rstrip("/") if number is None else chosen.rstrip("/").rpartition("/")[0]
        self._own: Set[Path] = set()

    def save(
        self,
        step: int,
        files: Mapping[str, Content],
        *,
        parts: Iterable[str] = ("model",),
        reshardable: bool = False,
        parallelism: Optional[Mapping[str, int]] = None,
        metadata: Optional[Mapping[str, Any]] = None,
        timeout_s: Optional[float] = None,
    ) -> Checkpoint:
        """Save one step; every rank calls it with its own files and returns when the whole checkpoint exists.

        `files` maps a name to bytes or to a function that writes to the binary file it is given, for example
        `{"model.npz": lambda file: numpy.savez(file, **arrays)}`. SaveTimeout: some rank did not deliver in time and
        nothing exists under the final name. Fenced: a newer attempt has begun, so stop.
        """
        began = time.monotonic()
        fence.check(self.folder)
        final = self.folder / f"step-{step}"
        plan = saving.Save(
            final=final,
            step=step,
            rank=self.context.rank,
            world_size=self.context.world_size,
            incarnation=self.context.incarnation,
            deadline=began + (self.save_timeout_s if timeout_s is None else timeout_s),
        )
        if not (final / manifests.MANIFEST).exists():
            saving.write_shards(plan, files)
            if self.context.rank == 0:
                shards = saving.collect(plan)
                manifest = Manifest(
                    step=step,
                    attempt=self.attempt,
                    world_size=self.context.world_size,
                    shards=shards,
                    parts=tuple(parts),
                    reshardable=reshardable,
                    parallelism=dict(parallelism or {}),
                    save_ms=int((time.monotonic() - began) * 1000),
                    created_at=time.time(),
                    metadata=dict(metadata or {}),
                )
                fence.check(self.folder)
                saving.publish(plan, manifest)
            else:
                saving.await_published(plan)
        saved = self._look(final)
        self._own.add(final)
        if self.context.rank == 0 and self._on_saved is not None:
            self._on_saved(saved)
        return saved

    def list(self) -> Tuple[List[Checkpoint], List[Rejected]]:
        """All complete (L1) checkpoints, newest first, and everything that only looks like one, with reasons.

        Attempts newer than ours are left out, and of older ones what was saved behind their fence.
        """
        good: List[Checkpoint] = []
        bad: List[Rejected] = []
        for folder in self._attempt_folders():
            allowed = fence.allowed(folder) if folder != self.folder else None
            for entry in sorted(folder.iterdir()):
                if not entry.is_dir():
                    continue
                if folder_step(entry.name) is None:
                    bad.append(Rejected(entry, "unfinished: not a final name"))
                    continue
                if allowed is not None and entry.name not in allowed:
                    bad.append(Rejected(entry, "saved after a newer attempt had begun"))
                    continue
                try:
                    good.append(self._look(entry))
                except InvalidCheckpoint as error:
                    bad.append(Rejected(entry, str(error), broken=True))
        good.sort(key=lambda found: (found.step, _attempt_key(found.path)), reverse=True)
        return good, bad

    def newest_valid(self, *, digests: bool = True) -> Optional[Checkpoint]:
        """The newest checkpoint that is complete and, with `digests`, reads back unharmed; None when there is none.

        Highest numeric step first, ties by attempt. One that fails is logged and listed in `rejected`, and the one
        before is tried.
        """
        return self._choose(digests=digests)[0]

    def resume(self, *, timeout_s: float = 600.0) -> Optional[Checkpoint]:
        """Fence the older attempts and choose what to go on from; the same answer on every rank of the gang.

        Rank 0 chooses and writes its choice down, the others wait for it: SaveTimeout if it does not come.
        """
        if self.context.rank != 0:
            return self._follow_choice(timeout_s)
        self.folder.mkdir(parents=True, exist_ok=True)
        for folder in self._attempt_folders():
            if folder != self.folder:
                names = [entry.name for entry in folder.iterdir() if (entry / manifests.MANIFEST).exists()]
                fence.raise_fence(folder, by=self.attempt, names=names)
        saving.sweep(self.folder)
        found, rejected = self._choose(digests=True)
        choice = {"incarnation": self.context.incarnation, "path": str(found.path) if found else None}
        durable.write_json(self.folder / RESUME, choice)
        for one in rejected:
            if one.broken and self._on_broken is not None:
                self._on_broken(one)
        return found

    def url_of(self, path: Path) -> str:
        """The URL of a checkpoint in the words of `TIDEGATE_CHECKPOINT_URL`; of another root, its plain path."""
        try:
            return f"{self._root_url}/{path.relative_to(self.root).as_posix()}"
        except ValueError:
            return str(path)

    def prune(self, keep: int = 2) -> List[Path]:
        """Remove all but the newest `keep` complete checkpoints; rank 0 only. What was removed.

        One that reads back unharmed always stays, however old; nothing is removed while none does.
        """
        if keep < 1:
            raise ValueError("keep must be at least 1")
        if self.context.rank != 0:
            return []
        good, bad = self.list()
        kept, old = good[:keep], good[keep:]
        spared = next((found for found in (*kept, *old) if self._is_unharmed(found)), None)
        if spared is None:
            return []
        removed = [found.path for found in old if found is not spared]
        # Unfinished folders of earlier attempts: nobody will finish them behind their fence.
        removed += [
            rejected.path for rejected in bad if rejected.path.parent != self.folder and _is_temporary(rejected.path)
        ]
        for path in removed:
            saving.remove(path)
        return removed

    def _choose(self, *, digests: bool) -> Tuple[Optional[Checkpoint], List[Rejected]]:
        good, bad = self.list()
        chosen: Optional[Checkpoint] = None
        for found in good:
            try:
                if digests:
                    manifests.check_digests(found.path, found.manifest)
            except InvalidCheckpoint as error:
                bad.append(Rejected(found.path, str(error), broken=True))
                continue
            chosen = Checkpoint(found.path, found.manifest, 2 if digests else 1, tuple(bad))
            break
        for rejected in bad:
            log.warning("checkpoint %s passed over: %s", rejected.path, rejected.reason)
        return chosen, bad

    def _is_unharmed(self, found: Checkpoint) -> bool:
        """What this process saved was digested on its way; reading it all again at each pruning would cost a save."""
        if found.path in self._own:
            return True
        try:
            manifests.check_digests(found.path, found.manifest)
        except InvalidCheckpoint:
            return False
        return True

    def _follow_choice(self, timeout_s: float) -> Optional[Checkpoint]:
        deadline = time.monotonic() + timeout_s
        while True:
            choice = durable.read_json(self.folder / RESUME)
            if choice is not None and choice.get("incarnation") == self.context.incarnation:
                path = choice["path"]
                return None if path is None else self._look(Path(path), verified=2)
            if time.monotonic() > deadline:
                raise saving.SaveTimeout(f"rank 0 did not choose a checkpoint within {timeout_s:.0f} s")
            time.sleep(saving.POLL_S)

    def _attempt_folders(self) -> List[Path]:
        folders = [entry for entry in self.root.iterdir() if entry.is_dir()] if self.root.is_dir() else []
        numbered = [(number, entry) for entry in folders for number in (attempt_of(entry.name),) if number is not None]
        found = [entry for number, entry in sorted(numbered) if number <= self.attempt]
        other = local_path(self.context.resume_from, variable="TIDEGATE_RESUME_FROM") if self._resumes_other() else None
        if other is not None and other.parent.is_dir():
            found.insert(0, other.parent)
        return found

    def _resumes_other(self) -> bool:
        """A checkpoint outside our root, for example of another job, is an older one for us."""
        if not self.context.resume_from:
            return False
        named = local_path(self.context.resume_from, variable="TIDEGATE_RESUME_FROM")
        return folder_step(named.name) is not None and named.parent.parent != self.root

    def _look(self, folder: Path, verified: int = 1) -> Checkpoint:
        manifest = manifests.read(folder)
        if manifest.step != folder_step(folder.name):
            raise InvalidCheckpoint(f"manifest says step {manifest.step}")
        manifests.check_complete(folder, manifest)
        return Checkpoint(folder, manifest, verified)


def _is_temporary(path: Path) -> bool:
    return path.name.endswith(saving.TEMPORARY)


def _attempt_key(path: Path) -> int:
    number = attempt_of(path.parent.name)
    return -1 if number is None else number
