"""One member's keeper: a process between the agent and the member, whose only work is that the member ends as decided.

It starts set-up and command, passes notices on, carries out stops, kills every descendant at the end, and alone writes
the member's status. It hears the agent through standard input; the end of that pipe is the agent's death, which the
member follows. Single-threaded, so that fork is safe.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from tidegate.agent import child, folder, processes, spec
from tidegate.agent.folder import Folder
from tidegate.job import durable, urls

TICK_S = 0.25
#: Looking for processes that begin to listen reads all of /proc: not more often than this.
LOOK_S = 1.0
#: A process that begins to listen this long after a notice is told still.
LATE_S = 5.0
KILL_S = 10.0
EXIT_SAVED = 75
_AGENT_GONE = "the agent ended, and with it the instance's members"


class Keeper:
    """State of one member. All times in the status are epoch seconds; schedules run on the monotonic clock."""

    def __init__(self, place: Folder, asked: spec.Spec, *, token: Optional[str], helper: str) -> None:
        self._place = place
        self._spec = asked
        self._env = child.environment(asked, place, token=token is not None, helper=helper)
        self._log = self._open_log()
        self._phases = child.phases(asked, place)
        self._phase = ""
        self._child: Optional[child.Child] = None
        self._errors: Optional[int] = None  # the child's pipe, until it ends
        self._error = ""
        self._status: Dict[str, Any] = place.read_status() or {}
        self._told: set[int] = set()
        self._tell_until = 0.0
        self._look_at = 0.0
        self._term_at: Optional[float] = None
        self._kill_at: Optional[float] = None
        self._limit_at: Optional[float] = None
        self._failed: Optional[Dict[str, Any]] = None
        self._notices = 0
        self._unwritten = False
        self._input = b""

    def run(self) -> None:
        """Until the member has ended."""
        wake, waker = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        os.set_blocking(0, False)
        self._next_phase()
        while self._status["state"] != "ended" or self._unwritten:
            watched = [0, wake] + ([] if self._errors is None else [self._errors])
            ready, _, _ = select.select(watched, [], [], self._timeout())
            if wake in ready:
                _drain(wake)
            if 0 in ready:
                self._hear()
            if self._errors is not None and self._errors in ready:
                self._read_errors()
            self._reap()
            self._act_on_time()

    def _hear(self) -> None:
        data = os.read(0, 65536)
        if not data:
            self._fail("NodeLost", _AGENT_GONE)
            # An ended pipe is always ready to read: look at something that never is.
            os.dup2(os.pipe()[0], 0)
            return
        *complete, self._input = (self._input + data).split(b"\n")
        for line in complete:
            message = json.loads(line)
            if message["do"] == "notice":
                self._tell(message["kind"], message["grace_s"])
            elif message["do"] == "stop":
                self._stop(message["kind"], message["grace_s"], message["term_s"])
            else:
                self._fail(message["cause"], message["detail"])

    def _tell(self, kind: str, grace_s: Optional[float]) -> None:
        now = time.time()
        deadline = None if grace_s is None else now + grace_s
        self._notices += 1
        notice = {"kind": kind, "deadline": deadline, "grace_s": grace_s, "id": self._notices}
        try:
            durable.write_json(self._place.notice, notice, mode=0o600, owner=child.owner_of(self._spec))
        except OSError as error:
            # The signal alone still means "save and leave"; a full disk must not cost the member its notice.
            self._complain(f"the notice could not be written: {error}")
        self._told = set()
        self._tell_until = time.monotonic() + LATE_S
        self._signal()
        self._write(notice={"kind": kind, "deadline": deadline, "grace_s": grace_s, "at": now})

    def _signal(self) -> None:
        """The notice's signal to every process that has a handler for it. A default action would kill the others."""
        self._look_at = time.monotonic() + LOOK_S
        if self._child is None:
            return
        if not processes.can_look():
            if not self._told:
                processes.send_group(self._child.pid, self._spec.signal_number)
                self._told.add(self._child.pid)
            return
        pids = [pid for pid in processes.descendants(os.getpid()) if pid not in self._told]
        for pid in processes.catchers(pids, self._spec.signal_number):
            processes.send(pid, self._spec.signal_number)
            self._told.add(pid)

    def _stop(self, kind: str, grace_s: float, term_s: Optional[float]) -> None:
        now = time.monotonic()
        kill_at = now + grace_s
        if self._kill_at is not None and kill_at >= self._kill_at:
            return  # a second stop may only shorten
        term_at = max(now, kill_at - (self._spec.term_s if term_s is None else term_s))
        self._kill_at = kill_at
        self._term_at = term_at if self._term_at is None else min(term_at, self._term_at)
        stop = self._status.get("stop") or {"kind": kind, "at": time.time()}
        stop["deadline"], stop["term_at"] = time.time() + grace_s, time.time() + self._term_at - now
        self._status["state"] = "stopping"
        if grace_s > 0 and self._phase == "run":
            self._status["stop"] = stop
            self._tell(kind, grace_s)
            self._tell_until = kill_at
            return
        # Without grace, or before the command has begun and there is nothing to save: at once.
        self._kill_at = self._term_at = now
        self._write(stop=stop)
        self._kill()

    def _fail(self, cause: str, detail: str) -> None:
        if self._failed is None:
            self._failed = {"cause": cause, "detail": detail}
        self._kill()

    def _act_on_time(self) -> None:
        now = time.monotonic()
        if self._unwritten:
            self._persist()
        if self._child is None:
            return
        if self._limit_at is not None and now >= self._limit_at:
            self._limit_at = None
            self._stop("stop", self._spec.grace_s, None)
        if self._look_at <= now < self._tell_until:
            self._signal()
        if self._term_at is not None and now >= self._term_at:
            self._term_at = float("inf")
            processes.send_group(self._child.pid, signal.SIGTERM)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill()

    def _timeout(self) -> Optional[float]:
        now = time.monotonic()
        times = [at for at in (self._term_at, self._kill_at, self._limit_at) if at is not None and at != float("inf")]
        if now < self._tell_until:
            times.append(self._look_at)
        if self._unwritten:
            times.append(now + TICK_S)
        if self._failed is not None or (self._kill_at is not None and now >= self._kill_at):
            times.append(now + TICK_S)  # a process in the kernel's hands takes its time
        return max(0.0, min(times) - now) if times else None

    def _next_phase(self) -> None:
        phase = self._phases.pop(0)
        self._phase = phase.name
        try:
            self._child = child.start(phase, self._spec, self._place, self._env, self._log)
            self._errors, self._error = self._child.errors, ""
        except OSError as error:
            self._child = None
            self._end(None, "LaunchFailed", f"{phase.name}: {error}")
            return
        if phase.name == "run":
            # Known before the exec, so that a crash of this process leaves a trace of the other.
            self._write(pid=self._child.pid)

    def _read_errors(self) -> None:
        """The pipe ends at exec, or when the child ends after it wrote what went wrong."""
        assert self._errors is not None
        try:
            piece = os.read(self._errors, 4096)
        except BlockingIOError:
            return
        if piece:
            self._error += piece.decode(errors="replace")
            return
        os.close(self._errors)
        self._errors = None
        if self._phase == "run" and not self._error:
            state = "running" if self._status["state"] == "starting" else self._status["state"]
            self._write(state=state, started_at=time.time())
            if self._spec.max_duration_s is not None:
                self._limit_at = time.monotonic() + self._spec.max_duration_s

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._child is not None and pid == self._child.pid:
                self._phase_ended(status)

    def _phase_ended(self, status: int) -> None:
        while self._errors is not None:  # the writer has ended, so this does too
            self._read_errors()
        code = -status_signal(status) or os.WEXITSTATUS(status)
        error = self._error
        if self._phase == "run" and not error and self._failed is None:
            self._end(code, None, "")
        elif self._failed is not None:
            self._end(None, self._failed["cause"], self._failed["detail"])
        elif self._status["state"] == "stopping":
            self._end(None, "Stopped", f"stopped during {self._phase}")
        elif error or code != 0:
            self._end(None, "LaunchFailed", f"{self._phase}: {error or f'ended with code {code}'}")
        else:
            self._kill_leftovers()
            self._next_phase()

    def _end(self, code: Optional[int], cause: Optional[str], detail: str) -> None:
        ended_at = time.time()
        self._child = None
        self._kill_leftovers()
        number = -code if code is not None and code < 0 else None
        exit_code = 128 + number if number is not None else code
        if cause is None:
            cause = {0: "Completed", EXIT_SAVED: "SavedAndExited"}.get(exit_code or 0, "NonZeroExit")
        self._write(
            state="ended",
            ended_at=ended_at,
            exit_code=exit_code,
            signal=number,
            cause=cause,
            detail=detail,
            final=self._has_final(),
        )

    def _kill(self) -> None:
        if self._child is not None:
            processes.send_group(self._child.pid, signal.SIGKILL)
        for pid in processes.descendants(os.getpid()):
            processes.send(pid, signal.SIGKILL)

    def _kill_leftovers(self) -> None:
        """What the command left running, however often it forked. It becomes our child when its parent ends."""
        deadline = time.monotonic() + KILL_S
        while time.monotonic() < deadline:
            left = processes.descendants(os.getpid())
            for pid in left:
                processes.send(pid, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    continue
            except ChildProcessError:
                return
            if left:
                time.sleep(0.005)

    def _has_final(self) -> bool:
        url = self._spec.env.get("TIDEGATE_CHECKPOINT_URL", "")
        try:
            return bool(url) and (urls.local_path(url) / "FINAL").is_file()
        except (ValueError, OSError):
            return False

    def _open_log(self) -> int:
        path = self._spec.log or str(self._place.log)
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o640)

    def _write(self, **changes: Any) -> None:
        self._status.update(changes)
        self._status["sequence"] = self._status.get("sequence", 0) + 1
        self._persist()

    def _persist(self) -> None:
        """A status that cannot be written now (disk full) is tried again; the member goes on meanwhile."""
        try:
            self._place.write_status(self._status)
            self._unwritten = False
        except OSError as error:
            if not self._unwritten:
                self._complain(f"the status could not be written: {error}")
            self._unwritten = True

    def _complain(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._log, f"tidegate-agent: {text}\n".encode(errors="replace"))


