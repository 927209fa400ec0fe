"""A gate of separate processes for one test, with jobs that end when they are told to and keep their own record."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.embedded import postgres
from soak.drive import ONE_TRY
from soak.load import Load
from soak.parts import Gate, until
from soak.records import Records
from soak.run import SETTINGS, prepare
from tests.harness.waiting import eventually
from tidegate.client import Client
from tidegate.wire.job import JobDetail
from tidegate.wire.spec import JobSpec

PATIENCE_S = 90


@dataclass
class Site:
    """The gate, its operator, and where jobs write."""

    gate: Gate
    client: Client
    load: Load
    records: Records

    def submit(self, name: str, **changes: Any) -> str:
        """A job that works until `tell`; its id. Twice with one name is one job."""
        spec: dict[str, Any] = {
            "name": name,
            "tenant": "acme/research",
            "workdir": self.load.workdir,
            "run": f'exec "{sys.executable}" member.py',
            "resources": {"cpus": 1, "memory": "64Mi"},
            "placement": {"pools": ["plain"]},
            "capacity": {"type": "on_demand"},
            "max_duration": "4h",
            "grace": "20s",
            "env": {"RECORDS": str(self.records.folder), "MODE": "told", "TOLD": name, "STEP_MS": "50"},
            **changes,
        }
        return self.client.submit(JobSpec.model_validate(spec), key=f"key-of-{name}").id

    def train(self, name: str, **changes: Any) -> str:
        """The same with checkpoints and reports."""
        env = {"RECORDS": str(self.records.folder), "MODE": "train", "TOLD": name, "STEP_MS": "50", "STEPS": "100000"}
        url = f"{(self.gate.folder / 'checkpoints').as_uri()}/{name}"
        card = {"accelerators": "V100:2", "cpus": 1, "memory": "64Mi"}
        fields = {"kind": "training", "env": env, "checkpoint": {"url": url}, "resources": card}
        place = {"pools": ["cards" if "resources" not in changes else "plain"]}
        return self.submit(name, **{**fields, "placement": place, **changes})

    def tell(self, name: str, which: int | str = 1, code: int = 0) -> None:
        """The attempt `which` of the job (or index `i<n>`) ends now with this code."""
        path = self.records.folder / f"{name}.{which}.go"
        part = path.with_suffix(".part")
        part.write_text(str(code))
        part.rename(path)

    def starts(self, job: str) -> Counter[str]:
        """Members' beginnings: `r0#2` is rank 0 of attempt 2."""
        lines = [line for line in self.records.lines() if line.job == job and line.event == "start"]
        return Counter(f"{line.place.rpartition('.')[2]}#{line.attempt}" for line in lines)

    def has_started(self, job: str, *which: str) -> None:
        """Wait until these members have begun."""

        def all_of_them() -> bool:
            assert set(which) <= set(self.starts(job)), (which, self.starts(job), self.client.get(job))
            return True

        eventually(all_of_them, timeout_s=PATIENCE_S, every_s=0.1)

    def is_in(self, job: str, state: str) -> JobDetail:
        """Wait for a state that the gate shows."""

        def shown() -> JobDetail:
            found = self.client.get(job)
            assert found.state == state, found
            return found

        return eventually(shown, timeout_s=PATIENCE_S, every_s=0.1)

    def unknown(self, job: str) -> bool:
        """Whether the gate knows nothing of the job."""
        return job not in {one.id for one in self.client.list()}

    def rows(self, query: str) -> list[Any]:
        """From the ledger."""
        with self.gate.postgres.server.connect() as connection:
            return connection.execute(query).fetchall()

    def recover(self) -> subprocess.CompletedProcess[str]:
        """`tidegate recover --data-dir ... --json`."""
        argv = [sys.executable, "-m", "tidegate", "recover", "--data-dir", str(self.gate.folder), "--json"]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PATIENCE_S)

    def recovered(self) -> Any:
        """Its report; it must have worked."""
        done = self.recover()
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def dump(self, path: Path) -> None:
        """A backup of the ledger."""
        self._pg("pg_dump", "--format=custom", f"--file={path}", postgres.USER)

    def restore(self, path: Path) -> None:
        """The database as it was when `dump` wrote the file. Nothing may be at work."""
        with self.gate.postgres.server.connect("postgres") as connection:
            connection.execute(f"DROP DATABASE {postgres.USER} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {postgres.USER}")
        self._pg("pg_restore", "--exit-on-error", f"--dbname={postgres.USER}", str(path))

    def _pg(self, tool: str, *arguments: str) -> None:
        server = self.gate.postgres.server
        uid = server.data_dir.stat().st_uid
        argv = [str(postgres._binaries(uid) / tool), f"--host={server.socket_dir}", f"--username={postgres.USER}"]
        done = subprocess.run(
            [*argv, *arguments], env={"PGPASSWORD": server.password}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def holds(self) -> None:
        """Nothing ran twice at once, nothing is left, the books balance."""
        assert self.records.overlaps() == []
        eventually(lambda: self.records.working() == [], timeout_s=PATIENCE_S, what="no member works any more")
        held = "SELECT attempt_id FROM leases WHERE state IN ('held', 'contingent')"
        eventually(lambda: self.rows(held) == [], timeout_s=PATIENCE_S, what="no lease is left")
        assert self.rows("SELECT id FROM attempts WHERE ended_at IS NULL") == []
        assert self.gate.check() == ""


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """Up, with the soak's federation; everything has ended afterwards."""
    for parent in (folder, folder.parent, folder.parent.parent):
        parent.chmod(0o755)
    with ExitStack() as ends:
        gate = Gate(folder / "gate", SETTINGS)
        ends.callback(gate.down)
        gate.up()
        assert until(gate.serves, 60), (gate.folder / "logs" / "serve.log").read_text()[-2000:]
        client = ends.enter_context(Client(gate.url, gate.token, retry=ONE_TRY))
        load = prepare(gate, client, 1, ends)
        yield Site(gate, client, load, Records(gate.folder / "records"))
