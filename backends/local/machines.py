"""The instances from outside: find the one of a slot, make it, ask its agent, give it orders. I/O only."""

import http.client
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from backends.errors import BackendError, NoCapacity, OutcomeUnknown, Refused
from backends.local.client import Files
from backends.local.config import LocalPool
from backends.local.files import Identity, alive, identity, mtime_ns, read_json, write_json
from backends.local.instance import ask
from backends.local.records import InstanceView, Record
from policies.vocabulary import CapacityType, Reason

INSTANCE_NAME: Final = re.compile(r"i-[0-9a-f]{12}")
LOOK_S: Final = 0.01
MOST_AT_ONCE: Final = 16
SOCKET_BYTES: Final = 100  # a Unix socket's path ends at 107
PASSED: Final = ("HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")  # never what the worker was given in secret
PACKAGES: Final = Path(__file__).parents[2]


class Machines:
    """All instances of one backend, found by their folders, whoever made them."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.root = files.root / "instances"

    def open(self) -> None:
        """Make the folder; tenants pass through it to their work folders."""
        self.root.mkdir(exist_ok=True)
        self.root.chmod(0o711)

    def view(self, instance: str) -> InstanceView | None:
        """The instance as its record and the process table show it; None where there never was one."""
        folder = self.root / instance
        spec = read_json(folder / "instance.json")
        if spec is None:
            return None
        state: dict[str, Any] = read_json(folder / "state.json") or {"state": "starting"}
        living = state["state"] in {"running", "interrupted"} and self._whole(state)
        if state["state"] != "ended" and not living:
            state = read_json(folder / "state.json") or state  # Its last word may have come in between.
        interruption = state.get("interruption") or {}
        return InstanceView(
            id=instance,
            node=spec["node"],
            alive=living,
            state=state["state"],
            socket=spec["socket"],
            folder=str(folder),
            interrupted_at=interruption.get("at"),
            deadline=interruption.get("deadline"),
            rebalance_at=state.get("rebalance_at"),
            ended_at=state.get("ended_at"),
            changed_us=mtime_ns(folder / "state.json") // 1000,
        )

    def on_slot(self, node: str) -> InstanceView | None:
        """The newest instance of a slot, ended or not."""
        slot = read_json(self.files.root / "slots" / f"{node}.json")
        return None if slot is None else self.view(slot["instance"])

    def begin(self, pool: LocalPool, node: str) -> str:
        """The instance of the slot, made where there is none; it may still be starting. Call `wait` before using it.

        The caller holds the slot's lock. NoCapacity while the present one is being taken away.
        """
        present = self.on_slot(node)
        if present is not None and present.alive:
            if not present.usable:
                raise NoCapacity(f"{self.files.name}: {node} is being taken away", reason="NodeInterrupted")
            return present.id
        name = f"i-{secrets.token_hex(6)}"
        folder = self.root / name
        folder.mkdir(mode=0o711)
        folder.chmod(0o711)
        write_json(folder / "instance.json", self._spec(pool, node, name))
        write_json(self.files.root / "slots" / f"{node}.json", {"instance": name})
        self._launch(folder)
        return name

    def wait(self, instances: Iterable[str], timeout_s: float) -> None:
        """Until all of them live. NoCapacity when one does not come up in time; that one is told to end."""
        deadline = time.monotonic() + timeout_s
        for name in instances:
            while not ((view := self.view(name)) is not None and view.alive):
                if (view is not None and view.state == "ended") or time.monotonic() > deadline:
                    self.order(name, "end", {})
                    text = f"{self.files.name}: instance {name} did not come up; read the logs in {self.root / name}"
                    raise NoCapacity(text)
                time.sleep(LOOK_S)

    def statuses(self, record: Record) -> dict[int, dict[str, Any]]:
        """rank → what its agent last wrote, without asking anybody: agents may be busy, or dead."""
        found = {}
        placement = record.placement
        for seat in (*placement.seats, *placement.leaving) if placement and placement.instances else ():
            value = read_json(self._status_path(record, seat.rank))
            if value is not None:
                found[seat.rank] = value
        return found

    def changed_us(self, record: Record) -> int:
        """When any of it last changed on disk."""
        if record.placement is None or not record.placement.instances:
            return record.changed_us
        seats = (*record.placement.seats, *record.placement.leaving)
        paths = [self._status_path(record, seat.rank) for seat in seats]
        paths += [self.root / name / "state.json" for name in record.placement.instances.values()]
        return max(record.changed_us, *(mtime_ns(path) // 1000 for path in paths))

    def call(self, instance: InstanceView, method: str, url: str, body: Any = None) -> Any:
        """One call to an agent. OutcomeUnknown when it did not answer; Refused by what it said."""
        try:
            status, answer = ask(instance.socket, method, url, body, self.files.config.timeout_s / 4)
        except (OSError, http.client.HTTPException, ValueError) as error:
            text = f"{self.files.name}: the agent of {instance.id} did not answer ({type(error).__name__})"
            raise OutcomeUnknown(text) from error
        if status < http.client.BAD_REQUEST:
            return answer
        raise _refusal(self.files.name, instance, answer["error"] if isinstance(answer, dict) else {})

    def call_all(self, instances: Iterable[InstanceView], method: str, url: str, body: Any = None) -> None:
        """The same call to every agent that lives, at once: a notice must not wait for the slowest.

        Raises what one of them raised, after all were asked; one that has died meanwhile has nothing to say.
        """
        living = [instance for instance in instances if instance.alive]
        if not living:
            return
        with ThreadPoolExecutor(min(len(living), MOST_AT_ONCE)) as pool:
            answers = [(instance, pool.submit(self.call, instance, method, url, body)) for instance in living]
        for instance, answer in answers:
            problem = answer.exception()
            now = self.view(instance.id)
            if problem is not None and now is not None and now.alive:
                raise problem

    def order(self, instance: str, name: str, value: Mapping[str, Any]) -> None:
        """Leave an order (`interrupt`, `rebalance`, `end`) for an instance; the first one of a name stands."""
        path = self.root / instance / f"{name}.json"
        if not path.exists():
            write_json(path, value)

    def gone(self, instance: str) -> bool:
        """Whether its supervisor runs no more: nothing of it writes to its folder again."""
        state = read_json(self.root / instance / "state.json")
        return state is not None and not alive(Identity(*state["supervisor"]))

    def names(self) -> Iterable[str]:
        """Every instance that has a folder."""
        return sorted(entry.name for entry in self.root.iterdir())

    def sweep(self, instance: InstanceView) -> None:
        """Kill what a dead instance left behind: members of that very instance, as `belongs` tells them."""
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with suppress(OSError):
                    who = identity(int(entry.name))
                    environment = Path(f"/proc/{entry.name}/environ").read_bytes()
                    if belongs(environment, self.root, instance.id) and who is not None and alive(who):
                        os.kill(who.pid, signal.SIGKILL)

    @staticmethod
    def _whole(state: Mapping[str, Any]) -> bool:
        return all(alive(Identity(*who)) for who in (state["supervisor"], state["agent"]) if who)

    def _status_path(self, record: Record, rank: int) -> Path:
        assert record.placement is not None
        agent = self.root / record.placement.instance_of(rank) / "agent"
        return agent / "members" / record.key / str(rank) / "status.json"

    def _spec(self, pool: LocalPool, node: str, name: str) -> dict[str, Any]:
        folder = self.root / name
        path = str(folder / "agent.sock")
        if len(os.fsencode(path)) > SOCKET_BYTES:
            path = str(_short_folder(self.files.root) / f"{name}.sock")
        agent = [sys.executable, "-m", "tidegate.agent", "--dir", str(folder / "agent")]
        return {
            "id": name,
            "node": node,
            "pool": pool.name,
            "zone": pool.labels.get("zone", "local"),
            "life_cycle": "spot" if pool.capacity_type is CapacityType.SPOT else "on-demand",
            "idle_timeout_s": self.files.config.idle_timeout_s,
            "socket": path,
            "slot_lock": str(self.files.slot_lock(node)),
            "agent": [*agent, "--socket", path, "--instance", name],
        }

    def _launch(self, folder: Path) -> None:
        """Start the supervisor. It detaches itself: it outlives us, and leaves us a child that is soon collected."""
        environment = {name: os.environ[name] for name in PASSED if name in os.environ}
        paths = [str(PACKAGES), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        own = str(Path(sys.executable).parent)  # `python` in a job is the interpreter that we run on
        environment["PATH"] = os.pathsep.join((own, os.environ.get("PATH", os.defpath)))
        argv = [sys.executable, "-m", "backends.local.instance", str(folder)]
        with (folder / "supervisor.log").open("ab") as log:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd="/", start_new_session=True
            )
        threading.Thread(target=child.wait, name=f"collect-{folder.name}", daemon=True).start()


def belongs(environment: bytes, instances: Path, instance: str) -> bool:
    """Whether a process with this environment is a member of the instance: its notice file lies in the agent's folder.

    The name must be one that we make (48 random bits): an empty or short one would fit strangers, and they would be
    killed.
    """
    if not INSTANCE_NAME.fullmatch(instance):
        return False
    mark = b"TIDEGATE_NOTICE_FILE=" + os.fsencode(instances / instance / "agent" / "members") + b"/"
    return any(variable.startswith(mark) for variable in environment.split(b"\0"))


def _short_folder(root: Path) -> Path:
    """A folder for sockets whose own path is short, private to us; the same for the same state folder."""
    folder = Path(tempfile.gettempdir()) / f"tidegate-{os.getuid()}-{zlib.crc32(os.fsencode(root)):08x}"
    folder.mkdir(mode=0o700, exist_ok=True)
    owner = folder.lstat()
    if owner.st_uid != os.getuid() or owner.st_mode & 0o077 or folder.is_symlink():
        raise Refused(f"{folder} belongs to somebody else; choose a shorter state_dir", reason="SocketFolder")
    return folder


def _refusal(name: str, instance: InstanceView, error: Mapping[str, Any]) -> BackendError:
    code, field = error.get("code", "failed"), error.get("field") or ""
    text = f"{name}: {instance.id}: {field + ': ' if field else ''}{error.get('message', '')}"
    if code == "revoked":
        return NoCapacity(text, reason="NodeInterrupted")
    if code == "invalid":
        return Refused(text, reason=Reason.INVALID_PARAMETER, permanent=True)
    if code == "failed":
        return OutcomeUnknown(text)
    return Refused(text, reason=f"Agent{str(code).capitalize()}")
