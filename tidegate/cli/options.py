"""Flags that many verbs share, and the client that they lead to."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from tidegate.cli.exits import USAGE, Quit
from tidegate.client import Client
from tidegate.wire.units import parse_duration

T = TypeVar("T")
JsonFlag = Annotated[bool, typer.Option("--json", help="JSON on standard output, and nothing else there.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]
JobFile = Annotated[Path, typer.Argument(metavar="FILE", help="Job file in YAML; - for standard input.")]
TenantFlag = Annotated[str | None, typer.Option("--tenant", help="A tenant's path, for example acme/research.")]
LimitFlag = Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="So many at most.")]
KeyFlag = Annotated[
    str | None, typer.Option("--key", help="Idempotency key: the same key makes one job, however often it is sent.")
]


class State:
    """What was said before the verb."""

    url: str | None = None


@contextmanager
def gate(context: typer.Context) -> Iterator[Client]:
    """The client for this call."""
    state = context.find_object(State)
    with Client(state.url if state else None) as client:
        yield client


def upto(items: Iterable[T], limit: int) -> list[T]:
    """The first items; pages beyond are not fetched."""
    return list(islice(items, limit))


def seconds(text: str, flag: str) -> int:
    """A duration on the command line. Quit 64 says how to write one."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise Quit(USAGE, f"{flag}: {error}") from error


def pairs(texts: list[str], flag: str) -> dict[str, str]:
    """`key=value` texts as a dict."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise Quit(USAGE, f"{flag}: write {flag} key=value")
        found[key] = value
    return found


def age(since: datetime) -> str:
    """How long ago, in one unit."""
    left = max(0, int((datetime.now(UTC) - since).total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if left >= 2 * size:
            return f"{left // size}{unit}"
    return f"{left}s"
