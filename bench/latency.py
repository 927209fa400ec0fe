"""From POST to the process running on the local backend, one job at a time; and what the servers hold in memory."""

import statistics
import time
from pathlib import Path

from bench.gate import TENANT, Gate, gate
from bench.rows import Row
from tidegate.wire.spec import JobSpec

JOBS = 12
TARGET_MS = 500
MEMORY_TARGET_MB = 400


def one_ms(opened: Gate, number: int) -> float:
    """Milliseconds until the job's own first command ran, by the clock that both share."""
    spec = JobSpec(name=f"latency-{number}", tenant=TENANT, run="date +%s%N", max_duration=600)
    begin_ns = time.time_ns()
    job = opened.operator.submit(spec).id
    opened.operator.wait(job, timeout_s=60)
    said = "".join(piece.text for piece in opened.operator.logs(job))
    return (int(said.strip()) - begin_ns) / 1e6


def resident_mb(pid: int) -> float:
    """Resident memory of one process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1]) / 1024


def measured() -> tuple[float, float]:
    """(median latency in ms, MB of API and worker together after it)."""
    with gate() as opened:
        one_ms(opened, 0)  # the first job also makes its instance
        latency = statistics.median(one_ms(opened, number) for number in range(1, JOBS))
        return latency, sum(resident_mb(child.process.pid) for child in opened.stack.children.values())


def run() -> list[Row]:
    """Two rows from one run: both look at the same small life of a gate."""
    latency, memory = measured()
    return [
        Row("latency", f"{latency:.0f}ms", "", latency / TARGET_MS, f"<={TARGET_MS}ms", latency <= TARGET_MS),
        Row(
            "memory",
            f"{memory:.0f}MB",
            "",
            memory / MEMORY_TARGET_MB,
            f"<={MEMORY_TARGET_MB}MB",
            memory <= MEMORY_TARGET_MB,
        ),
    ]
