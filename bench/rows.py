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
    "submit": "bench.submit",
    "engine": "bench.engine",
    "cycle": "bench.cycle",
    "latency": "bench.latency",
    "memory": "bench.latency",
}
"""Row name → module with `run() -> list[Row]`; two names may share a run.

A row joins the table when there is something to measure.
"""


def load(module: str) -> Callable[[], list[Row]]:
    """The function of a module of the table."""
    run: Callable[[], list[Row]] = importlib.import_module(module).run
    return run
