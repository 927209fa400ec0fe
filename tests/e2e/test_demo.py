"""`make demo` holds: the story of a revocation and two preemptions, told and checked on a stack of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]
ROOT = Path(__file__).parents[2]


def test_the_demo_comes_true_and_says_so(tmp_path: Path) -> None:
    picture = tmp_path / "timeline.svg"
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", "demo", "--picture", str(picture)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    for line in (
        "inside the notice, resumed on",
        "same final loss, broken or not",
        "all of it held",
        "tidegate check: 0 violations",
    ):
        assert line in done.stdout
    assert "SpotRevoked" in picture.read_text()
