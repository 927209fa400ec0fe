"""A gate in memory behind a real socket, for tests of the client: it keeps jobs by key, and it can be told to fail.

with FakeGate.running() as gate:
    gate.fail(Lost(after_effect=True))
    Client(gate.url, "token").submit(spec)
"""

import contextlib
import json
import socket
import struct
import threading
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass(frozen=True)
class Lost:
    """The connection is cut: before anything was done, or after the effect and before the answer."""

    after_effect: bool = True
    path: str = ""


@dataclass(frozen=True)
class Refuse:
    """A status instead of the effect."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    media_type: str = "application/problem+json"
    path: str = ""


@dataclass
class Seen:
    """A request that came in."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: Message
    body: bytes

    def header(self, name: str) -> str:
        return self.headers.get(name) or ""


@dataclass
class FakeJob:
    """A job; each look at it takes the next of `states`, the last one stays."""

    body: dict[str, Any]
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    states: deque[dict[str, Any]] = field(default_factory=lambda: deque([{"state": "QUEUED"}]))
    attempts: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    tasks: list[dict[str, Any]] = field(default_factory=list)
    logs: dict[tuple[int, int], str] = field(default_factory=dict)

    def view(self) -> dict[str, Any]:
        now = self.states.popleft() if len(self.states) > 1 else self.states[0]
        return {
            "id": self.id,
            "name": self.body["name"],
            "tenant": self.body.get("tenant") or "acme",
            "principal": "me",
            "kind": "batch",
            "priority": "P2",
            "submitted_at": NOW.isoformat(),
            "version": 1,
            "labels": self.body.get("labels", {}),
            "attempts": len(self.attempts),
            "spec": self.body,
            "invented_by_a_newer_server": True,
            **now,
        }


