"""Direct use in the ledger: recorded by owner, mapped to tenants, counted against max where the lease is made."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from backends.local.backend import LocalBackend
from backends.registry import build
from backends.types import PoolCapacity
from gateway.ledger.check import check
from gateway.ledger.forget import begin
from gateway.ledger.limits import LimitExceeded
from policies.plan import plan
from policies.settings import PolicySettings
from policies.snapshot import Node, Resources, Usage
from policies.vocabulary import Resource
from tests.builders.ledger import FLAVOR, GPU, POOL, gpus
from tests.unit.store.world import Gate, rows, write

LOCAL = {"name": POOL, "nodes": 13, "accelerators": 8, "cpus": 64, "memory": "512Gi"}

OWNED = Resources(40 * GPU, 8000, 1 << 30)


def reports(gate: Gate, **owners: Resources) -> None:
    """The backend says what owners use of one big node."""
    foreign = sum(owners.values(), Resources())
    node = Node("big", Resources(100 * GPU, 400_000, 1 << 40, 1 << 40), foreign=foreign)
    later = datetime.now(UTC) + timedelta(seconds=1)
    gate.store.capacity("b", [PoolCapacity(POOL, (node,), later, owners)])


def maps(gate: Gate, owner: str, tenant: str) -> None:
    write(
        gate.engine,
        "INSERT INTO owners (backend, owner, tenant_id) VALUES ('b', :owner, :tenant)",
        owner=owner,
        tenant=gate.tenants[tenant],
    )


def observed(gate: Gate) -> dict[tuple[str, str], int]:
    return {
        (usage.tenant, usage.resource.value): usage.observed
        for usage in gate.store.cycle().snapshot.usages
        if usage.observed
    }


def test_a_mapped_owners_use_counts_at_its_tenant_and_above_and_an_unmapped_ones_nowhere(gate: Gate) -> None:
    gate.tenant("acme")
    gate.tenant("acme/nlp")
    maps(gate, "lab", "acme/nlp")
    reports(gate, lab=OWNED, strangers=Resources(10 * GPU))
    assert observed(gate) == {
        (tenant, resource): amount
        for tenant in ("acme", "acme/nlp")
        for resource, amount in (("accelerators", 40 * GPU), ("cpus", 8000), ("memory", 1 << 30))
    }
    (pool,) = gate.store.cycle().snapshot.pools
    assert pool.nodes[0].foreign.accelerators == 50 * GPU, "all of it takes room"


def test_use_that_is_over_counts_no_more_and_a_dark_backend_frees_nothing(gate: Gate) -> None:
    gate.tenant("acme")
    maps(gate, "lab", "acme")
    reports(gate, lab=OWNED)
    gate.store.dark("b", "no answer")
    assert observed(gate)
    reports(gate)
    assert observed(gate) == {}


def test_what_changes_wakes_the_arbiter_and_what_stays_does_not(gate: Gate) -> None:
    gate.tenant("acme")
    reports(gate, lab=OWNED)
    while gate.store.wait_for_work(0):
        """What came before is heard out."""
    reports(gate, lab=OWNED)
    assert not gate.store.wait_for_work(0.2)
    reports(gate, lab=OWNED, other=Resources(GPU))
    assert gate.store.wait_for_work(5)


def test_the_gate_admits_20_beside_40_by_direct_use_under_a_max_of_60(gate: Gate) -> None:
    """POLICIES §3: planned by the live plan, committed by the ledger; the 21st card is refused by both."""
    gate.tenant("acme", max_gpus=60)
    gate.tenant("acme/nlp")
    maps(gate, "lab", "acme/nlp")
    reports(gate, lab=OWNED)
    job = gate.submit("acme/nlp", resources={"accelerators": "H100:20"})
    more = gate.submit("acme/nlp", resources={"accelerators": "H100:1"})
    cycle = gate.store.cycle()
    report = gate.store.commit(
        gate.store.take_epoch("test"), cycle, plan(cycle.snapshot, PolicySettings(), cycle.now_ms)
    )
    assert report.admitted == (job,)
    assert gate.job(more).pending["token"] == "TenantLimit"
    assert gate.job(more).pending["numbers"]["observed"] == 40 * GPU
    assert check(gate.engine) == [], "direct use is no fault of the ledger"


def test_with_the_local_backend_what_an_owner_runs_there_counts(gate: Gate, tmp_path: Path) -> None:
    """The same, from the load that a real backend reports to the lease."""
    config = {"state_dir": str(tmp_path / "state"), "isolation": "none", "pools": [LOCAL]}
    backend = cast("LocalBackend", build("b", "local", config, "gw"))
    backend.set_foreign(POOL, {f"{POOL}-{n}": Resources(8 * GPU) for n in range(5)}, "lab")
    backend.set_foreign(POOL, {f"{POOL}-5": Resources(2 * GPU)}, "strangers")
    gate.tenant("acme", max_gpus=60)
    maps(gate, "lab", "acme")
    gate.store.capacity("b", backend.capacity(), backend.capabilities)
    jobs = [
        gate.submit("acme", resources={"accelerators": f"H100:{each}"}, num_nodes=count)
        for each, count in ((4, 5), (1, 1))
    ]
    cycle = gate.store.cycle()
    gate.store.commit(gate.store.take_epoch("test"), cycle, plan(cycle.snapshot, PolicySettings(), cycle.now_ms))
    assert [gate.job(job).state for job in jobs] == ["ADMITTED", "QUEUED"]
    assert gate.job(jobs[1]).pending["token"] == "TenantLimit"
    backend.set_foreign(POOL, {f"{POOL}-0": Resources(8 * GPU)}, "lab")
    gate.store.capacity("b", backend.capacity(), backend.capabilities)
    cycle = gate.store.cycle()
    gate.store.commit(gate.store.take_epoch("test"), cycle, plan(cycle.snapshot, PolicySettings(), cycle.now_ms))
    assert gate.job(jobs[1]).state == "ADMITTED", "the owner has left most of its cards"


def test_ql_01_five_leases_of_ten_at_once_beside_40_observed_admit_two(gate: Gate) -> None:
    gate.tenant("acme", max_gpus=60)
    leaf = gate.tenant("acme/nlp")
    maps(gate, "lab", "acme")
    reports(gate, lab=OWNED)
    jobs = [gate.world.job(leaf) for _ in range(5)]

    def one(number: int) -> str:
        try:
            gate.world.admit(jobs[number], gpus(10))
        except LimitExceeded as refused:
            return str(refused)
        return ""

    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(one, range(5)))
    assert answers.count("") == 2
    refused = next(answer for answer in answers if answer)
    assert "the limit of 60000, part of which is in direct use" in refused


def test_a_max_that_direct_use_has_passed_admits_nothing_and_is_said(gate: Gate) -> None:
    tenant = gate.tenant("acme", max_gpus=30)
    maps(gate, "lab", "acme")
    reports(gate, lab=OWNED)
    with pytest.raises(LimitExceeded) as refused:
        gate.world.admit(gate.world.job(tenant), gpus(1))
    assert (refused.value.held, refused.value.observed, refused.value.limit) == (40 * GPU, 40 * GPU, 30 * GPU)


def test_forgetting_a_backend_forgets_what_others_used_there(gate: Gate) -> None:
    gate.tenant("acme")
    maps(gate, "lab", "acme")
    reports(gate, lab=OWNED)
    gate.store.dark("b", "burnt")
    with gate.world.session() as session, session.begin():
        begin(session, "b")
    assert rows(gate.engine, "SELECT * FROM foreign_use") == []


def test_held_and_observed_stand_side_by_side(gate: Gate) -> None:
    gate.tenant("acme")
    maps(gate, "lab", "acme")
    reports(gate, lab=OWNED)
    gate.store.take_epoch("test")
    gate.admit(gate.submit("acme"), 3, "big")
    usages = [u for u in gate.store.cycle().snapshot.usages if u.resource is Resource.ACCELERATORS]
    assert usages == [Usage("acme", FLAVOR, Resource.ACCELERATORS, 3 * GPU, 40 * GPU)]
