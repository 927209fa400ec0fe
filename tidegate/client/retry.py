"""When a call is made again, and after how long. Pure: clock and randomness are arguments."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

RETRIED: Final = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Retry:
    """Bounds of the back-off: full jitter between nothing and `first_s` doubled each time, at most `longest_s`.

    A `Retry-After` of the server is kept to; one beyond `patience_s` ends the tries, for the caller to decide.
    """

    tries: int = 6
    first_s: float = 0.2
    longest_s: float = 10.0
    patience_s: float = 60.0

    def pause_s(self, failures: int, retry_after_s: float | None, draw: Callable[[], float]) -> float | None:
        """Seconds to wait after so many failures in a row; None: no more. `draw` gives 0 up to 1."""
        if failures >= self.tries:
            return None
        backoff = draw() * min(self.longest_s, self.first_s * float(2**failures))
        if retry_after_s is None:
            return backoff
        if retry_after_s > self.patience_s:
            return None
        # The jitter comes on top, or all who were turned away return in the same instant.
        return retry_after_s + backoff


def retry_after_s(header: str | None, now: datetime) -> float | None:
    """Seconds in a Retry-After header, which is a number or an HTTP date; None when absent or no such thing."""
    if header is None:
        return None
    if header.isascii() and header.isdigit():
        return float(header[:9])
    try:
        until = parsedate_to_datetime(header)
    except ValueError:
        return None
    return max(0.0, ((until if until.tzinfo else until.replace(tzinfo=UTC)) - now).total_seconds())
