"""The ledger under everything at once: any act in any order, killed between any two statements, said again, over time.

Bounded and the same each time here; TIDEGATE_LEDGER_EXAMPLES (and TIDEGATE_LEDGER_STEPS) make it random and as long as
anybody has patience for. TIDEGATE_LEDGER_PROGRESS names a file for the counts.
"""

import logging
import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.harness.postgres import Databases
from tests.unit.ledger.machine.base import words
from tests.unit.ledger.machine.quotas import TimedMachine

log = logging.getLogger(__name__)

EXAMPLES = int(os.environ.get("TIDEGATE_LEDGER_EXAMPLES", "10"))
STEPS = int(os.environ.get("TIDEGATE_LEDGER_STEPS", "30"))


@pytest.mark.timeout(120 + EXAMPLES * STEPS)
def test_the_ledger_says_what_the_model_says(database_server: Databases) -> None:
    totals: dict[str, int] = {}

    class Machine(TimedMachine):
        databases = database_server

    Machine.totals = totals
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize="TIDEGATE_LEDGER_EXAMPLES" not in os.environ,
            print_blob=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate,) if os.environ.get("TIDEGATE_LEDGER_RAW") else (Phase.generate, Phase.shrink),
        ),
    )
    log.info("%s", words(totals))
    assert totals["settled"]
    assert totals["crashes_killed"]
