"""How long one `plan()` takes: 10,000 pending × 1,000 nodes × 100 tenants, with room and on a full cluster; and what a
cycle costs in which nothing is new: the arbiter's own calls on a ledger with 10,000 pending.
"""

import random
import statistics
import time

import httpx

from bench.gate import TENANT, gate
from bench.rows import Row
from gateway.ledger.engine import make_engine
from gateway.ledger.store import PostgresStore
from gateway.settings import Settings
from policies.plan import plan
from policies.settings import PolicySettings
from policies.snapshot import Flavor, GroupRequest, Node, Pool, QueuedJob, Quota, Resources, Snapshot, Tenant
from policies.vocabulary import CapacityType, JobKind, PriorityClass, Resource, Tenure

HOUR_MS = 3_600_000
NOW_MS = 1_800_000_000_000
GIB = 1 << 30
TARGET_MS = 250
IDLE_TARGET_MS = 20
PENDING = 10_000
BATCH = 500
IDLE_CYCLES = 40
SPEC = {"name": "idle", "run": "true", "tenant": TENANT, "max_duration": "1h", "resources": {"cpus": 1}}


def cluster(jobs: int, nodes: int, tenants: int, *, full: bool) -> Snapshot:
    """A cluster of 8-GPU nodes with a mixed queue; with `full` every node is taken by somebody else."""
    draw = random.Random(7)
    shape = Resources(8_000, 96_000, 1_024 * GIB)
    paths = [f"org/team-{n}" for n in range(tenants)]
    queued = tuple(
        QueuedJob(
            id=f"job-{n}",
            tenant=draw.choice(paths),
            user=f"user-{draw.randrange(400)}",
            kind=JobKind.TRAINING,
            klass=draw.choices((PriorityClass.P1, PriorityClass.P2), (1, 9))[0],
            submitted_ms=NOW_MS - draw.randrange(48 * HOUR_MS),
            version=1,
            groups=(GroupRequest("main", size, size, Resources(gpus * 1000, gpus * 8_000, gpus * 64 * GIB), "H100"),),
            max_duration_ms=draw.randrange(1, 48) * HOUR_MS,
        )
        for n in range(jobs)
        for size, gpus in (draw.choice(((1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (8, 8))),)
    )
    taken = shape if full else Resources()
    pool = Pool(
        name="h100",
        backend="cloud",
        flavor="h100",
        tenure=Tenure.EXCLUSIVE,
        places_nodes=True,
        place_first=True,
        nodes=tuple(Node(f"node-{n}", shape, foreign=taken) for n in range(nodes)),
    )
    quotas = tuple(
        Quota(path, "h100", Resource.ACCELERATORS, nodes * 8_000 // tenants, nodes * 8_000 // tenants * 2, 0)
        for path in paths
    )
    return Snapshot(
        tenants=(Tenant("org"), *(Tenant(path) for path in paths)),
        quotas=quotas,
        flavors=(Flavor("h100", "H100", 80 * GIB, CapacityType.ON_DEMAND, "z1", 2_000_000),),
        pools=(pool,),
        queued=queued,
    )


def median_ms(snapshot: Snapshot, times: int = 5) -> float:
    """Median wall time of one plan."""
    settings = PolicySettings()
    spent = []
    for _ in range(times):
        begin = time.perf_counter()
        plan(snapshot, settings, NOW_MS)
        spent.append((time.perf_counter() - begin) * 1000)
    return statistics.median(spent)


def idle_ms() -> float:
    """Median wall time of a cycle in which nothing is new: the fingerprint and the proof of the epoch."""
    with gate() as opened:
        opened.operator.drain("here")
        headers = {"Authorization": f"Bearer {opened.stack.token}"}
        for _ in range(PENDING // BATCH):
            body = {"jobs": [SPEC] * BATCH}
            httpx.post(f"{opened.stack.url}/v1/jobs:batch", json=body, headers=headers, timeout=60).raise_for_status()
        opened.stack.children["worker"].stop()  # its place is taken here
        url = opened.stack.database_url
        engine = make_engine(url, pool_size=2)
        store = PostgresStore(engine, url, Settings())
        try:
            epoch = store.take_epoch("bench")
            spent = []
            for _ in range(IDLE_CYCLES):
                begin = time.perf_counter()
                store.fingerprint()
                store.beat(epoch)
                spent.append((time.perf_counter() - begin) * 1000)
        finally:
            store.close()
            engine.dispose()
    return statistics.median(spent)


def run() -> list[Row]:
    """A queue that can start, one where nothing can, and a ledger where nothing is new."""
    rows = []
    for name, full in (("cycle", False), ("cycle-full", True)):
        spent = median_ms(cluster(10_000, 1_000, 100, full=full))
        rows.append(Row(name, f"{spent:.0f}ms", "", spent / TARGET_MS, f"<={TARGET_MS}ms", spent <= TARGET_MS))
    idle = idle_ms()
    target = f"<={IDLE_TARGET_MS}ms"
    rows.append(Row("cycle-idle", f"{idle:.1f}ms", "", idle / IDLE_TARGET_MS, target, idle <= IDLE_TARGET_MS))
    return rows
