"""The embedded Temporal: one server per folder, adopted while it lives, gone when it is stopped."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
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
        assert third.address == first.address, "its clients still look for it there"
        assert third.pid != first.pid
        assert connects(third.address)
        assert (tmp_path / "temporal.sqlite").exists()
    finally:
        third.stop()
    third.stop()  # twice is fine
    eventually(lambda: not temporal._held(tmp_path), what="the lock is free again")
    with pytest.raises(ProcessLookupError):
        os.kill(third.pid, 0)


def test_a_server_that_dies_while_it_is_adopted_is_replaced_at_once(tmp_path: Path) -> None:
    """A killed server holds its folder until its last thread has gone; whoever came in between waited for a corpse."""
    code = "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True)"
    argv = [sys.executable, "-c", f"{code}; sys.stdin.read()", str(tmp_path / "server.lock")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as dying:
        assert dying.stdout is not None
        dying.stdout.readline()
        (tmp_path / "server.json").write_text(json.dumps({"pid": dying.pid, "address": "127.0.0.1:1"}))
        asked = threading.Event()

        def listens(address: str) -> bool:
            asked.set()
            return real(address)

        real, temporal._listens = temporal._listens, listens
        try:
            with ThreadPoolExecutor(1) as pool:
                starting = pool.submit(temporal.start, tmp_path, durable=False, timeout_s=600)
                assert asked.wait(20), "it tried to adopt the server that holds the folder"
                dying.kill()
                server = starting.result(60)  # not after the 600 s that a living one would get
        finally:
            temporal._listens = real
    try:
        assert not server.adopted
        assert connects(server.address)
    finally:
        server.stop()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "temporal.sqlite").mkdir()
    with pytest.raises(temporal.TemporalError, match=r"ended with code|not ready"):
        temporal.start(tmp_path, timeout_s=5)
    assert not temporal._held(tmp_path)
