"""Stays with one job until its end: output on one thread, state on the other, signals and the bound in between.

Decides the program's exit code and writes the result file, also when the watch ends before the job.
"""

import json
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

from tidegate.cli import output
from tidegate.cli.exits import CANCELLED, CANNOT_WRITE, Quit, code_of_error, code_of_job
from tidegate.cli.text import plain
from tidegate.client import Client, ProblemError, UnreachableError, WaitTimeoutError
from tidegate.client.job_calls import get_job
from tidegate.client.watch import ONCE, Watch
from tidegate.wire.enums import JobState
from tidegate.wire.job import Job

_LOG_GRACE_S: Final = 10.0
_MOST: Final = 10_000  # attempts and tasks in a result
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class View:
    """How to watch, and what is known so far for the result."""

    as_json: bool = False
    logs: bool = True
    rank: int = 0
    leave: bool = False
    limit_s: float | None = None
    result: Path | None = None
    document: dict[str, Any] = field(default_factory=lambda: {"job": None, "state": None})


class _StopError(Exception):
    """A signal that leaves at once."""


@contextmanager
def reporting(view: View) -> Iterator[None]:
    """Whatever happens, the result file says so in the end."""
    try:
        yield
    except Quit as end:
        _report(view, end.code, end.message)
        raise
    except Exception as error:
        code = code_of_error(error)
        if isinstance(error, ProblemError) and view.document["job"] is None:
            view.document["problem"] = output.error_document(error)
        _report(view, code, str(error))
        raise


