"""A fake gate, and both clients behind one way of calling them."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.fakes.gate import FakeGate
from tidegate.client import AsyncClient, Client, Retry

TOKEN = "tg_a_very_secret_token"
QUICK = Retry(tries=5, first_s=0.001, longest_s=0.002)
Ask = Callable[..., Any]


@pytest.fixture
def gate() -> Iterator[FakeGate]:
    with FakeGate.running() as running:
        yield running


@pytest.fixture(params=["blocking", "asyncio"])
def ask(request: pytest.FixtureRequest, gate: FakeGate) -> Ask:
    """`ask("submit", spec)`: the method of either client; lists and streams come back as lists."""

    def blocking(method: str, *args: Any, **more: Any) -> Any:
        with Client(gate.url, TOKEN, retry=QUICK) as client:
            answer = getattr(client, method)(*args, **more)
            return list(answer) if hasattr(answer, "__next__") else answer

    async def awaited(method: str, *args: Any, **more: Any) -> Any:
        async with AsyncClient(gate.url, TOKEN, retry=QUICK) as client:
            answer = getattr(client, method)(*args, **more)
            return [item async for item in answer] if hasattr(answer, "__anext__") else await answer

    return blocking if request.param == "blocking" else lambda *args, **more: asyncio.run(awaited(*args, **more))
