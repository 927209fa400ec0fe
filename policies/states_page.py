"""The page docs/STATES.md as text, from the tables themselves. Pure: a test compares it with the file.

`python -c "from policies.states_page import page; print(page(), end='')" > docs/STATES.md` writes it anew.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypeVar

from policies.reasons import CAUSES, VERDICTS
from policies.states import ATTEMPT_EDGES, JOB_EDGES, LEASE_EDGES

_S = TypeVar("_S", bound=StrEnum)


_INTRO = """\
Rendered from `policies/states.py` and `policies/reasons.py`; a test keeps it current. Few states, many reasons: the
reason decides the end state, whether another attempt follows and who pays."""
_REASONS = """\
Attempt: the state in which the attempt ends. Job: its end when no further attempt follows. Retry: `final` none, `user`
counts against `retry.max`, `infrastructure` and `requeue` leave it untouched."""
_CAUSES = """\
The cause decides the reason, whatever the exit code. Where a stop answers a revocation, a drain or a lost member, a
reason that the backend itself named is kept."""
_HEAD = ("Reason", "Attempt", "Job", "Retry", "Pays", "May earn credit", "Node avoided", "In words")


def page() -> str:
    """The whole page, ending in one newline."""
    reasons = (
        (
            reason.value,
            row.attempt.value if row.attempt else "none",
            row.job.value,
            row.retry.value,
            row.payer.value,
            "yes" if row.credit else "no",
            "yes" if row.avoid_node else "no",
            row.words,
        )
        for reason, row in VERDICTS.items()
    )
    causes = ((cause.value, reason.value) for cause, reason in CAUSES.items())
    parts = ["# States and reasons", _INTRO]
    parts += ["## Job", _edges(JOB_EDGES), "## Attempt", _edges(ATTEMPT_EDGES), "## Lease", _edges(LEASE_EDGES)]
    parts += ["## Reasons", _REASONS, _table(_HEAD, reasons)]
    parts += ["## Causes of a stop that we asked for", _CAUSES, _table(("Cause", "Reason"), causes)]
    return "\n\n".join(parts) + "\n"


def _edges(edges: Mapping[_S, frozenset[_S]]) -> str:
    order = list(type(next(iter(edges))))  # the words' own order: that of a set is another in every process
    rows = ((state.value, ", ".join(to.value for to in order if to in edges[state]) or "(an end)") for state in order)
    return _table(("From", "To"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