def status_signal(status: int) -> int:
    """The signal in a wait status; 0 for a regular exit."""
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def main(argv: Optional[List[str]] = None) -> int:
    """`keeper FOLDER`; the first line of standard input carries the token and where the helper lies."""
    place = Folder(Path((argv or sys.argv)[1]))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the agent's end is heard through the pipe
    lock = folder.try_lock(place.lock)
    if lock is None:
        return 1
    first = b""
    while not first.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            return 1
        first += piece
    greeting = json.loads(first)
    processes.become_subreaper()
    asked = spec.parse(durable.read_json(place.spec))
    try:
        child.write_scripts(asked, place, greeting.get("token"))
        keeper = Keeper(place, asked, token=greeting.get("token"), helper=greeting["helper"])
    except OSError as error:
        status = place.read_status() or {}
        status.update(state="ended", cause="LaunchFailed", detail=f"prepare: {error}", ended_at=time.time())
        status["sequence"] = status.get("sequence", 0) + 1
        place.write_status(status)
        return 1
    keeper.run()
    return 0


def _drain(descriptor: int) -> str:
    found = b""
    try:
        while True:
            piece = os.read(descriptor, 4096)
            if not piece:
                break
            found += piece
    except BlockingIOError:
        pass
    return found.decode(errors="replace")
