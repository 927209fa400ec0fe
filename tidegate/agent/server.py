"""The control API over a Unix socket: requests to calls of `Members`, errors to answers, by two tables.

Whoever can open the socket (mode 0600) may do everything; nobody else can.
"""

from __future__ import annotations

import json
import logging
import os
import socketserver
import sys
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from tidegate.agent import spec
from tidegate.agent.members import Conflict, Members, Revoked

log = logging.getLogger("tidegate.agent")

MAX_BODY_BYTES = 16 << 20
API = 1
Answer = Tuple[int, Dict[str, Any]]


class _UnknownCallError(Exception):
    """No such call."""


class ControlServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Serves until `shutdown`. The socket is made with mode 0600 from the first moment."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, path: Path, members: Members) -> None:
        self.members = members
        self.started_at = time.time()
        path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            super().__init__(str(path), _Handler)
        finally:
            os.umask(before)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's signature
        """A caller that hangs up is nobody's error."""
        log.debug("a request ended early: %s", sys.exc_info()[1])


class _Handler(BaseHTTPRequestHandler):
    server: ControlServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        log.debug(format, *args)

    def address_string(self) -> str:
        return "local"

    def _answer(self, method: str) -> None:
        try:
            body = self._body()
            url = urllib.parse.urlsplit(self.path)
            call = _CALLS.get((method, url.path))
            if call is None:
                raise _UnknownCallError(f"no call {method} {url.path}; see the agent's README")  # noqa: TRY301
            status, document = call(self.server, dict(urllib.parse.parse_qsl(url.query)), body)
        except Exception as error:  # noqa: BLE001 - one bad request never stops the agent
            status, document = _error(error)
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> Any:
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BODY_BYTES:
            self.close_connection = True
            raise spec.SpecError("body", f"is longer than {MAX_BODY_BYTES} bytes")
        data = self.rfile.read(length) if length else b""
        if not data:
            return {}
        try:
            return json.loads(data)
        except ValueError:
            raise spec.SpecError("body", "is no JSON") from None


def _error(error: Exception) -> Answer:
    for kind, status, code in (
        (spec.SpecError, 400, "invalid"),
        (_UnknownCallError, 404, "unknown"),
        (Conflict, 409, "conflict"),
        (Revoked, 409, "revoked"),
    ):
        if isinstance(error, kind):
            return status, {"error": {"code": code, "field": getattr(error, "field", ""), "message": str(error)}}
    log.error("a call failed", exc_info=error)
    return 500, {"error": {"code": "failed", "field": "", "message": f"{type(error).__name__}: {error}"}}


def _start(server: ControlServer, _query: Dict[str, str], body: Any) -> Answer:
    status, created = server.members.start(body)
    return (201 if created else 200), status


def _list(server: ControlServer, query: Dict[str, str], _body: Any) -> Answer:
    members = server.members
    return 200, {
        "instance": members.instance,
        "as_of": time.time(),
        "revocation": members.revocation._asdict() if members.revocation else None,
        "members": members.list(query.get("launch")),
    }


def _notice(server: ControlServer, _query: Dict[str, str], body: Any) -> Answer:
    document = _object(body)
    grace_s = None if document.get("grace_s") is None else spec.seconds(document, "grace_s", 0.0)
    told = server.members.notice(
        spec.launch_name(document.get("launch")), spec.kind_name(document.get("kind")), grace_s, _ranks(document)
    )
    return 200, {"told": told}


def _stop(server: ControlServer, _query: Dict[str, str], body: Any) -> Answer:
    document = _object(body)
    if document.get("grace_s") is None:
        raise spec.SpecError("grace_s", "is required; 0 kills at once")
    stopping, ended = server.members.stop(
        spec.launch_name(document.get("launch")),
        spec.kind_name(document.get("kind", "stop")),
        spec.seconds(document, "grace_s", 0.0),
        None if document.get("term_s") is None else spec.seconds(document, "term_s", 0.0),
        _ranks(document),
    )
    return 200, {"stopping": stopping, "ended": ended}


def _remove(server: ControlServer, query: Dict[str, str], _body: Any) -> Answer:
    ranks = query.get("ranks")
    if ranks is not None and not all(rank.isdigit() for rank in ranks.split(",")):
        raise spec.SpecError("ranks", "must be ranks with commas between")
    chosen = None if ranks is None else [int(rank) for rank in ranks.split(",")]
    return 200, {"removed": server.members.remove(spec.launch_name(query.get("launch")), chosen)}


def _health(server: ControlServer, _query: Dict[str, str], _body: Any) -> Answer:
    members = server.members
    states = [status["state"] for status in members.list()]
    return 200, {
        "instance": members.instance,
        "pid": os.getpid(),
        "started_at": server.started_at,
        "members": len(states),
        "live": sum(state != "ended" for state in states),
        "revocation": members.revocation._asdict() if members.revocation else None,
        "api": API,
    }


_CALLS: Dict[Tuple[str, str], Callable[[ControlServer, Dict[str, str], Any], Answer]] = {
    ("POST", "/members"): _start,
    ("GET", "/members"): _list,
    ("DELETE", "/members"): _remove,
    ("POST", "/notice"): _notice,
    ("POST", "/stop"): _stop,
    ("GET", "/health"): _health,
}


def _object(body: Any) -> Dict[str, Any]:
    if not isinstance(body, dict):
        raise spec.SpecError("body", "must be an object")
    return body


def _ranks(document: Dict[str, Any]) -> Optional[List[int]]:
    ranks = document.get("ranks")
    if ranks is None:
        return None
    if not isinstance(ranks, list) or any(isinstance(rank, bool) or not isinstance(rank, int) for rank in ranks):
        raise spec.SpecError("ranks", "must be a list of ranks")
    return ranks
