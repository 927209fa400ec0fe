"""The one session of this process: what the functions of `tidegate.job` act on. Importing it starts nothing."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn, Optional, Union

from tidegate.job import durable
from tidegate.job.agreement import Coordinator, Follower
from tidegate.job.environ import Context, context
from tidegate.job.gate import SAVE, STOP, Gate
from tidegate.job.notices import Notice, Watcher
from tidegate.job.reports import Reporter
from tidegate.job.store import Checkpoint, Checkpoints, Rejected
from tidegate.job.urls import ContextError

EXIT_SAVED = 75  # EX_TEMPFAIL: "saved, run me again" (DESIGN §3)
FINAL = "FINAL"
PATIENCE_S = 10.0  # a third of the shortest notice of a cloud (30 s)
FLUSH_S = 3.0


class Session:
    """Notices, the agreement with the gang, and reports of one member. `start` is called by the first use."""

    def __init__(self, ctx: Optional[Context] = None, *, patience_s: float = PATIENCE_S) -> None:
        self.context = ctx or context()
        self._gate = Gate(patience_s + 10.0)
        self._patience_s = patience_s
        self._agreement: Union[Coordinator, Follower, None] = None
        self._watcher: Optional[Watcher] = None
        self._reporter: Optional[Reporter] = None
        self._lock = threading.Lock()
        self._notice: Optional[Notice] = None
        self._checkpoints: Optional[Checkpoints] = None
        self._step: Optional[int] = None

    def start(self) -> None:
        """Listen for notices and join the gang. Call it from the main thread, for the sake of signals. Idempotent."""
        with self._lock:
            if self._agreement is not None:
                return
            ctx = self.context
            if ctx.world_size > 1 and not ctx.coord_port:
                raise ContextError("TIDEGATE_COORD_PORT or MASTER_PORT must be set for a gang of two or more")
            address = (ctx.master_addr, ctx.coord_port)
            # The token is the attempt's own secret, so a stranger on the network cannot stop the gang.
            key = f"{ctx.job_id}|{ctx.attempt}|{ctx.token()}".encode()
            if ctx.rank == 0:
                self._agreement = Coordinator(self._gate, ctx.world_size, address, key, self._patience_s)
            else:
                self._agreement = Follower(self._gate, ctx.rank, address, key)
            self._agreement.start()
            self._watcher = Watcher(ctx.notice_file, ctx.checkpoint_signal, self._hear)
            self._watcher.start()

    def should_stop(self, step: int) -> bool:
        """True from the one step on that the whole gang has agreed to stop at. Ask after each step, on every rank.

        Returns at once unless an agreement is being reached (milliseconds).
        """
        self.start()
        self._step = step
        return self._gate.stop(step)

    def should_save(self, step: int) -> bool:
        """True once, at the step that the gang has agreed to save at, when somebody asked for a checkpoint."""
        self.start()
        return self._gate.save(step)

    def notice(self) -> Optional[Notice]:
        """The last notice that this member heard, with its deadline."""
        return self._notice

    def checkpoints(self, url: Optional[str] = None, **options: Any) -> Checkpoints:
        """The job's checkpoints, each reported to the gateway by rank 0 once it is complete."""
        self.start()
        self._checkpoints = Checkpoints(
            url, ctx=self.context, on_saved=self._report_checkpoint, on_broken=self._report_broken, **options
        )
        return self._checkpoints

    def report(self, step: int, samples: int = 0) -> None:
        """Progress, of rank 0 alone. Never blocks, never raises for the network."""
        self._step = step
        reporter = self._reports()
        if reporter is not None and self.context.rank == 0:
            reporter.progress(step, samples)

    def finish(self) -> Optional[Path]:
        """Mark that the work is done: a FINAL file beside the newest checkpoint. Where it is; None off rank 0."""
        path: Optional[Path] = None
        if self.context.rank == 0 and (self._checkpoints is not None or self.context.checkpoint_url):
            folder = (self._checkpoints or Checkpoints(ctx=self.context)).folder
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / FINAL
            durable.write_json(path, {"step": self._step, "at": time.time()})
        self.flush()
        return path

    def exit_saved(self) -> NoReturn:
        """Leave with code 75: saved, run me again. Call it after the save has returned."""
        self.flush()
        sys.exit(EXIT_SAVED)

    def flush(self, timeout_s: float = FLUSH_S) -> None:
        """Give reports that wait a last chance; returns early when the gateway is away."""
        if self._reporter is not None:
            self._reporter.flush(timeout_s)

    def close(self) -> None:
        """End every thread; for tests and for hosts that outlive a session."""
        for part in (self._watcher, self._agreement, self._reporter):
            if part is not None:
                part.close()

    def _hear(self, notice: Notice) -> None:
        self._notice = notice
        assert self._agreement is not None
        self._agreement.flag(STOP if notice.leaving else SAVE, notice.key)

    def _report_checkpoint(self, saved: Checkpoint) -> None:
        reporter = self._reports()
        if reporter is None:
            return
        reporter.checkpoint(
            {
                "step": saved.step,
                # Named as the gateway named the folder, so that it recognises its own URL.
                "url": f"{self.context.checkpoint_url.rstrip('/')}/{saved.path.name}",
                "size": saved.manifest.size,
                "save_ms": saved.manifest.save_ms,
                "parts": list(saved.manifest.parts),
                "reshardable": saved.manifest.reshardable,
                "world_size": saved.manifest.world_size,
                "parallelism": dict(saved.manifest.parallelism),
                "verified": saved.verified,
            }
        )

    def _report_broken(self, rejected: Rejected) -> None:
        reporter = self._reports()
        if reporter is not None and self._checkpoints is not None:
            reporter.broken({"url": self._checkpoints.url_of(rejected.path)})

    def _reports(self) -> Optional[Reporter]:
        with self._lock:
            if self._reporter is None and self.context.url:
                self._reporter = Reporter(self.context.url, self.context.token)
            return self._reporter


_session: Optional[Session] = None
_session_pid = 0
_session_lock = threading.Lock()


def session() -> Session:
    """This process's session, made at first use; a forked child (a data loader) makes its own."""
    global _session, _session_pid
    with _session_lock:
        if _session is None or _session_pid != os.getpid():
            _session, _session_pid = Session(), os.getpid()
        return _session


def should_stop(step: int) -> bool:
    """See `Session.should_stop`."""
    return session().should_stop(step)


def should_save(step: int) -> bool:
    """See `Session.should_save`."""
    return session().should_save(step)


def notice() -> Optional[Notice]:
    """See `Session.notice`."""
    return session().notice()


def checkpoints(url: Optional[str] = None, **options: Any) -> Checkpoints:
    """See `Session.checkpoints`."""
    return session().checkpoints(url, **options)


def report(step: int, samples: int = 0) -> None:
    """See `Session.report`."""
    session().report(step, samples)


def finish() -> Optional[Path]:
    """See `Session.finish`."""
    return session().finish()


def exit_saved() -> NoReturn:
    """See `Session.exit_saved`."""
    session().exit_saved()
