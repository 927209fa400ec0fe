"""JSON lines over TCP between the members of one gang, after both sides have proved that they know the same key.

Decides nothing about their meaning. Used by the stop agreement and by the agents' heartbeats.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import secrets
import socket
import threading
from typing import Any, Dict, Optional, Tuple

MAX_LINE_BYTES = 1 << 16
HANDSHAKE_S = 5.0


class LinesError(OSError):
    """The other side is not who it should be, or does not speak lines."""


class Lines:
    """One connection. `send` may be called from several threads, `receive` from one."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._file = connection.makefile("rb")
        self._lock = threading.Lock()

    def send(self, message: Dict[str, Any]) -> None:
        """OSError when the connection is gone."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            self._socket.sendall(data)

    def receive(self) -> Optional[Dict[str, Any]]:
        """The next message; None at the end. LinesError for anything that is no message; OSError at a time-out."""
        line = self._file.readline(MAX_LINE_BYTES)
        if not line:
            return None
        try:
            message = json.loads(line)
        except ValueError as error:
            raise LinesError("not a line of JSON") from error
        if not isinstance(message, dict):
            raise LinesError("not a message")
        return message

    def settimeout(self, seconds: Optional[float]) -> None:
        """For every later receive and send."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        """Wakes a thread that receives; safe to repeat."""
        with contextlib.suppress(OSError):  # the other side may have closed it already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def connect(address: Tuple[str, int], key: bytes, timeout_s: float = HANDSHAKE_S) -> Lines:
    """Call, and prove ourselves both ways. OSError when that fails."""
    connection = socket.create_connection(address, timeout=timeout_s)
    lines = Lines(connection)
    try:
        hello = lines.receive() or {}
        theirs, ours = str(hello.get("nonce", "")), secrets.token_hex(16)
        lines.send({"nonce": ours, "mac": _mac(key, "caller", theirs, ours)})
        answer = lines.receive() or {}
        if not hmac.compare_digest(str(answer.get("mac", "")), _mac(key, "listener", theirs, ours)):
            raise LinesError(f"{address[0]}:{address[1]} belongs to another gang")
    except OSError:
        lines.close()
        raise
    lines.settimeout(None)
    return lines


def accept(connection: socket.socket, key: bytes) -> Lines:
    """The listening side of `connect`. OSError when the caller cannot prove itself within five seconds."""
    connection.settimeout(HANDSHAKE_S)
    lines = Lines(connection)
    try:
        ours = secrets.token_hex(16)
        lines.send({"nonce": ours})
        answer = lines.receive() or {}
        theirs = str(answer.get("nonce", ""))
        if not hmac.compare_digest(str(answer.get("mac", "")), _mac(key, "caller", ours, theirs)):
            raise LinesError("a caller of another gang")
        lines.send({"mac": _mac(key, "listener", ours, theirs)})
    except OSError:
        lines.close()
        raise
    lines.settimeout(None)
    return lines


def listen(address: Tuple[str, int]) -> socket.socket:
    """Bind the named address, or every one when the name is not of this host's own (a service address, NAT)."""
    try:
        return socket.create_server(address, backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        return socket.create_server(("", address[1]), backlog=1024)


def _mac(key: bytes, side: str, listener: str, caller: str) -> str:
    return hmac.new(key, f"{side}|{listener}|{caller}".encode(), hashlib.sha256).hexdigest()
