"""The embedded Temporal: one server per folder, adopted while it lives, gone when it is stopped."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from temporalio.client import Client

from gateway.embedded import temporal
from tests.harness.waiting import eventually


def connects(address: str) -> bool:
    async def ask() -> bool:
        client = await Client.connect(address)
        return await client.service_client.check_health()

    return asyncio.run(ask())


def test_a_server_starts_is_adopted_and_survives_a_kill_with_its_file(tmp_path: Path) -> None:
    first = temporal.start(tmp_path)
    try:
        assert connects(first.address)
        second = temporal.start(tmp_path)
        assert second.adopted
        assert (second.address, second.pid) == (first.address, first.pid)
    finally:
        os.kill(first.pid, signal.SIGKILL)
        assert first._process is not None
        first._process.wait()
    third = temporal.start(tmp_path)
    try:
        assert not third.adopted
        assert third.pid != first.pid
        assert connects(third.address)
        assert (tmp_path / "temporal.sqlite").exists()
    finally:
        third.stop()
    third.stop()  # twice is fine
    eventually(lambda: not temporal._held(tmp_path), what="the lock is free again")
    with pytest.raises(ProcessLookupError):
        os.kill(third.pid, 0)


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "temporal.sqlite").mkdir()
    with pytest.raises(temporal.TemporalError, match=r"ended with code|not ready"):
        temporal.start(tmp_path, timeout_s=5)
    assert not temporal._held(tmp_path)
