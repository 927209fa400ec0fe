"""Looking at launches, and what follows from a look: a broken gang is stopped as one, an end is written down once."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from backends.errors import BackendError
from backends.local.client import Files
from backends.local.files import LockTimeoutError
from backends.local.launching import Launcher
from backends.local.machines import Machines
from backends.local.read import StopRest, conclude, departures, observation, stop_rest
from backends.local.records import Ended, InstanceView, Record, instant
from backends.types import End, Handle, NoticeKind, Observation, Phase
from policies.vocabulary import Reason

FINISHED: Final = -1  # instead of a sequence: an ended launch never changes, so nobody looks at it again


class Looker:
    """Reads files and the process table; asks no agent unless members have to be stopped."""

    def __init__(self, name: str, files: Files, machines: Machines, launcher: Launcher) -> None:
        self.name = name
        self.files = files
        self.machines = machines
        self.launcher = launcher

    def look(self, handle: Handle) -> Observation:
        """One observation; ABSENT where nothing is recorded."""
        now = time.time()
        record = self.files.record(handle.key)
        if record is None:
            return Observation(handle, Phase.ABSENT, instant(now))
        if record.ended is not None or record.placement is None:
            return observation(handle, record, {}, {}, now)
        placement = record.placement
        record = replace(record, changed_us=self.machines.changed_us(record))  # before what it dates is read
        instances, statuses = self._inside(record)
        if placement.started:
            gone = departures(placement, statuses, instances, now)
            if (ended := conclude(record, gone, statuses, instances, now)) is not None:
                record = self._write_end(record, ended, instances)
            elif (advice := stop_rest(record, gone, statuses, now)) is not None:
                self._stop_rest(record, advice)
        return observation(handle, record, statuses, instances, now)

    def changed(self, cursor: int, seen: dict[str, int]) -> Sequence[Observation]:
        """What changed after the cursor and was not seen with its present sequence, the oldest change first."""
        known = set(seen) if seen else set(self.files.all_keys())
        keys = {key for key in known if seen.get(key) != FINISHED} | set(self.files.live_keys())
        found = []
        for key in sorted(keys):
            with suppress(BackendError, OSError, LockTimeoutError, ValueError, KeyError):
                one = self.look(Handle(self.name, key, f"{self.name}/{key}"))
                fresh = one.sequence > seen.get(key, cursor)
                if one.phase is Phase.ABSENT:
                    fresh = seen.pop(key, None) is not None
                else:
                    seen[key] = FINISHED if one.phase is Phase.ENDED else max(one.sequence, seen.get(key, 0))
                if fresh:
                    found.append(one)
        return sorted(found, key=lambda one: one.sequence)

    def has_left(self, key: str, rank: int) -> bool:
        """Whether a member writes no more."""
        record = self.files.record(key)
        if record is None or record.ended is not None:
            return True
        if record.placement is None or not record.placement.instances:
            return False
        instances, statuses = self._inside(record)
        return any(one.rank == rank for one in departures(record.placement, statuses, instances, time.time()))

    def tell_to_stop(self, record: Record, ranks: Sequence[int] | None, kind: NoticeKind, grace_s: float) -> None:
        """Ask every agent that lives. One that does not answer raises OutcomeUnknown, after the others were asked."""
        body: dict[str, Any] = {"launch": record.key, "kind": kind.value, "grace_s": grace_s}
        body |= {"term_s": min(float(record.request.term_s), grace_s), "ranks": None if ranks is None else list(ranks)}
        self.machines.call_all(self.launcher.instances(record), "POST", "/stop", body)

    def end_unstarted(self, record: Record) -> None:
        """It was stopped before anything ran."""
        end = End(Reason.USER_CANCELLED, detail="stopped before it started")
        if record.stop is not None:
            self.files.write_stop(record.key, record.stop)
        self.files.write_end(record, Ended(end, None, time.time(), None))

    def _inside(self, record: Record) -> tuple[dict[str, InstanceView], dict[int, dict[str, Any]]]:
        """Instances first: a member's last word, written before its instance died, must be read after the death.

        And once more where a member says that its instance died: that came in between.
        """
        instances = {view.id: view for view in self.launcher.instances(record)}
        statuses = self.machines.statuses(record)
        if any(status.get("cause") == Reason.NODE_LOST for status in statuses.values()):
            instances = {view.id: view for view in self.launcher.instances(record)}
        return instances, statuses

    def _write_end(self, record: Record, ended: Ended, instances: dict[str, InstanceView]) -> Record:
        for instance in instances.values():
            if not instance.alive:
                self.machines.sweep(instance)
        with self.files.launch_lock(record.key):
            present = self.files.record(record.key)
            return record if present is None else self.files.write_end(present, ended)

    def _stop_rest(self, record: Record, advice: StopRest) -> None:
        with suppress(BackendError):  # The next look tries again.
            self.tell_to_stop(record, advice.ranks, advice.kind, advice.grace_s)
