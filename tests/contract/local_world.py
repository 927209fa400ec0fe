"""The local backend in the contract suite: real instances, agents and members on this machine."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from backends.errors import OutcomeUnknown
from backends.local.backend import LocalBackend
from backends.local.files import read_json
from backends.port import Backend
from backends.registry import build
from backends.types import Handle, Phase
from policies.snapshot import Resources
from tests.builders.launch import GPU, a_group, a_launch
from tests.contract.harness import Offer, Program, output
from tests.harness.waiting import eventually

DUMP = "import json,os,sys; print('started'); [print(json.dumps(os.environ.get(name))) for name in sys.argv[1:]]"
# Tenants' users must be able to run it: an interpreter below somebody's home will not do.
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
WAIT = "while :; do sleep 0.05; done"
SCRIPTS = {
    Program.STAY: f"echo started; {WAIT}",
    Program.EXIT: 'echo started; sleep 0.2; exit "$1"',
    Program.FAIL_RANK: f'echo started; [ "$TIDEGATE_NODE_RANK" != "$1" ] || {{ sleep 0.2; exit "$2"; }}; {WAIT}',
    Program.HEAR: f"trap 'echo told' USR1; echo started; {WAIT}",
    Program.SAVE: f"trap 'exit 75' USR1; echo started; {WAIT}",
    Program.SAY: "echo started; printf '%s\\n' \"$@\"",
}


class LocalWorld:
    """A state folder of its own; everything in it is ended by `close`."""

    name = "local"
    pool = "spot"
    nodes = 2
    deadline_s = 16.0
    offers = frozenset(Offer)

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tg-"))
        self.folder.chmod(0o711)
        self.stranger: subprocess.Popen[bytes] | None = None
        self.operator = cast("LocalBackend", self.backend())

    def backend(self, gateway: str = "gw") -> Backend:
        pool = {"name": self.pool, "nodes": self.nodes, "accelerators": 2, "cpus": 8, "memory": "16Gi"}
        isolation = "uid" if os.geteuid() == 0 else "none"
        config = {
            "isolation": isolation,
            "state_dir": str(self.folder / "state"),
            "pools": [{**pool, "capacity_type": "spot", "spot_notice_s": 3}],
            "timeout_s": self.deadline_s,
            "poll_s": 0.05,
            "heartbeat_s": 0.5,
            "heartbeat_timeout_s": 5,
        }
        return build("here", "local", config, gateway)

    def command(self, program: Program, *arguments: str) -> tuple[str, ...]:
        if program is Program.ENV:
            return (PYTHON, "-c", DUMP, *arguments)
        return ("/bin/sh", "-c", SCRIPTS[program], program.value, *arguments)

    def lose_answer(self, backend: Backend, operation: str) -> None:
        assert isinstance(backend, LocalBackend)
        seams: dict[str, tuple[Any, str]] = {
            "prepare": (backend.files, "create"),
            "start": (backend.machines, "call"),
            "stop": (backend.machines, "call"),
        }
        place, name = seams[operation]
        real = getattr(place, name)

        def once(*arguments: Any, **named: Any) -> Any:
            setattr(place, name, real)
            real(*arguments, **named)
            raise OutcomeUnknown(f"the answer of {name} was lost")

        setattr(place, name, once)

    @contextmanager
    def dark(self, backend: Backend) -> Iterator[None]:
        """This adapter's mount is gone; the machines go on."""
        assert isinstance(backend, LocalBackend)
        backend.capacity()
        files, machines = backend.files.root, backend.machines.root
        backend.files.root, backend.machines.root = self.folder / "gone", self.folder / "gone" / "instances"
        yield
        backend.files.root, backend.machines.root = files, machines

    @contextmanager
    def hang(self, backend: Backend, handle: Handle) -> Iterator[None]:
        agents = self._agents(handle)
        for pid in agents:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in agents:
                os.kill(pid, signal.SIGCONT)

    def refused(self) -> Resources:
        return Resources(64 * GPU)

    def evict(self, backend: Backend, handle: Handle) -> None:
        os.kill(self._agents(handle)[0], signal.SIGKILL)

    def use_foreign(self, amount: Resources, owner: str = "") -> None:
        self.stranger = subprocess.Popen(["/bin/sleep", "600"])
        self.operator.set_foreign(self.pool, {f"{self.pool}-0": amount}, owner)

    def foreign_lives(self) -> bool:
        return self.stranger is not None and self.stranger.poll() is None

    def traces(self, key: str) -> Sequence[str]:
        found = [str(path) for path in (self.folder / "state").rglob(f"*{key}*")]
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    environment = (entry / "environ").read_bytes()
                except OSError:
                    continue
                if f"/{key}/".encode() in environment:
                    found.append(f"process {entry.name}")
        return found

    def begun(self, backend: Backend, handle: Handle, rank: int) -> int:
        return output(backend, handle, rank).splitlines().count(b"started")

    def told(self, backend: Backend, handle: Handle) -> Sequence[int]:
        record = self.operator.files.record(handle.key)
        assert record is not None
        assert record.placement is not None
        ranks = [seat.rank for seat in record.placement.seats]
        return [rank for rank in ranks if b"told" in output(backend, handle, rank).splitlines()]

    def intrude(self, backend: Backend, victim: Handle) -> Sequence[str]:
        record = self.operator.files.record(victim.key)
        assert record is not None
        assert record.placement is not None
        status = self.operator.machines.statuses(record)[0]
        folder, pid = Path(status["folder"]), status["pid"]
        targets = [
            folder / "spec.json",
            folder / "status.json",
            folder / "job",
            folder / "job" / "token",
            folder / "job" / "work",
            self.operator.files.log(victim.key, 0),
            self.operator.files.root / "launches",
            Path(f"/proc/{pid}/environ"),
        ]
        code = (
            "import os,sys\n"
            "for path in sys.argv[2:]:\n"
            "    try:\n"
            "        os.listdir(path) if os.path.isdir(path) else open(path,'rb').read()\n"
            "        print('READ', path)\n"
            "    except OSError: pass\n"
            "try:\n"
            "    os.kill(int(sys.argv[1]), 15); print('SIGNALLED')\n"
            "except PermissionError: print('tried')\n"
        )
        command = (PYTHON, "-c", code, str(pid), *map(str, targets))
        launch = backend.prepare(a_launch(a_group(self.pool, command), tenant="rival/lab"))
        backend.start(launch)
        eventually(lambda: backend.observe([launch])[0].phase is Phase.ENDED, what="the intruder's end")
        lines = output(backend, launch, 0).decode().splitlines()
        assert "tried" in lines or "SIGNALLED" in lines, f"the intruder did not run: {lines}"
        return [line for line in lines if line != "tried"]

    def close(self) -> None:
        try:
            self.operator.end_instances()
        finally:
            if self.stranger is not None:
                self.stranger.kill()
                self.stranger.wait()
            shutil.rmtree(self.folder)

    def _agents(self, handle: Handle) -> list[int]:
        record = self.operator.files.record(handle.key)
        assert record is not None
        assert record.placement is not None
        folders = [self.operator.machines.root / name for name in record.placement.instances.values()]
        return [int(read_json(folder / "state.json")["agent"][0]) for folder in folders]
