"""The last page: the timeline of attempts as bars, the credits, and the ledger's sums."""

import io
import re
from datetime import datetime
from pathlib import Path

from rich import box
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.table import Table
from sqlalchemy import Engine, text

from gateway.demo.desk import Desk
from gateway.ledger.check import check

BESIDES_BARS = 78  # what the other columns need
LEAST_BARS = 24
PICTURE_WIDTH = 124
_COLOURS = {"SUCCEEDED": "green", "PREEMPTED": "yellow", "REVOKED": "magenta"}


def timeline(desk: Desk, jobs: list[str], width: int) -> Table:
    """One row per attempt, all on one time axis; `width` is the page's, in characters."""
    bars = max(width - BESIDES_BARS, LEAST_BARS)
    rows = [(desk.names[job], attempt) for job in jobs for attempt in desk.attempts(job)]
    begin = min(attempt.created_at for _, attempt in rows)
    end = max(attempt.ended_at or attempt.created_at for _, attempt in rows)
    span = max((end - begin).total_seconds(), 1)

    def column(at: datetime) -> int:
        return round((at - begin).total_seconds() / span * bars)

    table = Table(title=f"Attempts over {span:.0f} s", title_justify="left", box=box.SIMPLE)
    for heading in ("job", "try", "pool", "end", "time →"):
        table.add_column(heading, no_wrap=True)
    for name, attempt in rows:
        start, stop = column(attempt.started_at or attempt.created_at), column(attempt.ended_at or end)
        colour = _COLOURS.get(attempt.state, "red")
        bar = " " * start + f"[{colour}]" + "━" * max(stop - start, 1) + "[/]"
        where = ", ".join(sorted({group.pool for group in attempt.placed}))
        table.add_row(name, str(attempt.number), where, f"[{colour}]{attempt.state}[/] {attempt.reason}", bar)
    return table


def show(console: Console, page: Table, picture: Path | None) -> None:
    """Print the page, and draw it as SVG where a picture is wanted."""
    console.print(page)
    if picture:
        drawing = Console(record=True, width=PICTURE_WIDTH, file=io.StringIO())
        drawing.print(page)
        # Without the web fonts that the template would fetch from elsewhere.
        local_fonts = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
        drawing.save_svg(str(picture), title="tidegate demo", code_format=local_fonts)


def ledger(console: Console, engine: Engine) -> bool:
    """Print the sum of all entries per unit and whatever `check` finds; true when all of it is as it must be."""
    statement = text(
        "SELECT a.unit, count(*), coalesce(sum(e.amount), 0)::bigint, coalesce(sum(abs(e.amount)), 0)::bigint"
        " FROM entries e JOIN accounts a ON a.id = e.account_id GROUP BY a.unit ORDER BY a.unit"
    )
    with engine.connect() as connection:
        sums = connection.execute(statement).all()
    table = Table(title="Ledger: every transaction has two sides", title_justify="left", box=box.SIMPLE)
    for heading in ("unit", "entries", "moved", "sum"):
        table.add_column(heading, justify="right" if heading != "unit" else "left")
    for unit, count, total, moved in sums:
        table.add_row(unit, str(count), f"{moved:,}", f"[green]{total}[/]" if total == 0 else f"[red]{total}[/]")
    console.print(table)
    violations = check(engine)
    for violation in violations:
        console.print(f"[red]{violation}[/]")
    console.print(f"tidegate check: {len(violations)} violations")
    return bool(sums) and not violations and all(total == 0 for _, _, total, _ in sums)
