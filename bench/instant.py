"""A backend whose work costs nothing: what is started has run and ended at once. It measures all that is around it.

It lives in the worker's memory and runs no process, so that a figure with it says what the gate itself costs.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from backends.errors import Refused
from backends.types import (
    Capabilities,
    End,
    Handle,
    LaunchRequest,
    LogChunk,
    NoticeKind,
    Observation,
    Owned,
    Phase,
    PoolCapacity,
    StopMode,
)
from policies.snapshot import Node, Resources
from policies.vocabulary import Reason

GIB: Final = 1 << 30
NODES: Final = 16
NODE: Final = Resources(8_000, 4_096_000, 4_096 * GIB, 1_024 * GIB)
WATCH_S: Final = 0.5
KEPT: Final = timedelta(seconds=60)


@dataclass(slots=True)
class _Launch:
    request: LaunchRequest
    made_at: datetime
    ended_at: datetime | None = None


class InstantBackend:
    """The port over a dictionary. Each pool of `pools` has NODES nodes."""

    capabilities = Capabilities(places_nodes=True, gang=True, node_sharing=True, settle_s=0)

    def __init__(self, name: str, pools: Sequence[str]) -> None:
        self.name = name
        self._pools = tuple(pools)
        self._launches: dict[str, _Launch] = {}
        self._ended: deque[str] = deque()
        self._changes: deque[str] = deque()
        self._changed = threading.Condition()

    def capacity(self) -> Sequence[PoolCapacity]:
        """The same for ever."""
        nodes = tuple(Node(f"node-{n}", NODE) for n in range(NODES))
        return [PoolCapacity(pool, nodes, _now()) for pool in self._pools]

    def prepare(self, request: LaunchRequest) -> Handle:
        """Kept."""
        with self._changed:
            self._launches.setdefault(request.key, _Launch(request, _now()))
        return self._handle(request.key)

    def start(self, handle: Handle) -> None:
        """Run to its end, and seen to be."""
        with self._changed:
            launch = self._launches.get(handle.key)
            if launch is None:
                raise Refused(f"{handle.key} was never prepared", reason=Reason.LOST)
            if launch.ended_at is None:
                launch.ended_at = _now()
                self._ended.append(handle.key)
                self._changes.append(handle.key)
                self._changed.notify_all()
                self._forget(launch.ended_at)

    def abort(self, handle: Handle) -> None:
        """Nothing is left of it."""
        with self._changed:
            self._launches.pop(handle.key, None)

    def find(self, key: str) -> Handle | None:
        """By its key."""
        return self._handle(key) if key in self._launches else None

    def observe(self, handles: Sequence[Handle]) -> Sequence[Observation]:
        """Prepared, ended or absent."""
        return [self._observation(handle.key) for handle in handles]

    def watch(self, since: str) -> Iterator[tuple[str, Observation | None]]:  # noqa: ARG002  (from now on, always)
        """What ended, once."""
        while True:
            with self._changed:
                if not self._changes:
                    self._changed.wait(WATCH_S)
                keys = list(self._changes)
                self._changes.clear()
            for key in keys:
                yield "", self._observation(key)
            if not keys:
                yield "", None

    def stop(self, handle: Handle, mode: StopMode, grace_s: int, kind: NoticeKind = NoticeKind.STOP) -> None:
        """Too late for whatever was started."""

    def list_owned(self) -> Sequence[Owned]:
        """All that is kept."""
        return [
            Owned(
                handle=self._handle(key),
                gateway=launch.request.gateway,
                job=launch.request.job,
                attempt=launch.request.attempt,
                tenant=launch.request.tenant,
                phase=Phase.PREPARED if launch.ended_at is None else Phase.ENDED,
                created_at=launch.made_at,
            )
            for key, launch in list(self._launches.items())
        ]

    def logs(self, handle: Handle, rank: int, offset: int = 0, *, follow: bool = False) -> Iterator[LogChunk]:  # noqa: ARG002
        """Nothing was said."""
        return iter(())

    def close(self) -> None:
        """Nothing is held."""

    def _forget(self, now: datetime) -> None:
        while self._ended:
            launch = self._launches.get(self._ended[0])
            if launch is not None and launch.ended_at is not None and now - launch.ended_at < KEPT:
                return
            self._launches.pop(self._ended.popleft(), None)

    def _handle(self, key: str) -> Handle:
        return Handle(self.name, key, f"instant/{key}")

    def _observation(self, key: str) -> Observation:
        launch = self._launches.get(key)
        if launch is None:
            return Observation(self._handle(key), Phase.ABSENT, _now())
        if launch.ended_at is None:
            return Observation(self._handle(key), Phase.PREPARED, _now())
        codes = {rank: 0 for group in launch.request.groups for rank in range(group.replicas)}
        return Observation(
            self._handle(key),
            Phase.ENDED,
            _now(),
            sequence=1,
            started_at=launch.ended_at,
            ended_at=launch.ended_at,
            end=End(Reason.COMPLETED, 0, codes=codes),
        )


def _now() -> datetime:
    return datetime.now(UTC)
