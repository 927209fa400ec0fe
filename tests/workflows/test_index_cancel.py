"""A user cancels one index of an array while the whole engine runs: that index ends, the others run on to the end."""

from typing import Any
from uuid import UUID

import pytest

from gateway.ledger import wishes
from tests.unit.store.world import rows
from tests.workflows.whole import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


def test_one_index_that_runs_is_cancelled_and_the_array_succeeds_without_it(whole: Any) -> None:
    async def scene(on: Running) -> None:
        on.gate.tenant("acme", max_gpus=16)
        small = {"accelerators": "H100:1", "cpus": 1, "memory": "1Gi"}

        def running(job: str) -> dict[int, str]:
            found = rows(
                on.gate.engine,
                "SELECT first_index, id FROM attempts WHERE job_id = :job AND state = 'RUNNING'",
                job=UUID(job),
            )
            return {row.first_index: row.id for row in found}

        def task(job: str, index: int) -> str:
            query = "SELECT state FROM tasks WHERE job_id = :job AND index = :index"
            return str(rows(on.gate.engine, query, job=UUID(job), index=index)[0].state)

        async with on.worker():
            job = on.gate.submit("acme", resources=small, array={"indexes": 3, "parallelism": 2})
            await on.until(lambda: sorted(running(job)) == [0, 1], "two indexes at a time")
            attempts = running(job)
            on.gate.wish(wishes.cancel, job, index=1)
            await on.until(lambda: task(job, 1) == "CANCELLED", "the index cancelled")
            await on.until(lambda: sorted(running(job)) == [0, 2], "its room given to the next")
            for attempt in (attempts[0], running(job)[2]):
                on.cluster.finish(attempt)
            await on.job_is(job, "SUCCEEDED")
            row = on.gate.job(job)
            assert (row.array_ended, row.array_failed) == (3, 0)

    whole(scene)
