"""One attempt with parts at two backends: ranks run over the whole, and the least certain start comes first."""

from dataclasses import replace

from policies.decisions import Act
from policies.snapshot import Placed, Resources
from policies.vocabulary import AttemptState
from tests.builders.ledger import FLAVOR, GPU, POOL
from tests.unit.store.world import Gate, an_admit, write

MEMBER = Resources(GPU, 1000, 1 << 30)


def two_backends(gate: Gate) -> None:
    gate.tenant("acme")
    write(gate.engine, "INSERT INTO backends (name, kind) VALUES ('a', 'local')")
    write(
        gate.engine, "INSERT INTO pools (name, backend, flavor, tenure) VALUES ('shared', 'a', :f, 'shared')", f=FLAVOR
    )


def admitted(gate: Gate, *placed: Placed) -> str:
    job = gate.submit(
        "acme",
        groups=[
            {"name": "head", "replicas": 1, "command": ["./head"]},
            {"name": "work", "replicas": 4, "command": ["./work"]},
        ],
    )
    gate.store.take_epoch("me")
    cycle = gate.store.cycle()
    assert gate.commit(cycle, Act(admits=(replace(an_admit(cycle, job), placed=placed),))).admitted == (job,)
    return gate.attempt(job)


def test_ranks_run_over_all_parts_and_each_backend_gets_its_own(gate: Gate) -> None:
    two_backends(gate)
    attempt = admitted(
        gate,
        Placed("head", POOL, FLAVOR, 1, MEMBER, (("n1", 1),)),
        Placed("work", POOL, FLAVOR, 3, MEMBER, (("n1", 2), ("n2", 1))),
        Placed("work", "shared", FLAVOR, 1, MEMBER),
    )
    here, there = (gate.store.launch_request(attempt, name) for name in ("b", "a"))
    assert [(g.name, g.first_rank, g.replicas, g.nodes) for g in here.groups] == [
        ("head", 0, 1, ("n1",)),
        ("work", 1, 3, ("n1", "n1", "n2")),
    ]
    # The second part of a group has a name of its own, so that (key, group, member) stays unique everywhere.
    assert [(g.name, g.first_rank, g.command) for g in there.groups] == [("work-2", 4, ("./work",))]
    assert here.num_nodes == there.num_nodes == 5
    assert here.token != there.token
    assert here.key == there.key == attempt


def test_the_shared_pool_is_started_first_and_each_part_is_recorded(gate: Gate) -> None:
    two_backends(gate)
    attempt = admitted(
        gate,
        Placed("head", POOL, FLAVOR, 1, MEMBER),
        Placed("work", "shared", FLAVOR, 4, MEMBER),
    )
    gate.store.mark(attempt, AttemptState.PENDING)
    for backend in ("a", "b"):
        gate.store.prepared(attempt, backend, f"native-{backend}")
    gate.store.started(attempt, "a")
    gate.store.dark("b", "timed out")
    view = gate.store.load_attempt(attempt)
    assert view is not None
    assert (view.backends, view.prepared, view.started, view.dark) == (["a", "b"], ["a", "b"], ["a"], ["b"])
    assert view.pools == {"a": ["shared"], "b": [POOL]}
    assert view.replicas_total == 5
    for backend in ("a", "b", ""):
        assert [one.attempt_id for one in gate.store.live_attempts(backend)] == [attempt]
    assert gate.store.live_attempts("c") == ()
