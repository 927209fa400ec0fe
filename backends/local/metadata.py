"""An instance's metadata endpoint, as EC2's IMDSv2 speaks: a token first, 404 until there is something to say."""

import json
import secrets
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import ClassVar

TOKEN_PATH = "/latest/api/token"  # noqa: S105 - a path, not a token
TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN_HEADER = "X-aws-ec2-metadata-token"  # noqa: S105 - a header's name
MAX_TTL_S = 21_600
MAX_TOKENS = 1000


@dataclass(slots=True)
class Facts:
    """What the endpoint tells; the instance changes it, the handlers read it."""

    instance: str
    zone: str
    life_cycle: str = "on-demand"
    action_at: float | None = None  # epoch seconds at which the instance is terminated
    rebalance_at: float | None = None
    tokens: dict[str, float] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def new_token(self, ttl_s: int) -> str:
        """A token that is good for `ttl_s` seconds. The oldest ones go when somebody asks without end."""
        token, now = secrets.token_urlsafe(32), time.monotonic()
        with self.lock:
            self.tokens = {name: until for name, until in self.tokens.items() if until > now}
            while len(self.tokens) >= MAX_TOKENS:
                del self.tokens[next(iter(self.tokens))]
            self.tokens[token] = now + ttl_s
        return token

    def knows(self, token: str) -> bool:
        """Whether the token was given and has not run out."""
        with self.lock:
            return self.tokens.get(token, 0) > time.monotonic()

    def answer(self, path: str) -> str | None:
        """The text at a path; None for 404."""
        if path == "/latest/meta-data/spot/instance-action":
            return _json(self.action_at, {"action": "terminate"}, "time")
        if path == "/latest/meta-data/spot/termination-time":
            return None if self.action_at is None else _instant(self.action_at)
        if path == "/latest/meta-data/events/recommendations/rebalance":
            return _json(self.rebalance_at, {}, "noticeTime")
        return {
            "/latest/meta-data/instance-id": self.instance,
            "/latest/meta-data/instance-life-cycle": self.life_cycle,
            "/latest/meta-data/placement/availability-zone": self.zone,
        }.get(path)


def serve(facts: Facts) -> ThreadingHTTPServer:
    """A bound server on loopback; the caller runs `serve_forever` in a thread."""
    handler = type("MetadataHandler", (_Handler,), {"facts": facts})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    return server


class _Handler(BaseHTTPRequestHandler):
    facts: ClassVar[Facts]
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_PUT(self) -> None:
        length = self.headers.get("Content-Length", "0")
        self.rfile.read(min(int(length), 4096) if length.isdigit() else 0)
        ttl = self.headers.get(TTL_HEADER, "")
        if self.path != TOKEN_PATH:
            self._reply(404, "")
        elif not ttl.isdigit() or not 1 <= int(ttl) <= MAX_TTL_S:
            self._reply(400, "")
        elif self.headers.get("X-Forwarded-For"):
            self._reply(403, "")  # As the real one: a proxy must not lend the token to strangers.
        else:
            self._reply(200, self.facts.new_token(int(ttl)), {TTL_HEADER: ttl})

    def do_GET(self) -> None:
        if not self.facts.knows(self.headers.get(TOKEN_HEADER, "")):
            self._reply(401, "")
            return
        text = self.facts.answer(self.path)
        self._reply(404 if text is None else 200, text or "")

    def log_message(self, *_: object) -> None:
        """Say nothing: a request line may hold what its sender should not have sent."""

    def _reply(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _instant(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _json(epoch_s: float | None, value: dict[str, str], name: str) -> str | None:
    return None if epoch_s is None else json.dumps({**value, name: _instant(epoch_s)})
