"""A backend that cannot keep tenants apart serves one; a job of another waits with the remedy and disturbs nobody."""

import pytest

from tests.e2e.conftest import Gate
from tests.harness.waiting import eventually
from tidegate.wire.job import JobDetail
from tidegate.wire.operator import OPERATOR_DOC
from tidegate.wire.spec import JobSpec

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


def submit(gate: Gate, name: str, tenant: str) -> str:
    spec = {"name": name, "tenant": tenant, "run": "id -u", "resources": {"cpus": 1, "memory": "64Mi"}}
    return gate.operator.submit(JobSpec.model_validate(spec)).id


def test_a_strangers_job_is_refused_once_and_waits_with_the_remedy_while_the_pools_stay_open(gate: Gate) -> None:
    first = submit(gate, "resident", "acme/research")
    assert gate.operator.wait(first, timeout_s=60).state == "SUCCEEDED", "the backend serves acme by now"
    gate.operator.apply([OPERATOR_DOC.validate_python({"kind": "tenant", "path": "stranger"})])
    job_id = submit(gate, "stranger", "stranger")

    def waits() -> JobDetail:
        job = gate.operator.get(job_id)
        assert job.pending is not None, job
        assert job.pending.token == "Misconfigured", job.pending
        return job

    job = eventually(waits, timeout_s=30)
    assert (job.state, job.attempts, job.failures) == ("QUEUED", 1, 0)
    assert job.pending is not None
    assert "trust_below" in job.pending.remedy
    assert "acme" not in job.pending.remedy
    again = submit(gate, "resident-again", "acme/research")
    assert gate.operator.wait(again, timeout_s=20).state == "SUCCEEDED", "no pool rests for a refusal of a stranger"
    assert gate.operator.get(job_id).attempts == 1
    gate.operator.cancel(job_id)
