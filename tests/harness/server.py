"""The app behind a real HTTP server on a loopback port, in a thread of the test."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from tests.harness.waiting import eventually


@contextlib.contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """Its base URL; stopped with its threads at the end."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    config = uvicorn.Config(app, log_level="critical", ws="none", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="test-api")
    thread.start()
    try:
        eventually(lambda: server.started, what="the API to start")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        listener.close()
    assert not thread.is_alive(), "the API did not stop"
