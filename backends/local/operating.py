"""What the local backend is made of, and the acts of this machine's own operator: for tests, the demo and `tidegate`.

They play what elsewhere a provider does: take an instance back, advise to leave it, load a node with other work.
"""

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from backends.errors import Misconfigured, OutcomeUnknown, Refused
from backends.local.client import Files
from backends.local.config import Isolation, LocalConfig
from backends.local.files import LockTimeoutError
from backends.local.keeping import Keeper
from backends.local.launching import Launcher
from backends.local.looking import Looker
from backends.local.machines import Machines
from backends.local.records import InstanceView
from backends.local.render import HOST
from backends.local.resizing import Resizer
from policies.snapshot import Resources

REACH: Final = 0o001  # others may pass


class Operations:
    """Parts and operator's acts of one local backend."""

    def __init__(self, name: str, config: LocalConfig, gateway: str) -> None:
        self._name = name
        self._gateway = gateway
        self.config = config
        self.isolated = _isolated(name, config)
        self.files = Files(name, config)
        self.machines = Machines(self.files)
        self.launcher = Launcher(self.files, self.machines, _port_free)
        self.looker = Looker(name, self.files, self.machines, self.launcher)
        self.resizer = Resizer(self.files, self.machines, self.launcher, self.looker)
        self.keeper = Keeper(self.files, self.machines, self.launcher)
        self._opened = False

    @property
    def name(self) -> str:
        return self._name

    def set_foreign(self, pool: str, load: Mapping[str, Resources], owner: str = "") -> None:
        """Say all that one owner uses on the nodes of a pool without us. It is counted, and never touched."""
        known = self.config.pool(pool)
        unknown = set(load) - set(known.slots if known else ())
        if unknown:
            raise Misconfigured(f"{self._name}: pool {pool} has no node {min(unknown)}")
        with self._asking():
            self.files.set_foreign(pool, load, owner)

    def instances(self) -> Sequence[InstanceView]:
        """Every living instance."""
        with self._asking():
            views = [self.machines.view(name) for name in self.machines.names()]
            return [view for view in views if view is not None and view.alive]

    def interrupt(self, target: str, notice_s: float | None = None) -> str:
        """Take an instance back as a provider does: notice, time to save, end. `target` is an instance or a node.

        Returns the instance's id; the pool's `spot_notice_s` is used where no time is given.
        """
        view = self._living(target)
        pool = next(pool for pool in self.config.pools if view.node in pool.slots)
        notice = pool.spot_notice_s if notice_s is None else notice_s
        with self._asking():
            self.machines.order(view.id, "interrupt", {"notice_s": notice})
        return view.id

    def interrupt_rank(self, key: str, rank: int, notice_s: float | None = None) -> str:
        """`interrupt` the instance that has this member of a launch."""
        with self._asking():
            record = self.files.record(key)
        if record is None or record.placement is None or rank not in {seat.rank for seat in record.placement.seats}:
            raise Refused(f"{self._name}: {key} has no running rank {rank}", reason="UnknownTarget")
        return self.interrupt(record.placement.instance_of(rank), notice_s)

    def instances_of(self, key: str) -> Mapping[int, str]:
        """The instance of each member of a launch, by rank; empty before every member was given to its agent."""
        with self._asking():
            record = self.files.record(key)
        if record is None or record.placement is None or not record.placement.started:
            return {}
        return {seat.rank: record.placement.instance_of(seat.rank) for seat in record.placement.seats}

    def advise(self, target: str) -> str:
        """Publish a rebalance recommendation on an instance, without taking it."""
        view = self._living(target)
        with self._asking():
            self.machines.order(view.id, "rebalance", {"at": time.time()})
        return view.id

    def end_instances(self, timeout_s: float = 10) -> None:
        """End every instance with all that runs in it; for the end of a test or a demo."""
        with self._asking():
            for name in self.machines.names():
                self.machines.order(name, "end", {})
            deadline = time.monotonic() + timeout_s
            while not all(self.machines.gone(name) for name in self.machines.names()):
                if time.monotonic() > deadline:
                    raise OutcomeUnknown(f"{self._name}: some instances did not end within {timeout_s} s")
                time.sleep(self.config.poll_s / 2)

    def _living(self, target: str) -> InstanceView:
        with self._asking():
            view = self.machines.view(target) or self.machines.on_slot(target)
        if view is None or not view.alive:
            raise Refused(f"{self._name}: {target} is no living instance and no node with one", reason="UnknownTarget")
        return view

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Errors of files and locks met here mean that nothing was asked."""
        if not self._opened:
            if self.isolated:
                _must_be_reachable(self._name, self.config.state_dir)
            try:
                self.files.open()
                self.machines.open()
            except OSError as error:
                raise Misconfigured(f"{self._name}: state_dir {self.config.state_dir}: {error.strerror}") from error
            self._opened = True
        with self.files.reaching():
            yield

    @contextmanager
    def _effect(self) -> Iterator[None]:
        """Errors met here may have come after the effect."""
        try:
            yield
        except (OSError, LockTimeoutError) as error:
            text = f"{self._name}: interrupted by {type(error).__name__}; call again with the same key"
            raise OutcomeUnknown(text) from error


def _isolated(name: str, config: LocalConfig) -> bool:
    """Whether members run as their tenant's user: always where we are root, unless NONE was said.

    Whether such a user can read an interpreter that a job names is the job's business, like any command of its.
    """
    root = os.geteuid() == 0
    if config.isolation is Isolation.UID and not root:
        raise Misconfigured(f"{name}: isolation uid needs root; run the worker as root, or set isolation: none")
    return root and config.isolation is not Isolation.NONE


def _must_be_reachable(name: str, path: Path) -> None:
    blocked = _blocked(path)
    if blocked is not None:
        raise Misconfigured(
            f"{name}: state_dir {path}: tenants' users cannot pass {blocked}; allow it (chmod o+x {blocked}), choose "
            "another state_dir (the gateway's data_dir), or set isolation: none to run all jobs as root for one tenant"
        )


def _blocked(path: Path) -> Path | None:
    """The first folder above `path` that other users may not pass, or None."""
    above = [folder for folder in reversed(path.absolute().parents) if folder.exists()]
    return next((folder for folder in above if not folder.stat().st_mode & REACH), None)


def _port_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
