"""Every part of the gate is killed -9 in turn while 30 jobs run: all end as they should, none twice at once, none lost.

`make soak KILLS=300` is the long form of the same.
"""

from pathlib import Path

import pytest

from soak.chaos import PARTS
from soak.run import Plan, report, soak

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(500)]


def test_kills_of_every_part_cost_no_job_and_double_none(tmp_path: Path) -> None:
    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    said: list[str] = []
    outcome = soak(Plan(seed=20, kills=2 * len(PARTS), jobs=30, in_flight=30), tmp_path / "gate", said.append)
    report(outcome, said.append)
    assert outcome.verdict.passed, "\n".join(said)
    assert outcome.kills == dict.fromkeys(PARTS, 2)
    assert outcome.shapes.total() == 30
