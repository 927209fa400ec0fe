"""The part of the Store that attempts and followers use, in memory: rows are the views themselves.

For tests of workflows alone; the real store is tested beside its own tables.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime

from backends.types import Capabilities, LaunchRequest, Observation, PoolCapacity
from gateway.ledger import observe
from policies.reasons import verdict
from policies.states import ATTEMPT_EDGES, LIVE_ATTEMPT_STATES
from policies.vocabulary import AttemptState, Reason, StopCause
from tests.builders.launch import a_group, a_launch
from workflows.messages import AttemptView, EndRequest, GroupSeen, Settled
from workflows.store import Live

_LIVE = {str(state) for state in LIVE_ATTEMPT_STATES}


def _ms(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp() * 1000)


class MemoryStore:
    """`nudge(attempt_id)` is called after every change that a workflow should look at."""

    def __init__(self, nudge: Callable[[str], None]) -> None:
        self.rows: dict[str, AttemptView] = {}
        self.ends: dict[str, EndRequest] = {}
        self.marks: list[str] = []
        self.rests: list[tuple[str, int, str]] = []
        self.clock: Callable[[], datetime] = lambda: datetime.now(UTC)
        self.resizes: list[tuple[bool, str]] = []
        self.settles = 0
        self.firsts = 0  # of the settlements: those that ended an attempt
        self.reads = 0
        self.failing_reads = 0
        self.after_read: Callable[[AttemptView], None] = lambda _row: None  # play what happens just after a read
        self._nudge = nudge
        self._lock = threading.RLock()

    def now_ms(self) -> int:
        return int(self.clock().timestamp() * 1000)

    # -- what a test does

    def add(
        self, attempt_id: str, backends: Sequence[str] = ("one",), state: str = "RESERVED", **fields: object
    ) -> str:
        _, job, number = attempt_id.split("-")
        row = AttemptView(attempt_id, job, int(number), state, 1, 0, backends=list(backends))
        stamps = {"created_ms": self.now_ms(), "pools": {name: [f"pool-{name}"] for name in backends}, "term_s": 1}
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
            read = None if row is None else replace(row, now_ms=self.now_ms())
        if read is not None:
            self.after_read(read)
        return read

    def launch_request(self, attempt_id: str, backend: str) -> LaunchRequest:
        group = a_group(f"pool-{backend}", ("true",), name=f"group-{backend}")
        return a_launch(group, key=attempt_id, user="ann")

    def mark(self, attempt_id: str, to: AttemptState, *, at: datetime | None = None) -> bool:
        with self._lock:
            row = self.rows[attempt_id]
            if to not in ATTEMPT_EDGES[AttemptState(row.state)]:
                return False
            self.marks.append(str(to))
            stamp = {"PENDING": "pending_ms", "RUNNING": "started_ms", "STOPPING": "stopping_ms"}.get(to)
            first = {} if stamp is None else {stamp: getattr(row, stamp) or _ms(at) or self.now_ms()}
            self._change(attempt_id, state=str(to), **first)
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
            grace_s += self._told_s_ago(row)
            graces_s = [grace_s, row.stop_grace_s] if row.stop_cause else [grace_s]
            self._change(attempt_id, stop_cause=str(cause), stop_grace_s=min(graces_s), stop_asked_ms=self.now_ms())
        self._nudge(attempt_id)
        return True

    def stop_sent(self, attempt_id: str, grace_s: int | None = None, since_s: float = 0) -> None:
        with self._lock:
            row = self.rows[attempt_id]
            if row.state not in _LIVE:
                return
            if not row.stop_sent:
                told: dict[str, object] = {"stop_sent": True, "stopping_ms": self.now_ms()}
                if not row.stop_cause:
                    told |= {"stop_cause": StopCause.WAITER_GONE.value, "stop_grace_s": 0}
                    told |= {"stop_asked_ms": self.now_ms()}
                self._change(attempt_id, **told)
            self.mark(attempt_id, AttemptState.STOPPING)
            row = self.rows[attempt_id]
            if grace_s is not None and row.stop_grace_s < grace_s:
                self._change(attempt_id, stop_sent=False, stopping_ms=None)
            elif grace_s is not None and grace_s + self._told_s_ago(row) < row.stop_grace_s:
                self._change(attempt_id, stop_grace_s=grace_s + self._told_s_ago(row))

    def _told_s_ago(self, row: AttemptView) -> int:
        return -(-(self.now_ms() - row.stopping_ms) // 1000) if row.stopping_ms is not None else 0

    def checkpoint_sent(self, attempt_id: str, number: int) -> None:
        self._change(attempt_id, checkpoint_done=number)

    def resize_sent(self, attempt_id: str) -> None:
        row = self.rows[attempt_id]
        if row.resize is not None:
            self._change(attempt_id, resize=replace(row.resize, sent=True))

    def resized(self, attempt_id: str, *, reached: bool, message: str = "") -> bool:
        if self.rows[attempt_id].resize is None:
            return False
        self._change(attempt_id, resize=None, stop_cause="", stop_grace_s=0)
        self.resizes.append((reached, message))
        return True

    def settle(self, end: EndRequest) -> Settled:
        with self._lock:
            self.settles += 1
            row = self.rows[end.attempt_id]
            if row.state not in _LIVE:
                return Settled(first=False, attempt_state=row.state, job_state="")
            self.ends[end.attempt_id] = end
            self.firsts += 1
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
        """By the ledger's own rules of what is newer, what has changed and what an absence cannot know."""
        with self._lock:
            row = self.rows.get(one.handle.key)
            if row is None or row.state not in _LIVE:
                return False
            part = next((part for part in row.seen if part.backend == backend), None)
            before = None if part is None else asdict(part)
            if not observe._newer(before, one):
                return False
            after = observe._json(before, one)
            known = {name: value for name, value in after.items() if name in GroupSeen.__dataclass_fields__}
            changed = before is None or observe._told(before) != observe._told({**known, "backend": backend})
            if changed or after["as_of_ms"] - (before or after)["as_of_ms"] >= observe.FRESH_MS:
                seen = GroupSeen(**{**known, "backend": backend})
                others = [each for each in row.seen if each.backend != backend]
                self._change(row.attempt_id, seen=sorted([*others, seen], key=lambda each: each.backend))
            return changed

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
