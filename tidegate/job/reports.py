"""Telling the gateway of progress and checkpoints, from a thread of its own: training never waits for it.

Progress: the latest wins. Checkpoints: a short queue that is tried again while the gateway is away, oldest dropped
first. An answer 4xx drops the report: asking again would not help.
"""

from __future__ import annotations

import collections
import json
import logging
import threading
import time
import urllib.error
import urllib.request
from typing import Any, Callable, Deque, Dict, Optional, Tuple

log = logging.getLogger("tidegate.job")

PROGRESS = "/v1/attempt/progress"
CHECKPOINTS = "/v1/attempt/checkpoints"
BROKEN = "/v1/attempt/checkpoints:broken"
REQUEST_S = 5.0
QUEUE = 64
FIRST_RETRY_S = 0.5
LAST_RETRY_S = 30.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token to wherever the answer says."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Reporter:
    """`token` is asked at each report, so that a renewed file is used."""

    def __init__(self, url: str, token: Callable[[], str], *, interval_s: float = 1.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError("TIDEGATE_URL must begin with http:// or https://")
        self._url = url
        self._token = token
        self._interval_s = interval_s
        self._opener = urllib.request.build_opener(_NoRedirects())
        self._changed = threading.Condition()
        self._progress: Optional[Dict[str, Any]] = None
        self._checkpoints: Deque[Tuple[str, Dict[str, Any]]] = collections.deque(maxlen=QUEUE)
        self._busy = False
        self._away = False
        self._closed = False
        self._thread: Optional[threading.Thread] = None

    def progress(self, step: int, samples: int) -> None:
        """The newest step. Never blocks."""
        with self._changed:
            self._progress = {"step": step, "samples": samples}
            self._begin()

    def checkpoint(self, document: Dict[str, Any]) -> None:
        """A checkpoint that is complete. Never blocks."""
        self._queue(CHECKPOINTS, document)

    def broken(self, document: Dict[str, Any]) -> None:
        """A checkpoint that somebody believed in and that is none. Never blocks."""
        self._queue(BROKEN, document)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is sent, the gateway turns out to be away, or the time is over; True if all was sent."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._progress is not None or self._checkpoints or self._busy:
                left = deadline - time.monotonic()
                if left <= 0 or self._away:
                    return False
                self._changed.wait(left)
            return True

    def close(self) -> None:
        """Drop what is left and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _queue(self, path: str, document: Dict[str, Any]) -> None:
        with self._changed:
            self._checkpoints.append((path, document))
            self._begin()

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tidegate-report", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        pause_s = FIRST_RETRY_S
        while True:
            with self._changed:
                while not self._closed and self._progress is None and not self._checkpoints:
                    self._changed.wait()
                if self._closed:
                    return
                progress, self._progress = self._progress, None
                waiting = self._checkpoints[0] if self._checkpoints else None
                self._busy = True
            sent = waiting is None or self._post(*waiting)
            if sent and progress is not None:
                sent = self._post(PROGRESS, progress)
            with self._changed:
                self._busy, self._away = False, not sent
                # The queue may have dropped ours at its far end meanwhile.
                if sent and self._checkpoints and self._checkpoints[0] is waiting:
                    self._checkpoints.popleft()
                self._changed.notify_all()
                pause_s = FIRST_RETRY_S if sent else min(2 * pause_s, LAST_RETRY_S)
                if not sent or not self._checkpoints:
                    self._changed.wait_for(lambda: self._closed, self._interval_s if sent else pause_s)

    def _post(self, path: str, document: Dict[str, Any]) -> bool:
        """False: the gateway is away, try again."""
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked in __init__
            self._url + path,
            data=json.dumps(document).encode(),
            headers={"Authorization": f"Bearer {self._token()}", "Content-Type": "application/json"},
            method="POST",
        )
        try:
            with self._opener.open(request, timeout=REQUEST_S):
                return True
        except urllib.error.HTTPError as error:
            error.close()
            level = logging.DEBUG if error.code in {409, 429} or error.code >= 500 else logging.WARNING  # noqa: PLR2004
            log.log(level, "report to %s answered %s", path, error.code)
            return error.code < 500 and error.code != 429  # noqa: PLR2004 - the names of HTTP are its numbers
        except (OSError, ValueError) as error:
            log.debug("report to %s not sent: %s", path, type(error).__name__)
            return False
