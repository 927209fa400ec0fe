"""Watches the instance's metadata service for interruption notices, in the way of EC2's IMDSv2.

Acts here first (every member is told and stopped by the deadline); the backend sees it second, in the answer of
`GET /members`: a notice of 30 s leaves no time for a round trip. A service that does not answer is no notice.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import threading
import time
import urllib.error
import urllib.request
from typing import Any, Dict, Optional

from tidegate.agent.members import Members, Revocation

log = logging.getLogger("tidegate.agent")

TOKEN = "/latest/api/token"  # noqa: S105 - a path
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
TOKEN_TTL_S = 21600
REQUEST_S = 2.0
_UNAUTHORIZED = 401
_NOT_FOUND = 404


class MetadataWatcher:
    """Polls in a thread of its own."""

    def __init__(self, url: str, members: Members, *, poll_s: float = 1.0) -> None:
        self._url = url.rstrip("/")
        if not self._url.startswith("http://"):
            raise ValueError("--metadata must begin with http://")
        self._members = members
        self._poll_s = poll_s
        self._token = ""
        self._said: Dict[str, str] = {}
        self._closed = threading.Event()
        # The service is on the instance itself: no proxy of the environment may see the question.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def start(self) -> None:
        """Begin to poll."""
        threading.Thread(target=self._run, name="metadata", daemon=True).start()

    def close(self) -> None:
        """Stop polling."""
        self._closed.set()

    def look(self) -> None:
        """One look at both documents; acts on what is new."""
        action = self._get(ACTION)
        if action is not None and action != self._said.get(ACTION):
            self._said[ACTION] = action
            self._act("revoke", json.loads(action), "time", "action")
            return
        advice = self._get(REBALANCE) if ACTION not in self._said else None
        if advice is not None and advice != self._said.get(REBALANCE):
            self._said[REBALANCE] = advice
            self._act("rebalance", json.loads(advice), "noticeTime", "")

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self.look()
            except (OSError, ValueError, TypeError, AttributeError) as error:
                log.debug("metadata cannot be read: %s", error)
            self._closed.wait(self._poll_s)

    def _act(self, kind: str, document: Dict[str, Any], time_field: str, detail_field: str) -> None:
        deadline = _epoch(document.get(time_field)) if kind == "revoke" else None
        revocation = Revocation(kind, deadline, time.time(), str(document.get(detail_field, "")))
        self._members.revoke(revocation)
        log.warning("the provider says %s until %s", kind, document.get(time_field))

    def _get(self, path: str) -> Optional[str]:
        """The document; None when there is none. OSError when the service does not answer."""
        for _ in range(2):
            if not self._token:
                self._token = self._fetch(TOKEN, "PUT", {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)})
            try:
                return self._fetch(path, "GET", {"X-aws-ec2-metadata-token": self._token})
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == _NOT_FOUND:
                    return None
                if error.code != _UNAUTHORIZED:
                    raise
                self._token = ""
        return None

    def _fetch(self, path: str, method: str, headers: Dict[str, str]) -> str:
        request = urllib.request.Request(self._url + path, headers=headers, method=method)  # noqa: S310 - http only
        with self._opener.open(request, timeout=REQUEST_S) as answer:
            return str(answer.read(65536).decode())


def _epoch(text: Any) -> float:
    """Epoch seconds of `2026-01-02T03:04:05Z`; now, when the text cannot be read: a revocation that may be due."""
    try:
        return dt.datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        log.warning("the time of the notice cannot be read: %r", str(text)[:40])
        return time.time()
