"""Durable `POST /v1/jobs` against a bare handler doing one transaction on the same database, in turns in one run."""

import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from bench.gate import TENANT, Gate, gate
from bench.rows import Row
from gateway.embedded.processes import Ready, spawn, wait_until
from gateway.embedded.stack import free_port

CLIENTS = 8
REQUESTS = 400
ROUNDS = 3
TARGET = 0.7
BATCH = 500
BATCH_TARGET = 3_000
SPEC = {"name": "bench", "run": "true", "tenant": TENANT, "max_duration": "1h", "resources": {"cpus": 1}}


def rate(url: str, headers: dict[str, str]) -> float:
    """Accepted requests a second, CLIENTS at a time, over kept connections."""
    local = threading.local()

    def post(_: int) -> None:
        if not hasattr(local, "client"):
            local.client = httpx.Client(headers=headers, timeout=30)
        local.client.post(url, json=SPEC).raise_for_status()

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(post, range(CLIENTS * 4)))  # connections and caches
        begin = time.perf_counter()
        list(pool.map(post, range(REQUESTS)))
        return REQUESTS / (time.perf_counter() - begin)


def batch_rate(opened: Gate) -> float:
    """Jobs a second through POST /v1/jobs:batch."""
    headers = {"Authorization": f"Bearer {opened.stack.token}"}
    begin = time.perf_counter()
    for _ in range(ROUNDS):
        body = {"jobs": [SPEC] * BATCH}
        httpx.post(f"{opened.stack.url}/v1/jobs:batch", json=body, headers=headers, timeout=60).raise_for_status()
    return ROUNDS * BATCH / (time.perf_counter() - begin)


def run() -> list[Row]:
    """Single submits against the peer, and batches against their target."""
    with gate() as opened:
        opened.operator.drain("here")  # the jobs stay queued: what is measured is the front door
        port = free_port()
        environment = {"TIDEGATE_DATABASE_URL": opened.stack.database_url}
        log = Path(opened.stack.data_dir) / "logs" / "bare.log"
        child = spawn("bare", [sys.executable, "-m", "bench.bare", str(port)], environment, log)
        try:
            wait_until(Ready(f"http://127.0.0.1:{port}/openapi.json"), [child], 30, "the bare handler")
            headers = {"Authorization": f"Bearer {opened.stack.token}"}
            ours, bare = [], []
            for _ in range(ROUNDS):
                bare.append(rate(f"http://127.0.0.1:{port}/jobs", {}))
                ours.append(rate(f"{opened.stack.url}/v1/jobs", headers))
            batches = batch_rate(opened)
        finally:
            child.stop()
    mine, peer = statistics.median(ours), statistics.median(bare)
    return [
        Row("submit", f"{mine:.0f}/s", f"{peer:.0f}/s", mine / peer, f">={TARGET}x", mine / peer >= TARGET),
        Row(
            "submit-batch",
            f"{batches:.0f}/s",
            "",
            batches / BATCH_TARGET,
            f">={BATCH_TARGET}/s",
            batches >= BATCH_TARGET,
        ),
    ]
