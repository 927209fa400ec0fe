"""Saves that are staged on a local disk and uploaded while training goes on.

A staged save is no checkpoint: it is one once it is uploaded and published like any other (POLICIES §10). Uploads go in
the order of their steps, on every rank the same, so that the ranks of a gang never wait for different steps.
"""

from __future__ import annotations

import logging
import queue
import shutil
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Mapping, Optional, Tuple

from tidegate.job import durable
from tidegate.job.saving import check_name
from tidegate.job.store import Checkpoint, Checkpoints, Content

log = logging.getLogger("tidegate.job")


class Upload:
    """One staged save on its way."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.checkpoint: Optional[Checkpoint] = None
        self.error: Optional[BaseException] = None
        self._done = threading.Event()

    def wait(self, timeout_s: Optional[float] = None) -> Optional[Checkpoint]:
        """The checkpoint, or None when it is not there in time. Raises what the upload raised."""
        if not self._done.wait(timeout_s):
            return None
        if self.error is not None:
            raise self.error
        return self.checkpoint

    def settle(self, checkpoint: Optional[Checkpoint], error: Optional[BaseException] = None) -> None:
        """How it ended."""
        self.checkpoint, self.error = checkpoint, error
        self._done.set()


class Stager:
    """Stages below `folder`, uploads through `store`. `depth` saves may wait; one more blocks until there is room."""

    def __init__(self, store: Checkpoints, folder: str, *, depth: int = 2) -> None:
        self._store = store
        self._folder = Path(folder)
        self._queue: "queue.Queue[Tuple[Upload, Dict[str, Path], Mapping[str, Any]]]" = queue.Queue(depth)
        self._newest: Optional[Checkpoint] = None
        self._pending = 0
        self._changed = threading.Condition()
        self._thread: Optional[threading.Thread] = None

    def save(self, step: int, files: Mapping[str, Content], **options: Any) -> Upload:
        """Write to the local disk and return; `options` as of `Checkpoints.save`."""
        folder = self._folder / f"step-{step}" / f"rank-{self._store.context.rank:05d}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        staged: Dict[str, Path] = {}
        for name, content in files.items():
            check_name(name)
            staged[name] = folder / name
            with staged[name].open("wb") as file:
                if callable(content):
                    content(file)
                else:
                    file.write(content)
        upload = Upload(step)
        with self._changed:
            self._pending += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tidegate-upload", daemon=True)
                self._thread.start()
        self._queue.put((upload, staged, options))
        return upload

    def drain(self, timeout_s: float) -> Optional[Checkpoint]:
        """At a notice: let uploads finish as far as the time allows; the newest checkpoint that is whole by then."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._pending:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return self._newest

    def _run(self) -> None:
        while True:
            upload, staged, options = self._queue.get()
            checkpoint: Optional[Checkpoint] = None
            error: Optional[BaseException] = None
            try:
                files: Dict[str, Content] = {name: _reader(path) for name, path in staged.items()}
                checkpoint = self._store.save(upload.step, files, **options)
            except Exception as raised:  # noqa: BLE001 - handed to whoever waits; the next upload goes on
                log.warning("the upload of step %s failed: %s", upload.step, raised)
                error = raised
            with self._changed:
                self._pending -= 1
                self._newest = checkpoint or self._newest
                self._changed.notify_all()
            upload.settle(checkpoint, error)
            for path in staged.values():
                path.unlink(missing_ok=True)


def _reader(path: Path) -> Callable[[BinaryIO], None]:
    def copy(sink: BinaryIO) -> None:
        with path.open("rb") as source:
            shutil.copyfileobj(source, sink, durable.CHUNK_BYTES)

    return copy
