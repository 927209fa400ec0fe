"""One soak from beginning to end: a gate, its users, the kills, the verdict. Bounded in time; says how it goes."""

import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import yaml

from gateway.demo.run import Provider
from gateway.directory import BackendDirectory
from gateway.ledger.engine import make_engine
from soak.chaos import PARTS, Chaos
from soak.drive import ONE_TRY, Users
from soak.load import Load
from soak.parts import Gate, until
from soak.records import Records
from soak.verdict import Verdict, judge
from tidegate.client import Client
from tidegate.wire.operator import OPERATOR_DOC

HERE = Path(__file__).parent
SETTINGS = {
    "TIDEGATE_RECOVERY_S": "10",
    "TIDEGATE_DEFAULT_RESTART_S": "2",
    "TIDEGATE_CAPACITY_EVERY_S": "0.5",
    "TIDEGATE_RECONCILE_EVERY_S": "5",
}
SAY_EVERY_S = 10.0
SECONDS_A_KILL = 15.0
SPARE_S = 240.0


@dataclass(frozen=True, slots=True)
class Plan:
    """kills: at least so many, while jobs are there. jobs: at least so many; more are sent while kills are owed."""

    seed: int = 1
    kills: int = 20
    jobs: int = 30
    in_flight: int = 16
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def limit_s(self) -> float:
        """After this the users give up, and what is open then is lost."""
        return SPARE_S + SECONDS_A_KILL * self.kills


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one soak."""

    verdict: Verdict
    kills: Counter[str]
    shapes: Counter[str]
    unanswered: int
    restarts: dict[str, int]
    problems: list[str]
    seconds: float


def soak(plan: Plan, folder: Path, say: Callable[[str], None]) -> Outcome:
    """Everything lies in `folder` and is left there; every process has ended when this returns."""
    began = time.monotonic()
    with ExitStack() as ends:
        gate = Gate(folder, {**SETTINGS, **plan.settings})
        ends.callback(gate.down)
        gate.up()
        if not until(gate.serves, 60):
            raise RuntimeError(f"the gate did not come up; see {folder / 'logs'}")
        client = ends.enter_context(Client(gate.url, gate.token, retry=ONE_TRY))
        load = prepare(gate, client, plan.seed, ends)
        records = Records(folder / "records")
        users = Users(client, load, records, plan.in_flight)
        say(f"the gate is up after {time.monotonic() - began:.1f} s at {gate.url}")
        chaos = Chaos(gate, records, plan.seed, plan.kills, say)
        killer = threading.Thread(target=chaos.run, name="chaos", daemon=True)
        killer.start()
        ends.callback(chaos.stop.set)

        def enough() -> bool:
            return len(users.jobs) >= plan.jobs and not killer.is_alive()

        users.run(enough, plan.limit_s, progress(users, chaos, began, say))
        chaos.stop.set()
        killer.join()
        until(gate.serves, 60)
        verdict = judge(list(users.jobs.values()), len(users.jobs), records, gate.postgres.server, gate.check)
        shapes = Counter(sent.wanted.shape for sent in users.jobs.values())
        seconds = time.monotonic() - began
        return Outcome(verdict, chaos.done, shapes, users.unanswered, gate.restarts, gate.problems, seconds)


def prepare(gate: Gate, client: Client, seed: int, ends: ExitStack) -> Load:
    """The operators' files, the jobs' archive, and folders that they may write to."""
    checkpoints = gate.folder / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    checkpoints.chmod(0o1777)
    documents = list(yaml.safe_load_all((HERE / "operators.yaml").read_text()))
    documents.append({"kind": "storage", "tenant": "acme", "name": "checkpoints", "prefix": checkpoints.as_uri()})
    client.apply([OPERATOR_DOC.validate_python(document) for document in documents])
    engine = make_engine(gate.database_url)
    ends.callback(engine.dispose)
    backends = BackendDirectory(engine, "tidegate", gate.folder)
    ends.callback(backends.close)
    ends.callback(cast("Provider", backends["here"]).end_instances)
    workdir = client.upload_workdir(HERE / "job", tenant="acme/research")
    client.upload_workdir(HERE / "job", tenant="acme/product")
    return Load(seed, workdir, sys.executable, gate.folder)


def progress(users: Users, chaos: Chaos, began: float, say: Callable[[str], None]) -> Callable[[], None]:
    """A line now and then."""
    last = [0.0]

    def tick() -> None:
        if time.monotonic() - last[0] < SAY_EVERY_S:
            return
        last[0] = time.monotonic()
        over = sum(sent.ended is not None for sent in users.jobs.values())
        kills = " ".join(f"{part} {chaos.done[part]}" for part in PARTS)
        say(
            f"{time.monotonic() - began:5.0f} s  jobs {over} ended, {len(users.open())} open; kills {kills};"
            f" overlaps {len(chaos.records.overlaps())}"
        )

    return tick


def report(outcome: Outcome, say: Callable[[str], None]) -> None:
    """The figures, and every case in words."""
    verdict = outcome.verdict
    say(f"jobs     {outcome.shapes.total()}  {dict(outcome.shapes)}")
    say(f"kills    {outcome.kills.total()}  {dict(outcome.kills)}")
    say(f"restarts {sum(outcome.restarts.values())}  {outcome.restarts}; failed starts {len(outcome.problems)}")
    for problem in outcome.problems:
        say(f"    {problem}")
    say(f"attempts {verdict.attempts.total()}  {dict(verdict.attempts)}; calls without an answer {outcome.unanswered}")
    for name, found in (
        ("doubles", verdict.doubles),
        ("lost", verdict.lost),
        ("leaked", verdict.leaked),
        ("books", verdict.books),
    ):
        say(f"{name:8} {len(found)}")
        for one in found:
            say(f"    {one}")
    say(f"{'passed' if verdict.passed else 'FAILED'} in {outcome.seconds:.0f} s")


def scratch() -> Path:
    """A folder that other users may pass through."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-soak-"))
    folder.chmod(0o755)
    return folder
