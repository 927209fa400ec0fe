"""The port in memory, for tests of what uses it. It passes the contract suite, and it can be told to fail.

cluster = FakeCluster()
backend = FakeBackend(cluster)
cluster.faults.inject("start", Fault.LOST_ANSWER)
...
cluster.finish(key, rank=0, code=1); cluster.evict(key); cluster.notice(key, deadline)
"""

import time
from collections.abc import Iterator, Sequence

from backends.environment import check, member_command, members
from backends.errors import Misconfigured, Refused
from backends.types import (
    Capabilities,
    Handle,
    LaunchRequest,
    LogChunk,
    NoticeKind,
    Observation,
    Owned,
    Phase,
    PoolCapacity,
    Preemption,
    SiteFiles,
    StopMode,
)
from policies.vocabulary import Reason
from tests.fakes.cluster import FakeCluster, Launch

CAPABILITIES = Capabilities(
    places_nodes=True,
    preemption=Preemption.PLACE_FIRST,
    checkpoint_signal=True,
    site_files=SiteFiles.MOUNT,
    gang=True,
    resize=True,
    spot_notices=True,
    node_sharing=True,
    logs=True,
    settle_s=0,
)
WATCH_S = 0.5


class FakeBackend:
    """One backend on a cluster in memory. Build a second one on the same cluster to play a restarted process."""

    def __init__(
        self,
        cluster: FakeCluster | None = None,
        *,
        name: str = "fake",
        gateway: str = "gw",
        capabilities: Capabilities = CAPABILITIES,
    ) -> None:
        self.cluster = cluster or FakeCluster()
        self._name = name
        self._gateway = gateway
        self._capabilities = capabilities

    @property
    def name(self) -> str:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def capacity(self) -> Sequence[PoolCapacity]:
        with self.cluster.faults.around("capacity"), self.cluster.changed:
            as_of = self.cluster.clock()
            pools = self.cluster.pools
            return [PoolCapacity(name, tuple(pools[name]), as_of, self.cluster.by_owner(name)) for name in pools]

    def prepare(self, request: LaunchRequest) -> Handle:
        self._called("prepare", request.key)
        with self.cluster.faults.around("prepare"):
            check(request)
            for member in members(request):
                member_command(request, member)
                nodes = self.cluster.pools.get(member.group.pool)
                if nodes is None:
                    raise Misconfigured(f"{self._name}: there is no pool {member.group.pool}")
                if not any(member.group.per_member.fits_in(node.capacity) for node in nodes):
                    raise Refused(f"{self._name}: no node is that large; ask for less", reason="NoMatchingFlavor")
            with self.cluster.changed:
                if request.key not in self.cluster.launches:
                    launch = Launch(request, self.cluster.clock(), stop_code=self.cluster.stop_code)
                    self.cluster.launches[request.key] = launch
            return self._handle(request.key)

    def start(self, handle: Handle) -> None:
        self._called("start", handle.key)
        with self.cluster.faults.around("start"):
            if handle.key not in self.cluster.launches:
                raise Refused(f"{self._name}: {handle.key} was never prepared", reason=Reason.LOST)
            self.cluster.release(handle.key)

    def abort(self, handle: Handle) -> None:
        self._called("abort", handle.key)
        with self.cluster.faults.around("abort"):
            if handle.key in self.cluster.launches:
                self.cluster.vanish(handle.key)

    def find(self, key: str) -> Handle | None:
        self._called("find", key)
        with self.cluster.faults.around("find"):
            return self._handle(key) if key in self.cluster.launches else None

    def observe(self, handles: Sequence[Handle]) -> Sequence[Observation]:
        with self.cluster.faults.around("observe"), self.cluster.changed:
            return [self._observation(handle) for handle in handles]

    def watch(self, since: str) -> Iterator[tuple[str, Observation | None]]:
        position = int(since) if since else len(self.cluster.changes)
        while True:
            with self.cluster.faults.around("watch"), self.cluster.changed:
                if position >= len(self.cluster.changes):
                    self.cluster.changed.wait(WATCH_S)
                key = self.cluster.changes[position] if position < len(self.cluster.changes) else None
            if key is None:
                yield str(position), None
            else:
                position += 1
                yield str(position), self._observation(self._handle(key))

    def stop(self, handle: Handle, mode: StopMode, grace_s: int, kind: NoticeKind = NoticeKind.STOP) -> None:
        self._called("stop", handle.key)
        with self.cluster.faults.around("stop"):
            if handle.key in self.cluster.launches:
                self.cluster.ask_to_stop(handle.key, kind, 0 if mode is StopMode.KILL else grace_s)

    def notify(self, handle: Handle, kind: NoticeKind, deadline_s: int | None) -> None:
        self._called("notify", handle.key)
        with self.cluster.faults.around("notify"):
            if handle.key in self.cluster.launches:
                self.cluster.tell(handle.key, kind, deadline_s)

    def resize(self, handle: Handle, group: str, replicas: int, nodes: Sequence[str] = ()) -> None:
        self._called("resize", handle.key)
        with self.cluster.faults.around("resize"):
            if handle.key not in self.cluster.launches:
                raise Refused(f"{self._name}: {handle.key} is not known", reason=Reason.LOST)
            self.cluster.resize(handle.key, group, replicas, tuple(nodes))

    def list_owned(self) -> Sequence[Owned]:
        with self.cluster.faults.around("list_owned"), self.cluster.changed:
            return [
                Owned(
                    handle=self._handle(key),
                    gateway=launch.request.gateway,
                    job=launch.request.job,
                    attempt=launch.request.attempt,
                    tenant=launch.request.tenant,
                    phase=launch.phase,
                    created_at=launch.created_at,
                )
                for key, launch in self.cluster.launches.items()
                if launch.request.gateway == self._gateway
            ]

    def logs(self, handle: Handle, rank: int, offset: int = 0, *, follow: bool = False) -> Iterator[LogChunk]:
        with self.cluster.faults.around("logs"):
            launch = self.cluster.launches.get(handle.key)
        while launch is not None:
            ended = launch.phase is Phase.ENDED or rank in launch.codes
            data = launch.logs.get(rank, b"")[offset:]
            offset += len(data)
            if data or follow:
                yield LogChunk(rank, data, offset)
            if not data and (ended or not follow):
                return
            if not data:
                time.sleep(0.02)

    def close(self) -> None:
        """Nothing is held."""

    def _called(self, operation: str, key: str) -> None:
        self.cluster.calls.append((operation, key))

    def _handle(self, key: str) -> Handle:
        return Handle(self._name, key, f"fake/{key}")

    def _observation(self, handle: Handle) -> Observation:
        now = self.cluster.clock()
        launch = self.cluster.launches.get(handle.key)
        if launch is None:
            return Observation(handle, Phase.ABSENT, now)
        return Observation(
            handle,
            launch.phase,
            now,
            sequence=launch.sequence,
            started_at=launch.started_at,
            ended_at=launch.ended_at,
            end=launch.end,
            notice=launch.notice,
            waiting="Pending" if launch.phase is Phase.PENDING else "",
            ready=len(launch.living),
            nodes=dict(launch.nodes),
            stop_confirmed=launch.stop_confirmed,
        )
