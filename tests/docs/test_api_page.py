"""docs/API.md names every word that a problem's type may end in, and no other."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# First arguments of the makers of problems, and first members of what admission yields.
MADE = re.compile(
    r"""(?:ProblemError\(\s*\d{3},|conflict\(|slug(?::\s*str)?\s*=|yield\s*\(|slug\s*=.*\belse)\s*"([a-z]+(?:-[a-z]+)*)",?"""
)
YIELDED = re.compile(r"""(?:yield|return)\s+\(?"([a-z]+(?:-[a-z]+)*)",""")


def words_in_code() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "gateway" / "api").rglob("*.py"):
        text = path.read_text()
        found |= set(MADE.findall(text)) | set(YIELDED.findall(text))
    return found


def words_on_the_page() -> set[str]:
    return set(re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "docs" / "API.md").read_text(), re.MULTILINE))


def test_every_problem_is_on_the_page() -> None:
    assert len(words_in_code()) > 20
    assert words_in_code() == words_on_the_page()
