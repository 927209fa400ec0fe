"""A database that is away for a while ends no standing loop: the live mapping of backends raises, and they go on."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest

from backends.port import Backend
from workflows import worker
from workflows.activities.reconciler import ReconcilerActivity
from workflows.worker import keep_duties


class Unreadable(Mapping[str, Backend]):
    """Raises at each of the first `failures` looks, then names no backend."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def __getitem__(self, name: str) -> Backend:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        self.failures -= 1
        if self.failures >= 0:
            raise ConnectionError("the database is away")
        return iter(())

    def __len__(self) -> int:
        return 0


class Starts:
    """A Temporal client that only counts."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    async def start_workflow(self, *_: Any, id: str, **__: Any) -> None:  # noqa: A002  (the client's own word)
        self.ids.append(id)


def test_the_duties_are_kept_while_the_backends_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the worker, and with it every step that ran there, for each restart of PostgreSQL."""
    monkeypatch.setattr(worker, "LOOK_EVERY_S", 0.01)
    client, backends = Starts(), Unreadable(2)

    async def scene() -> None:
        keeping = asyncio.create_task(keep_duties(cast("Any", client), backends))
        while backends.failures >= 0:
            await asyncio.sleep(0.01)
            assert not keeping.done(), keeping
        keeping.cancel()

    asyncio.run(asyncio.wait_for(scene(), 10))
    assert client.ids.count("duty-arbiter") >= 2


def test_a_pass_of_the_reconciler_goes_on_to_the_workflows_when_the_backends_cannot_be_read() -> None:
    looked: list[int] = []

    class Rows:
        def without_workflow(self, older_than_s: int) -> list[str]:
            looked.append(older_than_s)
            return []

    reconciler = ReconcilerActivity(cast("Any", Rows()), Unreadable(1), cast("Any", None))
    asyncio.run(reconciler.once())
    assert looked, "the pass was cut short"
