"""A cluster in memory: what the fake backend talks to, and the handle by which a test plays its operator and its jobs.

It outlives the backends that are built on it, as a real cluster outlives our processes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from threading import Condition

from backends.environment import MemberFiles, Rendezvous, member_environment, members
from backends.errors import NoCapacity
from backends.types import End, LaunchRequest, Notice, NoticeKind, Phase
from policies.snapshot import Node, Resources
from policies.vocabulary import Reason
from tests.fakes.faults import Faults

GPU = 1000
GIB = 2**30
SIGNAL_BASE = 128
SIGKILL, SIGTERM = SIGNAL_BASE + 9, SIGNAL_BASE + 15


def now_utc() -> datetime:
    return datetime.now(UTC)


def equal_nodes(pool: str, count: int, gpus: int = 8) -> tuple[Node, ...]:
    """`count` nodes `pool-0` …, each with `gpus` GPUs, 64 cpus and 512 GiB."""
    capacity = Resources(gpus * GPU, 64_000, 512 * GIB)
    return tuple(Node(f"{pool}-{index}", capacity) for index in range(count))


@dataclass(slots=True)
class Launch:
    """One launch as the cluster keeps it."""

    request: LaunchRequest
    created_at: datetime
    phase: Phase = Phase.PREPARED
    sequence: int = 0
    starts: int = 0  # how often members were really started: never above 1
    started_at: datetime | None = None
    ended_at: datetime | None = None
    end: End | None = None
    notice: Notice | None = None
    stop_confirmed: bool = False
    nodes: dict[int, str] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)
    told: list[tuple[NoticeKind, int | None]] = field(default_factory=list)
    stops: list[tuple[NoticeKind, int]] = field(default_factory=list)
    logs: dict[int, bytes] = field(default_factory=dict)
    stop_code: int | None = SIGTERM

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(member.rank for member in members(self.request))

    @property
    def living(self) -> tuple[int, ...]:
        return tuple(rank for rank in self.ranks if rank not in self.codes) if self.phase is Phase.RUNNING else ()

    def environment(self, rank: int) -> Mapping[str, str]:
        """What the member would see."""
        member = next(member for member in members(self.request) if member.rank == rank)
        meeting = Rendezvous(self.request.master_addr or self.nodes.get(0, "127.0.0.1"), 29500, 29600)
        return member_environment(self.request, member, meeting, MemberFiles(notice_file=f"/notice/{rank}"))


class FakeCluster:
    """Pools of nodes and the launches on them. Every method is safe to call from several threads."""

    def __init__(
        self,
        pools: Mapping[str, Sequence[Node]] | None = None,
        *,
        clock: Callable[[], datetime] = now_utc,
        pending: bool = False,
        stop_code: int | None = SIGTERM,
    ) -> None:
        """`pending`: started launches wait in PENDING until `run(key)`.

        `stop_code`: with what members leave when they are asked to; None: they do not hear it, until `expire(key)`.
        """
        self.pools = {name: list(nodes) for name, nodes in (pools or {"pool": equal_nodes("pool", 2)}).items()}
        self.owners: dict[str, str] = {}  # node -> whose its foreign use is
        self.clock = clock
        self.pending = pending
        self.stop_code = stop_code
        self.faults = Faults("fake")
        self.launches: dict[str, Launch] = {}
        self.calls: list[tuple[str, str]] = []
        self.on_run: Callable[[str], None] | None = None  # members act: called when a launch begins to run
        self.on_join: Callable[[str, tuple[int, ...]], None] | None = None  # members that come under a running launch
        self.on_told: Callable[[str, NoticeKind], None] | None = None  # and when they are told something
        self.changed = Condition()
        self.changes: list[str] = []  # keys in the order of their changes: the watch's cursor counts them

    # What the adapter does

    def release(self, key: str) -> None:
        """Start a prepared launch whole, or raise NoCapacity and leave it prepared."""
        with self.changed:
            launch = self.launches[key]
            if launch.phase is not Phase.PREPARED:
                return
            launch.nodes = self._place(launch)
            launch.phase = Phase.PENDING
            self._touch(key)
            if not self.pending:
                self.run(key)

    def ask_to_stop(self, key: str, kind: NoticeKind, grace_s: int) -> None:
        with self.changed:
            launch = self.launches[key]
            if launch.phase is Phase.ENDED:
                return
            launch.stops.append((kind, grace_s))
            launch.stop_confirmed = True
            self._touch(key)
            if launch.phase in {Phase.PREPARED, Phase.PENDING}:
                self._end(key, End(Reason.USER_CANCELLED, detail="stopped before it started"))
            elif grace_s == 0:
                self.expire(key)
            elif self.on_told:
                self.on_told(key, kind)
            elif launch.stop_code is not None:
                for rank in launch.living:
                    launch.codes[rank] = launch.stop_code
                self._conclude(key)

    def tell(self, key: str, kind: NoticeKind, deadline_s: int | None) -> None:
        with self.changed:
            self.launches[key].told.append((kind, deadline_s))
            if self.on_told:
                self.on_told(key, kind)

    def resize(self, key: str, name: str, replicas: int, nodes: tuple[str, ...]) -> None:
        """Another number of members under a launch: the last go at once, or new ones come; else NoCapacity."""
        with self.changed:
            launch = self.launches[key]
            group = next(group for group in launch.request.groups if group.name == name)
            if launch.phase is Phase.ENDED or replicas == group.replicas:
                return
            before = launch.request
            changed = replace(group, replicas=replicas, nodes=nodes)
            groups = tuple(changed if each is group else each for each in before.groups)
            count = before.num_nodes - group.replicas + replicas
            launch.request = replace(before, groups=groups, num_nodes=count)
            if launch.phase in {Phase.PENDING, Phase.RUNNING} and replicas > group.replicas:
                self._add_members(launch, before)
            launch.nodes = {rank: node for rank, node in launch.nodes.items() if rank in launch.ranks}
            launch.codes = {rank: code for rank, code in launch.codes.items() if rank in launch.ranks}
            self._touch(key)

    def _add_members(self, launch: Launch, before: LaunchRequest) -> None:
        known = dict(launch.nodes)
        launch.nodes = {}  # placed anew together: those that stay keep their nodes by being asked for them
        try:
            placed = self._place(launch)
        except NoCapacity:
            launch.request, launch.nodes = before, known
            raise
        launch.nodes = {**placed, **known}
        fresh = tuple(rank for rank in launch.ranks if rank not in known)
        launch.logs.update(dict.fromkeys(fresh, b""))
        if self.on_join:
            self.on_join(launch.request.key, fresh)

    # What a test does

    def run(self, key: str) -> None:
        """A pending launch starts to run."""
        with self.changed:
            launch = self.launches[key]
            if launch.phase is Phase.PENDING:
                launch.phase, launch.started_at, launch.starts = Phase.RUNNING, self.clock(), launch.starts + 1
                launch.logs = dict.fromkeys(launch.ranks, b"")
                self._touch(key)
                if self.on_run:
                    self.on_run(key)

    def finish(self, key: str, rank: int | None = None, code: int = 0) -> None:
        """A member (all: None) exits with a code. A failure takes the rest of the gang with it."""
        with self.changed:
            launch = self.launches[key]
            for each in launch.ranks if rank is None else (rank,):
                if each in launch.living:
                    launch.codes[each] = code
            self._conclude(key)

    def expire(self, key: str) -> None:
        """The grace is over: whoever lives is killed."""
        with self.changed:
            launch = self.launches[key]
            launch.codes.update(dict.fromkeys(launch.living, SIGKILL))
            self._conclude(key)

    def evict(self, key: str, cause: Reason = Reason.EVICTED, *, bad_nodes: tuple[str, ...] = ()) -> None:
        """The cluster takes the launch away; there is no exit code."""
        with self.changed:
            self._end(key, End(cause, codes=dict(self.launches[key].codes), bad_nodes=bad_nodes))

    def lose_node(self, node: str) -> None:
        """A node vanishes with every launch that has a member on it; it takes nothing new."""
        with self.changed:
            for pool, nodes in self.pools.items():
                self.pools[pool] = [replace(n, schedulable=False) if n.name == node else n for n in nodes]
            for key, launch in self.launches.items():
                if node in launch.nodes.values() and launch.phase is not Phase.ENDED:
                    self._end(key, End(Reason.NODE_LOST, codes=dict(launch.codes), bad_nodes=(node,)))

    def notice(self, key: str, deadline: datetime | None, kind: NoticeKind = NoticeKind.REVOKE) -> None:
        """The provider gives notice to the launch."""
        with self.changed:
            self.launches[key].notice = Notice(kind, deadline, self.launches[key].ranks)
            self._touch(key)

    def vanish(self, key: str) -> None:
        """The record is gone without a trace: observed as ABSENT."""
        with self.changed:
            del self.launches[key]
            self._touch(key)

    def write(self, key: str, rank: int, data: bytes) -> None:
        """A member prints something."""
        with self.changed:
            self.launches[key].logs[rank] += data
            self.changed.notify_all()

    def set_foreign(self, node: str, amount: Resources, owner: str = "") -> None:
        """Somebody uses a node without us: all of its foreign use."""
        with self.changed:
            self.owners[node] = owner
            for pool, nodes in self.pools.items():
                self.pools[pool] = [
                    replace(n, foreign=_at_most(amount, n.capacity)) if n.name == node else n for n in nodes
                ]

    def by_owner(self, pool: str) -> dict[str, Resources]:
        """Foreign use of a pool by the owner that was named for it."""
        found: dict[str, Resources] = {}
        for node in self.pools[pool]:
            if owner := self.owners.get(node.name, ""):
                found[owner] = found.get(owner, Resources()) + node.foreign
        return found

    def used(self, node: str) -> Resources:
        """What our launches hold on a node now."""
        total = Resources()
        for launch in self.launches.values():
            if launch.phase in {Phase.PENDING, Phase.RUNNING}:
                for member in members(launch.request):
                    if launch.nodes.get(member.rank) == node:
                        total += member.group.per_member
        return total

    def _place(self, launch: Launch) -> dict[int, str]:
        taken: dict[str, Resources] = {}
        chosen: dict[int, str] = {}
        for member in members(launch.request):
            for node in self.pools.get(member.group.pool, []):
                free = node.capacity - node.foreign - self.used(node.name) - taken.get(node.name, Resources())
                wanted = member.node in {"", node.name} and node.schedulable
                if wanted and member.group.per_member.fits_in(free):
                    taken[node.name] = taken.get(node.name, Resources()) + member.group.per_member
                    chosen[member.rank] = node.name
                    break
            else:
                raise NoCapacity(f"fake: no room for rank {member.rank} in pool {member.group.pool}")
        return chosen

    def _conclude(self, key: str) -> None:
        launch = self.launches[key]
        failed = next((rank for rank in launch.codes if launch.codes[rank] != 0), None)
        if launch.phase is Phase.RUNNING and failed is not None:
            code = launch.codes[failed]
            launch.codes.update(dict.fromkeys(launch.living, SIGKILL))
            cause = Reason.SAVED_AND_EXITED if code == 75 else Reason.NON_ZERO_EXIT
            self._end(key, End(cause, code, failed, dict(launch.codes)))
        elif launch.phase is Phase.RUNNING and not launch.living:
            self._end(key, End(Reason.COMPLETED, 0, None, dict(launch.codes)))
        else:
            self._touch(key)

    def _end(self, key: str, end: End) -> None:
        launch = self.launches[key]
        if launch.phase is not Phase.ENDED:
            launch.phase, launch.end, launch.ended_at = Phase.ENDED, end, self.clock()
            self._touch(key)

    def _touch(self, key: str) -> None:
        if key in self.launches:
            self.launches[key].sequence += 1
        self.changes.append(key)
        self.changed.notify_all()


def _at_most(amount: Resources, limit: Resources) -> Resources:
    pairs = zip(_parts(amount), _parts(limit), strict=True)
    return Resources(*(min(one, other) for one, other in pairs))


def _parts(amount: Resources) -> tuple[int, int, int, int]:
    return amount.accelerators, amount.cpus, amount.memory, amount.disk
