"""Server-sent events: framing comes from FastAPI; here are the keep-alives, resumption and what a terminal may see."""

import re
import time
from collections.abc import Mapping
from typing import Final

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from gateway.api.problems import ProblemError

PING: Final = KEEPALIVE_COMMENT
PING_EVERY_S: Final = 15.0
HEADERS: Final[Mapping[str, str]] = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
# CSI, OSC and the other escape sequences (ECMA-48), then every control character but newline and tab.
_ESCAPES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]"
)
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def message(data: str, *, event: str, event_id: object) -> bytes:
    """One event on the wire."""
    return format_sse_event(data_str=data, event=event, id=str(event_id))


def resume_from(last_event_id: str | None, start: int) -> int:
    """Where a client that reconnects goes on."""
    if not last_event_id:
        return start
    if not last_event_id.isascii() or not last_event_id.isdigit() or len(last_event_id) > 18:  # noqa: PLR2004 (int64)
        raise ProblemError(
            400,
            "bad-event-id",
            "this is no id of our events",
            field="Last-Event-ID",
            remedy="send the id of the last event received, or nothing",
        )
    return max(int(last_event_id), start)


def shown(text: str) -> str:
    """Text of a job as it may reach a terminal or a page: no control sequences, no direction overrides."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


class Quiet:
    """Counts the silence of a stream, so that proxies do not cut it."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def reset(self) -> None:
        """Something was sent."""
        self._since = time.monotonic()

    def over(self) -> bool:
        """Whether a keep-alive is due; starts the next interval if so."""
        if time.monotonic() - self._since < PING_EVERY_S:
            return False
        self.reset()
        return True
