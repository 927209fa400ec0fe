"""The part of the Store that attempts and followers use, in memory: rows are the views themselves.

For tests of workflows alone; the real store is tested beside its own tables.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from backends.types import Capabilities, LaunchRequest, Observation, Phase, PoolCapacity
from policies.reasons import verdict
from policies.states import LIVE_ATTEMPT_STATES
from policies.vocabulary import AttemptState, Reason, StopCause
from tests.builders.launch import a_group, a_launch
from workflows.messages import AttemptView, EndRequest, GroupSeen, Settled
from workflows.store import Live

_LIVE = {str(state) for state in LIVE_ATTEMPT_STATES}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _ms(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp() * 1000)


class MemoryStore:
    """`nudge(attempt_id)` is called after every change that a workflow should look at."""

    def __init__(self, nudge: Callable[[str], None]) -> None:
        self.rows: dict[str, AttemptView] = {}
        self.ends: dict[str, EndRequest] = {}
        self.marks: list[str] = []
        self.rests: list[tuple[str, int, str]] = []
        self.settles = 0
        self.reads = 0
        self.failing_reads = 0
        self.after_read: Callable[[AttemptView], None] = lambda _row: None  # play what happens just after a read
        self._nudge = nudge
        self._lock = threading.RLock()

    # -- what a test does

    def add(
        self, attempt_id: str, backends: Sequence[str] = ("one",), state: str = "RESERVED", **fields: object
    ) -> str:
        _, job, number = attempt_id.split("-")
        row = AttemptView(attempt_id, job, int(number), state, 1, 0, backends=list(backends))
        stamps = {"created_ms": now_ms(), "pools": {name: [f"pool-{name}"] for name in backends}, "term_s": 1}
        with self._lock:
            self.rows[attempt_id] = replace(row, **{**stamps, **fields})  # type: ignore[arg-type]
        return attempt_id

    def wish(self, attempt_id: str, *, nudge: bool = True, **fields: object) -> None:
        """What a user's or the arbiter's guarded UPDATE does."""
        self._change(attempt_id, **fields)
        if nudge:
            self._nudge(attempt_id)

    # -- Store: attempts

    def load_attempt(self, attempt_id: str) -> AttemptView | None:
        with self._lock:
            self.reads += 1
            if self.failing_reads > 0:
                self.failing_reads -= 1
                raise ConnectionError("the database went away")
            row = self.rows.get(attempt_id)
            read = None if row is None else replace(row, now_ms=now_ms())
        if read is not None:
            self.after_read(read)
        return read

    def launch_request(self, attempt_id: str, backend: str) -> LaunchRequest:
        group = a_group(f"pool-{backend}", ("true",), name=f"group-{backend}")
        return a_launch(group, key=attempt_id, user="ann")

    def mark(self, attempt_id: str, to: AttemptState, *, at: datetime | None = None) -> bool:
        order = ["RESERVED", "PENDING", "RUNNING", "STOPPING"]
        with self._lock:
            row = self.rows[attempt_id]
            if row.state not in order or order.index(to) <= order.index(row.state):
                return False
            self.marks.append(str(to))
            stamp = {"PENDING": "pending_ms", "RUNNING": "started_ms", "STOPPING": "stopping_ms"}[to]
            self._change(attempt_id, state=str(to), **{stamp: _ms(at) or now_ms()})
            return True

    def give_up_placing(self, attempt_id: str) -> bool:
        if self.rows[attempt_id].lease_state != "contingent":
            return False
        self._change(attempt_id, lease_state="voided")
        return True

    def prepared(self, attempt_id: str, backend: str, native: str) -> None:
        row = self.rows[attempt_id]
        self._change(
            attempt_id,
            prepared=sorted({*row.prepared, backend}),
            handles={**row.handles, backend: native},
        )

    def started(self, attempt_id: str, backend: str) -> None:
        self._change(attempt_id, started=[*self.rows[attempt_id].started, backend])

    def ask_stop(self, attempt_id: str, cause: StopCause, grace_s: int) -> bool:
        with self._lock:
            row = self.rows[attempt_id]
            if row.state not in _LIVE or (
                row.stop_cause and (cause is not StopCause.CANCEL or row.stop_cause == cause)
            ):
                return False
            self._change(attempt_id, stop_cause=str(cause), stop_grace_s=grace_s, stop_asked_ms=now_ms())
        self._nudge(attempt_id)
        return True

    def stop_sent(self, attempt_id: str, grace_s: int | None = None) -> None:
        with self._lock:
            row = self.rows[attempt_id]
            late = grace_s is not None and bool(row.stop_cause) and grace_s > row.stop_grace_s
            if row.state in _LIVE and not row.stop_sent and not late:
                self._change(attempt_id, stop_sent=True, stopping_ms=now_ms())
                self.mark(attempt_id, AttemptState.STOPPING)

    def checkpoint_sent(self, attempt_id: str, number: int) -> None:
        self._change(attempt_id, checkpoint_done=number)

    def settle(self, end: EndRequest) -> Settled:
        with self._lock:
            self.settles += 1
            row = self.rows[end.attempt_id]
            if row.state not in _LIVE:
                return Settled(first=False, attempt_state=row.state, job_state="")
            self.ends[end.attempt_id] = end
            state = str(verdict(Reason(end.reason)).attempt)
            self._change(end.attempt_id, state=state)
            return Settled(first=True, attempt_state=state, job_state="")

    def rest_pool(self, pool: str, seconds: int, reason: str) -> None:
        self.rests.append((pool, seconds, reason))

    def adopt(self, attempt_id: str, backend: str, native: str) -> bool:
        self.prepared(attempt_id, backend, native)
        return True

    # -- Store: followers

    def live_attempts(self, backend: str) -> Sequence[Live]:
        with self._lock:
            return [
                Live(key, row.job_id, AttemptState(row.state), row.handles, tuple(row.backends), datetime.now(UTC))
                for key, row in self.rows.items()
                if row.state in _LIVE and (not backend or backend in row.backends)
            ]

    def observe(self, backend: str, observations: Sequence[Observation]) -> int:
        changed = [one.handle.key for one in observations if self._observe(backend, one)]
        for key in changed:
            self._nudge(key)
        return len(changed)

    def _observe(self, backend: str, one: Observation) -> bool:
        with self._lock:
            row = self.rows.get(one.handle.key)
            if row is None or row.state not in _LIVE:
                return False
            before = next((part for part in row.seen if part.backend == backend), None)
            absent = one.phase is Phase.ABSENT
            if before is not None and not absent and (one.restarts, one.sequence) <= (before.restarts, before.sequence):
                return False
            end = one.end
            part = GroupSeen(
                backend,
                str(one.phase),
                as_of_ms=_ms(one.as_of) or 0,
                restarts=one.restarts,
                sequence=before.sequence if absent and before else one.sequence,
                started_ms=_ms(one.started_at),
                ended_ms=_ms(one.ended_at),
                cause=str(end.cause) if end else "",
                exit_code=end.exit_code if end else None,
                failed_rank=end.failed_rank if end else None,
                final=end.final if end else False,
                stop_confirmed=one.stop_confirmed,
                notice_kind=str(one.notice.kind) if one.notice else "",
                notice_deadline_ms=_ms(one.notice.deadline) if one.notice else None,
            )
            self._change(row.attempt_id, seen=[*(p for p in row.seen if p.backend != backend), part])
            return (
                before is None or before.phase != part.phase or replace(before, as_of_ms=0) != replace(part, as_of_ms=0)
            )

    def capacity(self, backend: str, pools: Sequence[PoolCapacity], capabilities: Capabilities | None = None) -> None:
        """Not looked at."""

    def answered(self, backend: str) -> None:
        self._light(backend, dark=False)

    def dark(self, backend: str, problem: str) -> None:
        self._light(backend, dark=True)

    def _light(self, backend: str, *, dark: bool) -> None:
        with self._lock:
            for key, row in self.rows.items():
                rest = [name for name in row.dark if name != backend]
                self._change(key, dark=[*rest, backend] if dark and backend in row.backends else rest)

    def _change(self, attempt_id: str, **fields: object) -> None:
        with self._lock:
            row = self.rows[attempt_id]
            self.rows[attempt_id] = replace(row, **{**fields, "version": row.version + 1})  # type: ignore[arg-type]
