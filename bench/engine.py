"""Whole lives of jobs through the gate against a bare loop on the same Temporal and the same database, in turns.

A life through the gate: POST, cycle, commit, outbox, AttemptWorkflow, launch, observation, settle. A bare life: one
workflow with launch, signal and settle (`bench.bare_loop`). Both run what costs nothing (`bench.instant`).
"""

import asyncio
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
from sqlalchemy import Engine, TextClause, text
from temporalio.client import Client as Temporal

from bench.bare_loop import MAKE, QUEUE
from bench.rows import Row
from gateway.embedded.processes import Child, spawn
from gateway.embedded.stack import Stack, running
from gateway.ledger.engine import make_engine
from tidegate.client import Client
from tidegate.wire.operator import OPERATOR_DOC

IN_FLIGHT: Final = 32
LIVES: Final = 300  # of one segment
WARM: Final = 64
ROUNDS: Final = 3
TARGET: Final = 0.8
INDEXES: Final = 300
ARRAY_TARGET: Final = 300
PATIENCE_S: Final = 180
LOOK_S: Final = 0.02
TENANT: Final = "bench/team"
BACKEND, POOL, FLAVOR = "here", "wide", "card"
SPEC: Final = {
    "name": "life",
    "run": "true",
    "tenant": TENANT,
    "max_duration": "1h",
    "resources": {"accelerators": 1, "cpus": 1},
}
DOCUMENTS: Final = (
    {"kind": "tenant", "path": "bench"},
    {"kind": "tenant", "path": TENANT},
    {
        "kind": "flavor",
        "name": FLAVOR,
        "accelerator": "H100",
        "accelerator_memory": "80Gi",
        "capacity_type": "on_demand",
        "price": 2_000_000,
    },
    {"kind": "backend", "name": BACKEND, "type": "local", "config": {"isolation": "none", "trust_below": "bench"}},
    {
        "kind": "pool",
        "name": POOL,
        "backend": BACKEND,
        "flavor": FLAVOR,
        "config": {"nodes": 16, "accelerators": 8, "cpus": 64, "memory": "512Gi"},
    },
    {"kind": "quota", "tenant": "bench", "flavor": FLAVOR, "min": 0, "max": 100_000},
    {"kind": "quota", "tenant": TENANT, "flavor": FLAVOR, "min": 0, "max": 100_000},
)
_ENDED: Final = text("SELECT count(*) FROM jobs WHERE name = :mark AND state = 'SUCCEEDED'")
_SETTLED: Final = text("SELECT count(*) FROM bare_lives WHERE settled IS NOT NULL AND id LIKE :mark || '%'")


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two loops: how a life of the segment `mark` begins, and how many of them are over."""

    begin: Callable[[str, int], Awaitable[None]]
    ended: TextClause


async def lives(engine: Engine, side: Side, count: int) -> float:
    """Whole lives a second, IN_FLIGHT at a time."""
    mark = f"life-{uuid.uuid4().hex[:8]}"
    begun = ended = 0
    began = time.perf_counter()
    while ended < count:
        if time.perf_counter() - began > PATIENCE_S:
            raise TimeoutError(f"{ended} of {count} lives were over after {PATIENCE_S} s")
        room = min(count, ended + IN_FLIGHT) - begun
        await asyncio.gather(*(side.begin(mark, begun + n) for n in range(room)))
        begun += room
        await asyncio.sleep(LOOK_S)
        ended = await asyncio.to_thread(_count, engine, side.ended, mark)
    return count / (time.perf_counter() - began)


def _count(engine: Engine, statement: TextClause, mark: str) -> int:
    with engine.begin() as connection:
        return int(connection.execute(statement, {"mark": mark}).scalar_one())


def gate_side(http: httpx.AsyncClient) -> Side:
    """A life begins with a POST."""

    async def begin(mark: str, _: int) -> None:
        (await http.post("/v1/jobs", json={**SPEC, "name": mark})).raise_for_status()

    return Side(begin, _ENDED)


def bare_side(temporal: Temporal) -> Side:
    """A life begins with a workflow."""

    async def begin(mark: str, number: int) -> None:
        await temporal.start_workflow("bare", f"{mark}-{number}", id=f"{mark}-{number}", task_queue=QUEUE)

    return Side(begin, _SETTLED)


async def array_rate(engine: Engine, http: httpx.AsyncClient) -> float:
    """Indexes a second of one array, from its POST to its end."""
    mark = f"array-{uuid.uuid4().hex[:8]}"
    began = time.perf_counter()
    spec = {**SPEC, "name": mark, "array": {"indexes": INDEXES}}
    (await http.post("/v1/jobs", json=spec)).raise_for_status()
    while not await asyncio.to_thread(_count, engine, _ENDED, mark):
        if time.perf_counter() - began > PATIENCE_S:
            raise TimeoutError(f"the array was not over after {PATIENCE_S} s")
        await asyncio.sleep(LOOK_S)
    return INDEXES / (time.perf_counter() - began)


@contextmanager
def loops() -> Iterator[Stack]:
    """The embedded stack whose worker has the instant backend, with the bare loop's worker beside it."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with running(folder) as stack:
            with Client(stack.url, token=stack.token) as operator:
                operator.apply([OPERATOR_DOC.validate_python(document) for document in DOCUMENTS])
            stack.children["worker"].stop()
            children: list[Child] = []
            try:
                for argv in (["bench.engine_worker", BACKEND, POOL], ["bench.bare_loop"]):
                    log = folder / "logs" / f"{argv[0]}.log"
                    children.append(spawn(argv[0], [sys.executable, "-m", *argv], stack.environment, log))
                yield stack
            finally:
                for child in children:
                    child.stop()


async def measured(stack: Stack) -> tuple[list[float], list[float], float]:
    """(lives/s through the gate and of the bare loop, per segment; indexes/s)."""
    engine = make_engine(stack.database_url, pool_size=2, app_role=False)
    headers = {"Authorization": f"Bearer {stack.token}"}
    try:
        with engine.begin() as connection:
            connection.execute(text(MAKE))
        temporal = await Temporal.connect(stack.environment["TIDEGATE_TEMPORAL_ADDRESS"])
        async with httpx.AsyncClient(base_url=stack.url, headers=headers, timeout=60) as http:
            gate, bare = gate_side(http), bare_side(temporal)
            ours: list[float] = []
            theirs: list[float] = []
            for side in (bare, gate):
                await lives(engine, side, WARM)
            for _ in range(ROUNDS):
                theirs.append(await lives(engine, bare, LIVES))
                ours.append(await lives(engine, gate, LIVES))
            return ours, theirs, await array_rate(engine, http)
    finally:
        engine.dispose()


def run() -> list[Row]:
    """Single jobs against the bare loop, and the indexes of an array against their target."""
    with loops() as stack:
        ours, theirs, indexes = asyncio.run(measured(stack))
    mine, peer = statistics.median(ours), statistics.median(theirs)
    return [
        Row("engine", f"{mine:.1f}/s", f"{peer:.1f}/s", mine / peer, f">={TARGET}x", mine / peer >= TARGET),
        Row(
            "engine-array",
            f"{indexes:.0f}/s",
            "",
            indexes / ARRAY_TARGET,
            f">={ARRAY_TARGET}/s",
            indexes >= ARRAY_TARGET,
        ),
    ]
