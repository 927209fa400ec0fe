"""A P1 needs the steady pool of the embedded stack, and the training that runs there goes on in the other one."""

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from gateway.demo import story
from gateway.ledger.check import check
from gateway.ledger.engine import make_engine
from tests.e2e.conftest import ROOT, Gate
from tests.harness.waiting import eventually
from tidegate.wire.job import Attempt
from tidegate.wire.spec import JobSpec

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
TRAIN = ROOT / "examples" / "train"


def spec(name: str, **changes: Any) -> JobSpec:
    """A job that takes every card of one pool for as long as it runs."""
    fields = {
        "name": name,
        "num_nodes": 2,
        "resources": {"accelerators": "V100:2", "cpus": 2, "memory": "512Mi"},
        "max_duration": "2h",  # what ends within ten minutes is spared
        "gang_timeout": "2m",
        "grace": "60s",
        **changes,
    }
    return JobSpec.model_validate(fields)


def training(gate: Gate, name: str) -> str:
    """It may run in either pool, the steady one first."""
    url = story.checkpoint_prefix(gate.stack.data_dir).as_uri()
    wish = spec(
        name,
        tenant="acme/research",
        kind="training",
        workdir=gate.operator.upload_workdir(TRAIN, tenant="acme/research"),
        run=f'exec "{sys.executable}" train.py',
        env={"STEPS": "300", "STEP_MS": "50", "SAVE_EVERY": "20"},
        placement={"pools": ["steady", "spot"], "ordered": True},
        checkpoint={"url": f"{url}/{name}", "interval": "30m"},
    )
    return gate.operator.submit(wish).id


def attempts(gate: Gate, job: str) -> list[Attempt]:
    return sorted(gate.operator.attempts(job), key=lambda attempt: attempt.number)


def log_of(gate: Gate, job: str, attempt: int) -> str:
    return "".join(piece.text for piece in gate.operator.logs(job, attempt=attempt))


def pools(attempt: Attempt) -> set[str]:
    return {part.pool for part in attempt.placed}


def soon(true: Callable[[], Any], what: str) -> Any:
    return eventually(true, timeout_s=120, every_s=0.5, what=what)


def test_a_training_that_is_in_the_way_goes_on_in_the_other_pool_from_its_last_step(gate: Gate) -> None:
    job = training(gate, "movable")
    soon(lambda: [one.state for one in attempts(gate, job)] == ["RUNNING"], "an attempt that runs")
    soon(lambda: "step 40" in log_of(gate, job, 1), "step 40 in the steady pool")
    assert pools(attempts(gate, job)[0]) == {"steady"}

    urgent = spec(
        "needs-steady",
        tenant="acme/product",
        priority="P1",
        run="echo serving; sleep 2",
        placement={"pools": ["steady"]},
    )
    waiter = gate.operator.submit(urgent).id
    soon(lambda: len(attempts(gate, job)) == 2, "a place elsewhere")
    done = gate.operator.wait(waiter, timeout_s=120)
    assert done.state == "SUCCEEDED"
    assert pools(attempts(gate, waiter)[0]) == {"steady"}

    done = gate.operator.wait(job, timeout_s=180)
    first, second = attempts(gate, job)
    assert (done.state, done.failures) == ("SUCCEEDED", 0)
    assert (first.state, first.reason, second.state) == ("PREEMPTED", "Moved", "SUCCEEDED")
    assert pools(second) == {"spot"}
    (left,) = re.findall(r"told to leave, saved after step (\d+)", log_of(gate, job, 1))
    assert f"resumed from step {left} of attempt 1" in log_of(gate, job, 2)
    kinds = [event.kind for event in gate.operator.events(job)]
    assert kinds.index("RESERVED", kinds.index("RUNNING")) < kinds.index("StopAsked"), "its place was there first"
    (credit,) = [one for one in gate.operator.credits() if one.victim_attempt == first.id]
    assert credit.gpu_ms == 4 * sum(credit.terms[term] for term in ("gap_ms", "save_ms", "restart_ms"))
    engine = make_engine(gate.stack.database_url)
    try:
        assert check(engine) == []
    finally:
        engine.dispose()
