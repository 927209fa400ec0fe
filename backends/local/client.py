"""The launches' files: the only reader and writer of the state folder. A change is whole or not there after a crash.

launches/<key>/  launch.json private.json placement.json stop.json end.json logs/<rank>.log
live/<key>       present while the launch has not ended
pools/<pool>.json  foreign load by owner and node      tenants.json  who runs as which user id      locks/
"""

import errno
import secrets
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from backends.errors import TenantNotServed, Unreachable
from backends.local.codec import decode, encode, encode_secrets
from backends.local.config import LocalConfig
from backends.local.files import LockTimeoutError, locked, mtime_ns, read_json, sync_folder, write_json
from backends.local.records import (
    Ended,
    Placement,
    Record,
    Stop,
    ended_from_json,
    ended_to_json,
    placement_from_json,
    placement_to_json,
)
from backends.types import LaunchRequest
from policies.snapshot import Resources

STRIPES: Final = 64
FOLDERS: Final = ("launches", "live", "pools", "locks", "slots")
PARTS: Final = ("placement.json", "stop.json", "end.json")
LAST_UID: Final = 64_999


class Files:
    """State of one local backend, shared by every process that works for it."""

    def __init__(self, name: str, config: LocalConfig) -> None:
        self.name = name
        self.config = config
        self.root = config.state_dir.absolute()  # instances have another working folder
        self._known: dict[str, tuple[int, tuple[LaunchRequest, float, int | None]]] = {}

    def open(self) -> None:
        """Make the folders. Others may pass through the root to their own work folders, and read nothing."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o711)
        for folder in FOLDERS:
            (self.root / folder).mkdir(mode=0o700, exist_ok=True)

    @contextmanager
    def reaching(self) -> Iterator[None]:
        """A state folder that cannot be read is a dark backend, not an empty one."""
        try:
            self._present()
            yield
        except OSError as error:
            raise Unreachable(f"{self.name}: {self.root}: {error.strerror or type(error).__name__}") from error
        except LockTimeoutError as error:
            raise Unreachable(f"{self.name}: another process held {error} too long; nothing was asked") from error

    @contextmanager
    def launch_lock(self, key: str) -> Iterator[None]:
        """One process at a time changes a launch. Locks are shared by hash, so that none has to be removed."""
        stripe = zlib.crc32(key.encode()) % STRIPES
        with locked(self.root / "locks" / f"launch-{stripe}", self.config.timeout_s / 2):
            yield

    @contextmanager
    def seat_lock(self) -> Iterator[None]:
        """One process at a time hands out seats and ports. Taken inside a launch's lock, never around one."""
        with locked(self.root / "locks" / "seats", self.config.timeout_s / 8):
            yield

    def slot_lock(self, node: str) -> Path:
        """Held while members are started on a node, and while its instance decides that it is idle."""
        return self.root / "locks" / f"slot-{node}"

    def create(self, request: LaunchRequest, uid: int | None) -> None:
        """Record a launch, whole or not at all. A present one stays as it is."""
        target = self.root / "launches" / request.key
        fresh = self.root / "launches" / f".{request.key}.{secrets.token_hex(4)}"
        fresh.mkdir(mode=0o700)
        (fresh / "logs").mkdir(mode=0o700)
        write_json(fresh / "private.json", encode_secrets(request))
        write_json(fresh / "launch.json", {"request": encode(request), "created_at": time.time(), "uid": uid})
        (self.root / "live" / request.key).touch(mode=0o600)
        try:
            fresh.rename(target)
        except OSError as error:
            shutil.rmtree(fresh)
            if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
                raise
        sync_folder(target.parent)

    def record(self, key: str, *, private: bool = False) -> Record | None:
        """The launch as it stands, or None. `private` reads token and secrets as well."""
        folder = self.root / "launches" / key
        made = mtime_ns(folder / "launch.json")
        changed = max(made, *(mtime_ns(folder / part) for part in PARTS))
        known_for, known = self._known.get(key, (0, None))
        if known is None or private or known_for != made:
            launch = read_json(folder / "launch.json")
            if launch is None:
                self._known.pop(key, None)
                return None
            hidden = read_json(folder / "private.json") if private else None
            known = (decode(launch["request"], hidden), launch["created_at"], launch["uid"])
            if not private:
                self._known[key] = (made, known)
        stop = read_json(folder / "stop.json")
        return Record(
            *known,
            placement=placement_from_json(read_json(folder / "placement.json")),
            stop=None if stop is None else Stop(**stop),
            ended=ended_from_json(read_json(folder / "end.json")),
            changed_us=changed // 1000,
        )

    def all_keys(self) -> Iterable[str]:
        """Every launch that is recorded, ended ones included."""
        return sorted(entry.name for entry in (self.root / "launches").iterdir() if not entry.name.startswith("."))

    def live_keys(self) -> Iterable[str]:
        """Launches that have not ended, as far as anybody has looked."""
        return sorted(entry.name for entry in (self.root / "live").iterdir())

    def write_placement(self, key: str, placement: Placement) -> None:
        """Where it runs; from now on its seats and ports are taken."""
        write_json(self.root / "launches" / key / "placement.json", placement_to_json(placement))

    def clear_placement(self, key: str) -> None:
        """It runs nowhere: seats and ports are free. The file stays, so that its change is seen."""
        write_json(self.root / "launches" / key / "placement.json", {"seats": []})

    def rewrite(self, record: Record, request: LaunchRequest) -> None:
        """The launch has other members from now on."""
        document = {"request": encode(request), "created_at": record.created_at, "uid": record.uid}
        write_json(self.root / "launches" / record.key / "launch.json", document)

    def write_stop(self, key: str, stop: Stop) -> None:
        """That it is to stop."""
        write_json(self.root / "launches" / key / "stop.json", asdict(stop))

    def write_end(self, record: Record, ended: Ended) -> Record:
        """How it ended: once, and for ever. What was secret goes."""
        folder = self.root / "launches" / record.key
        if not (folder / "end.json").exists():
            write_json(folder / "end.json", ended_to_json(ended))
        (folder / "private.json").unlink(missing_ok=True)
        (self.root / "live" / record.key).unlink(missing_ok=True)
        return self.record(record.key) or replace(record, ended=ended)

    def remove(self, key: str) -> None:
        """Every trace of a launch."""
        target = self.root / "launches" / key
        doomed = self.root / "launches" / f".{key}.{secrets.token_hex(4)}"
        with suppress(FileNotFoundError):
            target.rename(doomed)
            shutil.rmtree(doomed)
        (self.root / "live" / key).unlink(missing_ok=True)
        self._known.pop(key, None)

    def log(self, key: str, rank: int) -> Path:
        """Where a member's output lies."""
        return self.root / "launches" / key / "logs" / f"{rank}.log"

    def foreign(self, pool: str) -> Mapping[str, Mapping[str, Resources]]:
        """node → owner → what that owner uses there without us. The owner is "" where nobody is named."""
        found: dict[str, dict[str, Resources]] = {}
        for owner, load in (read_json(self.root / "pools" / f"{pool}.json") or {}).items():
            for node, amount in load.items():
                found.setdefault(node, {})[owner] = Resources(**amount)
        return found

    def set_foreign(self, pool: str, load: Mapping[str, Resources], owner: str) -> None:
        """For tests and operators: this machine has no other scheduler that could be asked."""
        path = self.root / "pools" / f"{pool}.json"
        with locked(self.root / "locks" / "foreign", self.config.timeout_s / 8):
            others = {name: theirs for name, theirs in (read_json(path) or {}).items() if name != owner}
            write_json(path, {**others, owner: {node: asdict(amount) for node, amount in load.items()}})

    def tenant_uid(self, tenant: str, *, isolated: bool) -> int | None:
        """The user id of a tenant, for good; None where all run as us, which a second tenant is refused for."""
        trusted = self.config.trust_below
        owner = trusted if trusted and (tenant == trusted or tenant.startswith(trusted + "/")) else tenant
        path = self.root / "tenants.json"
        with locked(self.root / "locks" / "tenants", self.config.timeout_s / 8):
            known: dict[str, Any] = read_json(path) or {}
            others = sorted(set(known) - {owner})
            if not isolated and others:
                raise TenantNotServed(
                    f"{self.name} cannot keep tenants apart (isolation: none) and serves another tenant already; an "
                    "operator runs the worker as root with isolation: uid, or names a common tenant in trust_below"
                )
            if owner in known and (not isolated or known[owner] is not None):
                return known[owner] if isolated else None
            uid = max([self.config.uid_base - 1, *(each for each in known.values() if each)]) + 1
            if uid > LAST_UID:
                raise TenantNotServed(
                    f"{self.name}: every user id up to {LAST_UID} is given; an operator sets a lower uid_base"
                )
            write_json(path, {**known, owner: uid if isolated else None})
            return uid if isolated else None

    def _present(self) -> None:
        """That a file is absent means something only while the folders are there (a lost mount is no empty one)."""
        if not (self.root / "launches").is_dir():
            raise Unreachable(f"{self.name}: {self.root} is not there")
