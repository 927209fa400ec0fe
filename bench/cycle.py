"""How long one `plan()` takes: 10,000 pending × 1,000 nodes × 100 tenants, and the same with nothing new to start."""

import random
import statistics
import time

from bench.rows import Row
from policies.plan import plan
from policies.settings import PolicySettings
from policies.snapshot import Flavor, GroupRequest, Node, Pool, QueuedJob, Quota, Resources, Snapshot, Tenant
from policies.vocabulary import CapacityType, JobKind, PriorityClass, Resource, Tenure

HOUR_MS = 3_600_000
NOW_MS = 1_800_000_000_000
GIB = 1 << 30
TARGET_MS = 250
FULL_TARGET_MS = 20


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


def run() -> list[Row]:
    """Two rows: a queue that can start, and one where nothing can."""
    rows = []
    for name, full, target in (("cycle", False, TARGET_MS), ("cycle-idle", True, FULL_TARGET_MS)):
        spent = median_ms(cluster(10_000, 1_000, 100, full=full))
        rows.append(Row(name, f"{spent:.0f}ms", "", spent / target, f"<={target}ms", spent <= target))
    return rows