def _report(view: View, code: int, message: str) -> None:
    view.document["exit_code"] = code
    view.document.setdefault("message", message)
    if message and not view.document["message"]:
        view.document["message"] = message
    if view.result is None:
        return
    try:
        part = view.result.with_name(f".{view.result.name}.{os.getpid()}.part")
        part.write_text(json.dumps(view.document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(view.result)
    except OSError as error:
        raise Quit(code or CANNOT_WRITE, f"{view.result}: {error.strerror}; the result is not written") from error


def watch(client: Client, job: str, view: View) -> int:
    """Until the job's end. Returns the code to exit with; raises what keeps the watch from its end."""
    view.document["job"] = job
    stopping = threading.Event()
    follower = threading.Thread(target=_follow, args=(client, job, view, stopping), name="logs", daemon=True)
    if view.logs:
        follower.start()
    try:
        with _Interrupts(1 if view.leave else 2) as interrupts:
            found = _until_end(client, job, view, interrupts)
    except _StopError:
        _learn(client, job, view)
        words = "goes on. To end it" if view.leave else "was asked to end. To see what becomes of it"
        verb = "cancel" if view.leave else "show"
        raise Quit(CANCELLED, f"left; job {job} {words}: tidegate {verb} {job}") from None
    except (WaitTimeoutError, UnreachableError, Quit):
        _learn(client, job, view)
        raise
    if view.logs:
        # The last lines may still be on their way.
        follower.join(_LOG_GRACE_S)
    stopping.set()
    _describe(client, found, view)
    code = code_of_job(found)
    view.document["exit_code"] = code
    _say_end(found, view)
    if view.as_json:
        output.print_json(view.document)
    return code


class _Interrupts:
    """Counts SIGINT and SIGTERM instead of dying of them, and wakes the sleeping main thread.

    From the `at_once`-th on, a signal breaks off whatever runs; before that, nothing is broken off in the middle.
    """

    def __init__(self, at_once: int) -> None:
        self.count = 0
        self._at_once = at_once
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self.count >= self._at_once:
            raise _StopError

    def sleep(self, pause_s: float) -> None:
        """Until the time is over or a signal comes."""
        if select.select([self._read], [], [], pause_s)[0]:
            os.read(self._read, 4096)


def _until_end(client: Client, job: str, view: View, interrupts: _Interrupts) -> Job:
    watcher = Watch(job, view.limit_s)
    told = ""
    cancelling = False
    while True:
        found = _look(client, job, watcher)
        if isinstance(found, Job):
            if found.state.ended:
                return found
            told = _tell(found, told)
            found = watcher.pause_s()
        interrupts.sleep(found)
        if interrupts.count and not cancelling:
            cancelling = True
            _cancel(client, job)


def _look(client: Client, job: str, watcher: Watch) -> Job | float:
    """The job, or the pause after a look that failed."""
    import httpx  # noqa: PLC0415  (only for the timeout's type)

    try:
        return client.do(get_job(job), retry=ONCE, timeouts=httpx.Timeout(watcher.look_s()))
    except (UnreachableError, ProblemError) as error:
        return watcher.after_error(error)


def _tell(found: Job, told: str) -> str:
    """One line when state or reason for waiting change."""
    now = found.state.value
    if found.pending is not None:
        now += f" ({found.pending.token})"
    if found.attempts > 1:
        now += f", attempt {found.attempts}"
    if now != told:
        output.say(f"job {found.id} is {now}")
    return now


def _cancel(client: Client, job: str) -> None:
    try:
        client.cancel(job, message="interrupted where it was run")
    except (UnreachableError, ProblemError) as error:
        output.say(f"the job could not be cancelled: {error}")
        return
    output.say(f"job {job} is being cancelled; once more to leave at once")


def _learn(client: Client, job: str, view: View) -> None:
    """What the job is now, for the result of a watch that ends before it. Best effort."""
    try:
        _describe(client, client.do(get_job(job), retry=ONCE), view)
    except (UnreachableError, ProblemError):
        return


def _describe(client: Client, found: Job, view: View) -> None:
    view.document.update(
        {
            "job": found.id,
            "name": found.name,
            "tenant": found.tenant,
            "state": found.state.value,
            "reason": found.reason,
            "message": found.message,
            "job_exit_code": found.exit_code,
            "submitted_at": _instant(found.submitted_at),
            "started_at": _instant(found.started_at),
            "ended_at": _instant(found.ended_at),
            "preemptions": found.preemptions,
            "revocations": found.revocations,
            "failures": found.failures,
        }
    )
    if found.array_size is not None:
        view.document["array"] = {"size": found.array_size, "ended": found.array_ended, "failed": found.array_failed}
    try:
        tries = list(islice(client.attempts(found.id), _MOST))
        if found.array_size is not None:
            view.document["array"]["failed_tasks"] = [
                {"index": task.index, "reason": task.reason, "exit_code": task.exit_code}
                for task in islice(client.tasks(found.id), _MOST)
                if task.state is JobState.FAILED
            ]
    except (UnreachableError, ProblemError) as error:
        output.say(f"the attempts could not be read: {error}")
        return
    view.document["attempts"] = [
        {
            "number": one.number,
            "chunk": one.chunk,
            "state": one.state.value,
            "reason": one.reason,
            "exit_code": one.exit_code,
            "failed_rank": one.failed_rank,
            "codes": one.codes,
        }
        for one in tries
    ]


def _instant(at: Any) -> str | None:
    return at.isoformat() if at is not None else None


def _say_end(found: Job, view: View) -> None:
    words = f"job {found.id} {found.state}"
    if found.reason:
        words += f" ({found.reason})"
    output.say(words + (f": {found.message}" if found.message else ""))
    tries = view.document.get("attempts") or []
    rank = tries[-1]["failed_rank"] if tries else None
    if found.state is JobState.FAILED and rank not in (None, view.rank):
        output.say(f"rank {rank} failed first; its output: tidegate logs {found.id} --rank {rank}")


def _follow(client: Client, job: str, view: View, stopping: threading.Event) -> None:
    """The output of one rank over all attempts. An error here never ends the watch."""

    def emit(text: str) -> None:
        if view.as_json:
            sys.stderr.write(plain(text) if sys.stderr.isatty() else text)
            sys.stderr.flush()
        else:
            output.print_log(text)

    try:
        follow_attempts(client, job, view.rank, emit, stopping)
    except Exception as error:  # noqa: BLE001  (the thread's end: whatever it is, the watch goes on without output)
        if not stopping.is_set():
            output.say(f"the output cannot be followed: {error}")


def follow_attempts(
    client: Client, job: str, rank: int, emit: Callable[[str], None], stopping: threading.Event
) -> None:
    """Show each attempt's output to its end, then the next one's, until the job has ended."""
    attempt, offset = 1, 0
    while not stopping.is_set():
        before = client.get(job)
        if before.array_size is not None:
            return  # hundreds of tasks on one terminal help nobody; `tidegate logs --index` shows one
        if before.attempts >= attempt:
            try:
                for piece in client.logs(job, rank=rank, attempt=attempt, offset=offset, follow=True):
                    emit(piece.text)
                    offset = piece.offset
            except ProblemError as error:
                # Not launched yet, or no longer there.
                if error.status not in {404, 409}:
                    raise
            if before.attempts > attempt:
                attempt, offset = attempt + 1, 0
                continue
        if before.state.ended:
            return
        stopping.wait(0.5)
