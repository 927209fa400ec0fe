"""What a row of a benchmark is, and the literal table of those there are."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure. `ratio` is ours ÷ the peer's (or ÷ the target, where no peer can run beside us)."""

    name: str
    figure: str
    peer_figure: str
    ratio: float
    target: str
    ok: bool

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "short"
        return f"{self.name} {self.figure} {self.peer_figure or '-'} {self.ratio:.3f} {self.target} {verdict}"


ROWS: Final = {
    "cycle": "bench.cycle",
}
"""Row name → module with `run() -> list[Row]`. A row joins the table when there is something to measure."""


def load(name: str) -> Callable[[], list[Row]]:
    """The row's function; KeyError for a name that has none."""
    run: Callable[[], list[Row]] = importlib.import_module(ROWS[name]).run
    return run
