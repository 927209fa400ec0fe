"""How answers reach people and programs. With `--json` standard output carries JSON and nothing else."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegate.cli.text import one_line, plain
from tidegate.client.errors import ProblemError


def to_json(value: Any) -> Any:
    """Anything of ours as JSON values."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def print_json(value: Any) -> None:
    """One document on one line."""
    sys.stdout.write(json.dumps(to_json(value), ensure_ascii=False) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """A remark for people; standard error, so that pipes stay clean."""
    sys.stderr.write(plain(text) + "\n")
    sys.stderr.flush()


def show(text: str) -> None:
    """A line of the answer itself."""
    sys.stdout.write(plain(text) + "\n")


def print_log(text: str) -> None:
    """Output of a job: as it is into a pipe or file, made safe on a terminal."""
    sys.stdout.write(plain(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A table that is also easy to cut: on a pipe its columns are never squeezed."""
    found = [[cell(value) for value in row] for row in rows]
    if not found:
        say(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=not sys.stdout.isatty())
    for row in found:
        table.add_row(*(Text(text) for text in row))
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 10_000, highlight=False, markup=False)
    console.print(table)


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values, one a line; what is empty is left out."""
    shown = [(name, cell(value)) for name, value in pairs]
    shown = [(name, value) for name, value in shown if value != "-"]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        sys.stdout.write(f"{name.ljust(width)}  {value}\n")


def cell(value: object) -> str:
    """A value as people read it."""
    if value is None or (isinstance(value, str | dict) and not value):
        return "-"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return one_line(" ".join(f"{key}={inner}" for key, inner in value.items()))
    return one_line(str(value))


def gpu_hours(gpu_ms: int) -> str:
    """GPU milliseconds as hours with two places, cut."""
    hundredths = gpu_ms * 100 // 3_600_000
    return f"{hundredths // 100}.{hundredths % 100:02d}"


def dollars(micro: int) -> str:
    """Micro-dollars as dollars with two places, cut towards zero."""
    cents = abs(micro) // 10_000
    return f"{'-' if micro < 0 else ''}{cents // 100}.{cents % 100:02d}"


def print_error(error: Exception, *, as_json: bool) -> None:
    """An error on standard error; as a problem document with `--json`."""
    if as_json:
        sys.stderr.write(json.dumps(error_document(error), ensure_ascii=False) + "\n")
        return
    say(f"tidegate: {error}")
    if isinstance(error, ProblemError):
        for one in error.errors[1:]:
            remedy = f"; {one.remedy}" if one.remedy else ""
            say(f"  {one.field}: {one.detail}{remedy}")


def error_document(error: Exception) -> dict[str, Any]:
    """An error in the shape of a problem."""
    if isinstance(error, ProblemError):
        return {
            "type": error.type,
            "title": error.title,
            "status": error.status,
            "detail": error.detail,
            "field": error.field,
            "remedy": error.remedy,
            "errors": to_json(error.errors),
        }
    return {"type": "about:blank", "title": type(error).__name__, "detail": str(error)}
