"""Keyset cursors: signed, and bound to the list and filter they were made for (CASES RS-03)."""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, TypeVar

from fastapi import Query

from gateway.api.problems import ProblemError

_MAC_BYTES: Final = 16
T = TypeVar("T")
Limit = Annotated[int, Query(ge=1, le=1000, description="How many items at most.")]
Cursor = Annotated[str | None, Query(max_length=2048, description="`next` of the page before.")]


def _mac(key: bytes, filters: Mapping[str, Any], payload: bytes) -> bytes:
    bound = json.dumps(filters, sort_keys=True, default=str).encode()
    message = len(bound).to_bytes(8, "big") + bound + payload
    return hmac.new(key, message, hashlib.sha256).digest()[:_MAC_BYTES]


def make_cursor(key: bytes, filters: Mapping[str, Any], last: list[Any]) -> str:
    """A text that leads to what follows `last` (the sort key of a page's last row) under the same filters."""
    payload = json.dumps(last, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(_mac(key, filters, payload) + payload).rstrip(b"=").decode()


def read_cursor(key: bytes, filters: Mapping[str, Any], cursor: str | None) -> list[Any] | None:
    """The sort key inside; None for a first page. ProblemError 400 when changed or made for another list."""
    if cursor is None:
        return None
    wrong = ProblemError(
        400,
        "bad-cursor",
        "the cursor was changed, or made for another filter",
        field="cursor",
        remedy="start again without a cursor",
    )
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise wrong from error
    payload = raw[_MAC_BYTES:]
    canonical = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
    if canonical != cursor or not hmac.compare_digest(raw[:_MAC_BYTES], _mac(key, filters, payload)):
        raise wrong
    last: list[Any] = json.loads(payload)
    return last


def page_of(
    key: bytes,
    filters: Mapping[str, Any],
    items: Iterable[T],
    sort_key: Callable[[T], tuple[str, ...]],
    *,
    limit: int,
    cursor: str | None,
) -> tuple[tuple[T, ...], str | None]:
    """One page of a list that is read whole (configuration, balances), by a key that no two items share, and the next
    page's cursor. What comes or goes between two pages moves nothing else.
    """
    last = read_cursor(key, filters, cursor)
    keyed = sorted(((sort_key(item), item) for item in items), key=lambda pair: pair[0])
    rest = keyed if last is None else [pair for pair in keyed if pair[0] > tuple(last)]
    following = make_cursor(key, filters, list(rest[limit - 1][0])) if len(rest) > limit else None
    return tuple(item for _, item in rest[:limit]), following
