"""What is old enough to be forgotten: ended launches with their logs, and the folders of instances that are gone."""

import shutil
import time
from contextlib import suppress
from typing import Final

from backends.errors import BackendError
from backends.local.client import Files
from backends.local.files import LockTimeoutError, mtime_ns
from backends.local.launching import Launcher
from backends.local.machines import Machines

EVERY_S: Final = 60.0
LINGER_S: Final = 60.0  # so that nobody who still looks at a launch misses its members


class Keeper:
    """Clears up now and then, whenever somebody lists."""

    def __init__(self, files: Files, machines: Machines, launcher: Launcher) -> None:
        self.files = files
        self.machines = machines
        self.launcher = launcher
        self._next = 0.0

    def clear_up(self, now: float, *, at_once: bool = False) -> None:
        """Remove what ended longer ago than `keep_ended_s`. Live launches and their instances are never touched."""
        if time.monotonic() < self._next and not at_once:
            return
        self._next = time.monotonic() + EVERY_S
        horizon = now - self.files.config.keep_ended_s
        for key in self.files.all_keys():
            with suppress(LockTimeoutError, OSError, ValueError, KeyError):
                self._forget_launch(key, horizon)
        for key in self.files.all_keys():
            with suppress(BackendError, OSError, ValueError, KeyError):
                self._forget_members(key, now - LINGER_S)
        placements = [record.placement for record in self.launcher.placed()]
        used = {name for each in placements if each is not None for name in each.instances.values()}
        for name in self.machines.names():
            with suppress(OSError, ValueError, KeyError):
                self._forget_instance(name, used, horizon)

    def _forget_launch(self, key: str, horizon: float) -> None:
        record = self.files.record(key)
        if record is None or record.ended is None or record.ended.ended_at > horizon:
            return
        with self.files.launch_lock(key):
            self.files.remove(key)

    def _forget_members(self, key: str, horizon: float) -> None:
        """What an ended launch left at agents that live on: its work folder and its spec, which has its secrets."""
        record = self.files.record(key)
        if record is None or record.ended is None or record.ended.ended_at > horizon:
            return
        left = [
            instance
            for instance in self.launcher.instances(record)
            if instance.alive and (self.machines.root / instance.id / "agent" / "members" / key).is_dir()
        ]
        self.machines.call_all(left, "DELETE", f"/members?launch={key}")

    def _forget_instance(self, name: str, used: set[str], horizon: float) -> None:
        folder = self.machines.root / name
        last_ns = max(mtime_ns(folder / "state.json"), mtime_ns(folder / "instance.json"))
        if name in used or last_ns / 1e9 > horizon or not self.machines.gone(name):
            return
        shutil.rmtree(folder)
