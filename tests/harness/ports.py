"""Ports that nobody uses at the moment of asking."""

import socket


def free_port() -> int:
    """A loopback port; the one behind it is free too (jobs take MASTER_PORT + 1 for agreements)."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port
