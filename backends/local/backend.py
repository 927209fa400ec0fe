"""The local backend: the port over instances that are processes of this machine. Glue; it decides nothing.

Several workers and a gateway may use one state folder at once: every change of a launch is made under its lock, and
all that is known lies in files, so a new process knows it too.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Final

from backends.environment import check, launcher_command, members
from backends.errors import BackendError, Misconfigured, Refused, Unreachable
from backends.local.config import LocalPool
from backends.local.files import LockTimeoutError
from backends.local.operating import Operations
from backends.local.placing import NOTHING, foreign_shares
from backends.local.recalling import recalled
from backends.local.records import Record, Stop, instant
from backends.local.render import archive_path
from backends.types import (
    Capabilities,
    Handle,
    LaunchRequest,
    LogChunk,
    NoticeKind,
    Observation,
    Owned,
    PoolCapacity,
    Preemption,
    Recalled,
    SiteFiles,
    StopMode,
)
from policies.snapshot import Node, Resources
from policies.vocabulary import Reason

HEARTBEAT_S: Final = 0.5  # watch yields at least this often
LOG_BYTES: Final = 64 * 1024


class LocalBackend(Operations):
    """See `backends.port.Backend`. Building one touches nothing; the folders are made at the first call."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            places_nodes=True,
            preemption=Preemption.PLACE_FIRST,
            checkpoint_signal=True,
            site_files=SiteFiles.MOUNT,
            gang=True,
            resize=True,
            spot_notices=True,
            node_sharing=True,
            logs=True,
            tenant_isolation=self.isolated,
            settle_s=0,  # A launch is there when its folder is.
        )

    def capacity(self) -> Sequence[PoolCapacity]:
        with self._asking():
            as_of = instant(time.time())
            return [self._pool(pool, as_of) for pool in self.config.pools]

    def prepare(self, request: LaunchRequest) -> Handle:
        self._check(request)
        with self._asking():
            if self.files.record(request.key) is None:
                uid = self.files.tenant_uid(request.tenant, isolated=self.isolated)
                with self._effect():
                    self.files.create(request, uid)
        return self._handle(request.key)

    def start(self, handle: Handle) -> None:
        with self._asking(), self.files.launch_lock(handle.key):
            record = self.files.record(handle.key, private=True)
            if record is None:
                raise Refused(f"{self._name}: {handle.key} was never prepared, or was aborted", reason=Reason.LOST)
            if record.ended is not None or (record.placement is not None and record.placement.started):
                return
            with self._effect():
                self.launcher.start(record)

    def abort(self, handle: Handle) -> None:
        with self._asking(), self.files.launch_lock(handle.key):
            record = self.files.record(handle.key)
            if record is not None:
                with self._effect():
                    self.launcher.remove_members(record)
                    self.files.remove(handle.key)

    def find(self, key: str) -> Handle | None:
        with self._asking():
            return None if self.files.record(key) is None else self._handle(key)

    def observe(self, handles: Sequence[Handle]) -> Sequence[Observation]:
        with self._asking():
            found = []
            problem: Exception | None = None
            for handle in handles:
                try:
                    found.append(self.looker.look(handle))
                except (BackendError, OSError, LockTimeoutError, ValueError, KeyError) as error:
                    problem = error  # That one is stale; the others are not.
            if handles and not found:
                raise Unreachable(f"{self._name}: no launch could be looked at ({type(problem).__name__})") from problem
            return found

    def watch(self, since: str) -> Iterator[tuple[str, Observation | None]]:
        """The cursor is the time of the last change in microseconds; changes lie on disk, so none gets lost."""
        cursor = int(since) if since else time.time_ns() // 1000
        seen: dict[str, int] = {}
        quiet_since = time.monotonic()
        while True:
            with self._asking():
                changed = self.looker.changed(cursor, seen)
            for observation in changed:
                cursor = max(cursor, observation.sequence)
                quiet_since = time.monotonic()
                yield str(cursor), observation
            if time.monotonic() - quiet_since >= HEARTBEAT_S:
                quiet_since = time.monotonic()
                yield str(cursor), None
            time.sleep(self.config.poll_s)

    def stop(self, handle: Handle, mode: StopMode, grace_s: int, kind: NoticeKind = NoticeKind.STOP) -> None:
        grace = 0.0 if mode is StopMode.KILL else float(grace_s)
        with self._asking(), self.files.launch_lock(handle.key):
            record = self.files.record(handle.key)
            if record is None or record.ended is not None:
                return
            with self._effect():
                self._stop(record, kind, grace)

    def notify(self, handle: Handle, kind: NoticeKind, deadline_s: int | None) -> None:
        """`backends.port.Checkpoints`."""
        with self._asking():
            record = self.files.record(handle.key)
            if record is None or record.ended is not None:
                return
            body = {"launch": record.key, "kind": kind.value, "grace_s": deadline_s, "ranks": None}
            self.machines.call_all(self.launcher.instances(record), "POST", "/notice", body)

    def resize(self, handle: Handle, group: str, replicas: int, nodes: Sequence[str] = ()) -> None:
        """`backends.port.Resizes`."""
        with self._asking(), self.files.launch_lock(handle.key):
            record = self.files.record(handle.key, private=True)
            if record is None:
                raise Refused(f"{self._name}: {handle.key} is not known, or was aborted", reason=Reason.LOST)
            with self._effect():
                self.resizer.resize(record, group, replicas, nodes)

    def list_owned(self) -> Sequence[Owned]:
        with self._asking():
            found = []
            for key in self.files.all_keys():
                with suppress(ValueError, KeyError, TypeError):  # One spoilt record hides itself, not the others.
                    record = self.files.record(key)
                    if record is not None and record.request.gateway == self._gateway:
                        found.append(self._owned(record))
            self.keeper.clear_up(time.time())
            return found

    def recall(self, handle: Handle) -> Recalled | None:
        """`backends.port.Recalls`."""
        with self._asking():
            record = self.files.record(handle.key, private=True)
            return None if record is None else recalled(record)

    def logs(self, handle: Handle, rank: int, offset: int = 0, *, follow: bool = False) -> Iterator[LogChunk]:
        with self._asking():
            record = self.files.record(handle.key)
        if record is None:
            return
        groups = {member.rank: member.group.name for member in members(record.request)}
        while rank in groups:
            with self._asking():
                done = not follow or self.looker.has_left(handle.key, rank)
                data = self._read_log(handle.key, rank, offset)
            offset += len(data)
            if data or follow:
                yield LogChunk(rank, data, offset, groups[rank])
            if not data and done:
                return
            if not data:
                time.sleep(self.config.poll_s)

    def close(self) -> None:
        """Nothing is held: instances and launches live on."""

    def _check(self, request: LaunchRequest) -> None:
        check(request)
        archive_path(request)
        for member in members(request):
            launcher_command(request, member)
            pool = self.config.pool(member.group.pool)
            if pool is None:
                raise Misconfigured(f"{self._name}: there is no pool {member.group.pool}")
            if member.node and member.node not in pool.slots:
                raise Refused(f"{self._name}: pool {pool.name} has no node {member.node}", reason="UnknownNode")
            if not member.group.per_member.fits_in(pool.per_node):
                text = f"groups[{member.group.name}].resources are more than a node of pool {pool.name} has"
                raise Refused(f"{self._name}: {text}; ask for less per member", reason="NoMatchingFlavor")

    def _stop(self, record: Record, kind: NoticeKind, grace_s: float) -> None:
        now = time.time()
        before = record.stop.deadline if record.stop else now + grace_s
        stop = Stop(kind.value, record.stop.at if record.stop else now, min(before, now + grace_s))
        if record.placement is None or not record.placement.started:
            self.launcher.roll_back(record)
            self.looker.end_unstarted(replace(record, stop=stop))
            return
        self.files.write_stop(record.key, stop)  # first, so that a crash between does not forget why
        self.looker.tell_to_stop(record, None, kind, max(0.0, stop.deadline - now))
        self.files.write_stop(record.key, replace(stop, confirmed=True))

    def _pool(self, pool: LocalPool, as_of: datetime) -> PoolCapacity:
        load = self.files.foreign(pool.name)
        nodes = []
        by_owner: dict[str, Resources] = {}
        for node in pool.slots:
            shares = foreign_shares(load.get(node, {}), pool.per_node)
            for owner, share in shares.items():
                by_owner[owner] = by_owner.get(owner, NOTHING) + share
            nodes.append(
                Node(
                    name=node,
                    capacity=pool.per_node,
                    foreign=sum(shares.values(), NOTHING),
                    schedulable=self.launcher.is_open(node),
                    labels=dict(pool.labels),
                )
            )
        named = {owner: use for owner, use in by_owner.items() if owner}
        return PoolCapacity(pool.name, tuple(nodes), as_of, named)

    def _owned(self, record: Record) -> Owned:
        return Owned(
            handle=self._handle(record.key),
            gateway=record.request.gateway,
            job=record.request.job,
            attempt=record.request.attempt,
            tenant=record.request.tenant,
            phase=self.looker.look(self._handle(record.key)).phase,
            created_at=instant(record.created_at),
        )

    def _read_log(self, key: str, rank: int, offset: int) -> bytes:
        try:
            with self.files.log(key, rank).open("rb") as file:
                file.seek(offset)
                return file.read(LOG_BYTES)
        except FileNotFoundError:
            return b""

    def _handle(self, key: str) -> Handle:
        return Handle(self._name, key, f"{self._name}/{key}")
