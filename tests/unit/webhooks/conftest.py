"""A receiver, and senders that may reach it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from gateway.webhooks.sending import Sender
from tests.harness.receiver import AUTHORITY, Receiver, receiving

KEY = b"the gate's key in tests"
MakeSender = Callable[..., Sender]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


async def loopback(host: str, port: int) -> Sequence[str]:
    """Every name is this machine."""
    return ["127.0.0.1"]


@pytest.fixture
def sender() -> MakeSender:
    """A sender that knows the tests' authority and may reach loopback, unless told otherwise."""

    def made(**changes: Any) -> Sender:
        return Sender(KEY, **{"allow": ("127.0.0.0/8",), "ca_file": AUTHORITY, "resolve": loopback, **changes})

    return made