class FakeGate(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.jobs: dict[str, FakeJob] = {}
        self.keys: dict[str, str] = {}
        self.archives: dict[str, bytes] = {}
        self.seen: list[Seen] = []
        self.faults: deque[Lost | Refuse] = deque()
        self.script: deque[dict[str, Any]] = deque([{"state": "QUEUED"}])
        self.script_logs: dict[tuple[int, int], str] = {}
        self.script_attempts: list[dict[str, Any]] = []
        self.script_tasks: list[dict[str, Any]] = []
        self.cut_streams_after: deque[int] = deque()
        self.page_size = 3
        self.applied = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[Self]:
        gate = cls()
        thread = threading.Thread(target=gate.serve_forever, kwargs={"poll_interval": 0.01}, name="fake-gate")
        thread.start()
        try:
            yield gate
        finally:
            gate.shutdown()
            gate.server_close()
            thread.join(timeout=10)

    def fail(self, *faults: Lost | Refuse) -> None:
        self.faults.extend(faults)

    def requests_to(self, method: str, path: str) -> list[Seen]:
        return [seen for seen in self.seen if (seen.method, seen.path) == (method, path)]

    def add(self, name: str = "hello", **more: Any) -> FakeJob:
        job = FakeJob({"name": name, "run": "true"}, **more)
        self.jobs[job.id] = job
        return job

    def submit(self, body: dict[str, Any], key: str) -> dict[str, Any]:
        if key in self.keys:
            return {"id": self.keys[key], "state": "QUEUED", "replayed": True}
        job = FakeJob(body, states=deque(self.script), logs=self.script_logs, attempts=self.script_attempts)
        job.tasks = self.script_tasks
        self.jobs[job.id] = job
        self.keys[key] = job.id
        return {"id": job.id, "state": "QUEUED", "replayed": False}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Cut connections are what this is for."""


def problem(status: int, slug: str, detail: str, **more: Any) -> bytes:
    document = {"type": f"https://tidegate.dev/problems/{slug}", "title": slug, "status": status, "detail": detail}
    return json.dumps({**document, **more}).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeGate

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Quiet."""

    def _serve(self) -> None:
        url = urlsplit(self.path)
        body = self._body()
        seen = Seen(self.command, url.path, parse_qs(url.query), self.headers, body)
        gate = self.server
        gate.seen.append(seen)
        fault = gate.faults.popleft() if gate.faults and gate.faults[0].path in url.path else None
        if isinstance(fault, Refuse):
            self._answer(fault.status, fault.body, fault.media_type, fault.headers)
            return
        if isinstance(fault, Lost) and not fault.after_effect:
            self._cut()
            return
        if url.path.endswith(("/events", "/logs")) and "event-stream" in seen.header("Accept"):
            self._stream(seen)
            return
        status, answer = _route(gate, seen)
        if isinstance(fault, Lost):
            self._cut()
            return
        media = "application/problem+json" if status >= 400 else "application/json"
        self._answer(status, answer if isinstance(answer, bytes) else json.dumps(answer).encode(), media)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815  (names of http.server)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, status: int, body: bytes, media_type: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": media_type, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _cut(self) -> None:
        """A reset, not a regular end."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.wfile.close()
        self.connection.close()

    def _stream(self, seen: Seen) -> None:
        gate = self.server
        _, _, _, job_id, kind = seen.path.split("/")
        job = gate.jobs[job_id]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        cut = gate.cut_streams_after.popleft() if gate.cut_streams_after else -1
        start = int(seen.header("Last-Event-ID") or (seen.query.get("offset") or seen.query.get("after") or ["0"])[0])
        for number, (event_id, data) in enumerate(_pieces(job, kind, seen, start)):
            if number == cut:
                self._cut()
                return
            self.wfile.write(f"id: {event_id}\nevent: x\ndata: {json.dumps(data)}\n\n".encode())
            self.wfile.flush()
        if kind == "logs":
            self.wfile.write(b"event: end\ndata: {}\n\n")
        self.close_connection = True


def _pieces(job: FakeJob, kind: str, seen: Seen, start: int) -> Iterator[tuple[int, dict[str, Any]]]:
    if kind == "events":
        yield from ((event["id"], event) for event in job.events if event["id"] > start)
        return
    rank = int(seen.query.get("rank", ["0"])[0])
    attempt = int(seen.query.get("attempt", [str(max(1, len(job.attempts)))])[0])
    text = job.logs.get((attempt, rank), "").encode()
    while start < len(text):
        end = text.find(b"\n", start) + 1 or len(text)
        yield end, {"rank": rank, "text": text[start:end].decode(), "offset": end}
        start = end


def _route(gate: FakeGate, seen: Seen) -> tuple[int, Any]:  # noqa: PLR0911  (a table of routes)
    match seen.method, seen.path.split("/")[2:]:
        case "POST", ["jobs"]:
            if seen.query.get("dry_run") == ["true"]:
                return 200, {"decision": "Wait", "why": {"token": "WaitingForQuota"}}
            return 202, gate.submit(json.loads(seen.body), seen.header("Idempotency-Key"))
        case "POST", ["jobs:batch"]:
            key = seen.header("Idempotency-Key")
            bodies = json.loads(seen.body)["jobs"]
            return 202, {"jobs": [gate.submit(body, f"{key}/{n}") for n, body in enumerate(bodies)]}
        case "GET", ["jobs"]:
            start = int((seen.query.get("cursor") or ["0"])[0])
            views = [job.view() for job in list(gate.jobs.values())[start : start + gate.page_size]]
            more = start + gate.page_size < len(gate.jobs)
            return 200, {"items": views, "next": str(start + gate.page_size) if more else None}
        case "PUT", ["workdirs", sha256]:
            gate.archives[sha256] = seen.body
            return 201, {"sha256": sha256}
        case "GET", ["me"]:
            return 200, {"principal": "me", "tenant": "acme", "role": "submitter"}
        case "POST", ["tokens"]:
            return 201, _token(json.loads(seen.body))
        case "POST", ["apply"]:
            return 200, _applied(gate, dry_run=seen.query["dry_run"] == ["true"])
        case method, ["jobs", name, *rest]:
            job_id, _, verb = name.partition(":")
            if job_id not in gate.jobs:
                return 404, problem(404, "not-found", f"there is no job {job_id!r} that you may see")
            return _of_job(gate.jobs[job_id], method, verb, rest)
    return 404, problem(404, "not-found", "no such path")


def _of_job(job: FakeJob, method: str, verb: str, rest: list[str]) -> tuple[int, Any]:
    if verb == "cancel":
        job.states.extend([{"state": "STOPPING"}, {"state": "CANCELLED", "reason": "UserCancelled"}])
        return 202, job.view()
    if rest == ["attempts"]:
        return 200, {"items": job.attempts, "next": None}
    if rest == ["tasks"]:
        return 200, {"items": job.tasks, "next": None}
    if rest == ["events"]:
        return 200, {"items": job.events, "next": None}
    if rest == ["explain"]:
        return 200, {"job": job.id, "state": "QUEUED", "why": {"token": "WaitingForQuota", "remedy": "wait"}}
    return (200 if method in {"GET", "PATCH"} else 202), job.view()


def _token(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "id": "t1", "created_at": NOW.isoformat(), "secret": "tg_made_secret", "expires_at": None}


def _applied(gate: FakeGate, *, dry_run: bool) -> dict[str, Any]:
    changes = [] if gate.applied else [{"action": "create", "kind": "tenant", "name": "acme", "after": {}}]
    gate.applied = gate.applied or not dry_run
    return {"changes": changes, "applied": not dry_run}


def attempt(number: int, state: str = "SUCCEEDED", **more: Any) -> dict[str, Any]:
    """An attempt as the API shows it."""
    return {"id": f"tg-1-{number}", "number": number, "state": state, "created_at": NOW.isoformat(), **more}


def event(number: int, kind: str = "RUNNING") -> dict[str, Any]:
    """An event as the API shows it."""
    return {"id": number, "at": NOW.isoformat(), "job": "j", "kind": kind}
