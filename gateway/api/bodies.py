"""What may come in at all: bodies of bounded size and depth, strict JSON, no NUL, no unknown query parameter.

Refuses before any model sees it.
"""

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api import parameters
from gateway.api.problems import ProblemError
from tidegate.wire.problem import FieldProblem
from tidegate.wire.spec import NOT_TEXT

MAX_DEPTH: Final = 64
_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_EXACT_FLOAT: Final = 2**53
_NUL_OR_SURROGATE: Final = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")


def _bad(detail: str, remedy: str, field: str = "") -> ProblemError:
    errors = [FieldProblem(field=field[:500], detail=detail, remedy=remedy)] if field else []
    return ProblemError(400, "malformed-json", detail, field=field[:500], remedy=remedy, errors=errors)


def _constant(text: str) -> Any:
    raise _bad(f"{text} is not JSON", "give a finite number or null")


def _number(text: str) -> float | int:
    # JSON has one kind of number: 1.0 is 1, so that both spell the same wish (CASES RS-01e).
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _bad(f"the number {text[:40]} is too large", "give a smaller number")
    return int(value) if value.is_integer() and abs(value) < _EXACT_FLOAT else value


def _integer(text: str) -> int:
    if len(text) > 40:  # noqa: PLR2004  (no field holds more; longer texts cost quadratic time to read)
        raise _bad("an integer has more than 40 digits", "give a smaller number")
    return int(text)


def _too_deep(body: bytes) -> bool:
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for byte in _STRINGS.sub(b"", body).translate(None, _NOT_BRACKETS):
        depth += 1 if byte in b"[{" else -1
        if depth > MAX_DEPTH:
            return True
    return False


def _shown(text: str) -> str:
    """A key as it may stand in an answer: what no text can hold is written as its escape."""
    return text.encode("ascii", "backslashreplace").decode().replace("\x00", "\\x00")[:100]


def _check_text(value: Any, path: str = "") -> None:
    """Refuse NUL and lone surrogates, which no text column can hold; called only where an escape hints at one."""
    if isinstance(value, str):
        if NOT_TEXT.search(value):
            raise _bad(
                f"{path or 'the body'} contains NUL or half of a surrogate pair", "take that character away", path
            )
    elif isinstance(value, dict):
        for key, inner in value.items():
            at = f"{path}.{_shown(key)}" if path else _shown(key)
            _check_text(key, at)
            _check_text(inner, at)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _check_text(inner, f"{path}.{index}" if path else str(index))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Readers differ in which of two equal keys they take, so neither is what the user surely meant.
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for at, key in enumerate(names) if key in names[:at])
        raise _bad(f"the key {_shown(twice)!r} is there twice in one object", "give it once", _shown(twice))
    return found


_DECODER: Final = json.JSONDecoder(
    parse_constant=_constant, parse_float=_number, parse_int=_integer, object_pairs_hook=_unique
)


def strict_json(body: bytes) -> Any:
    """Parse a request body. ProblemError 400 for all that RFC 8259 or our limits do not allow."""
    if _too_deep(body):
        raise _bad(f"the document is nested deeper than {MAX_DEPTH}", "flatten it")
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise _bad("the body is not UTF-8", "encode it as UTF-8") from error
    if text.startswith("\ufeff"):
        raise _bad("the body begins with a byte order mark", "send UTF-8 without one")
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise _bad(f"{error.msg} at line {error.lineno} column {error.colno}", "send one JSON document") from error
    if _NUL_OR_SURROGATE.search(text):
        _check_text(value)
    return value


class StrictRequest(Request):
    """A request whose JSON is read by `strict_json`."""

    async def json(self) -> Any:
        """See strict_json."""
        return strict_json(await self.body())


class StrictRoute(APIRoute):
    """A route whose JSON bodies are read by `strict_json` and which refuses query parameters it does not declare."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, given a request that parses strictly."""
        inner = super().get_route_handler()
        known = parameters.declared(self.dependant)

        async def handler(request: Request) -> Response:
            parameters.check(request.query_params, known)
            strict = StrictRequest(request.scope, request.receive)
            try:
                answer = await self.shortcut(strict)
                return await inner(strict) if answer is None else answer
            except ProblemError:
                raise
            except Exception as error:
                # FastAPI wraps whatever the parser raised in an HTTPException 400.
                if isinstance(error.__cause__, ProblemError):
                    raise error.__cause__ from None
                raise

        return handler

    async def shortcut(self, request: StrictRequest) -> Response | None:  # noqa: ARG002  (for routes that have one)
        """The answer, where a route can give it without FastAPI's own reading of the request; None: the long way."""
        return None


class Limits:
    """ASGI: a body over the limit is 413 before anything parses it; NUL in a path or query is 400."""

    def __init__(self, app: ASGIApp, body_max_bytes: int, archive_max_bytes: int) -> None:
        self._app = app
        self._body_max_bytes = body_max_bytes
        self._archive_max_bytes = archive_max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        if "\x00" in path or b"%00" in scope["query_string"]:
            problem = ProblemError(400, "malformed-url", "the URL contains a NUL byte", remedy="take it away")
            await problem.response()(scope, receive, send)
            return
        limit = self._archive_max_bytes if path.startswith("/v1/workdirs/") else self._body_max_bytes
        too_large = ProblemError(
            413, "body-too-large", f"the body is larger than {limit} bytes", remedy="send less, or in several requests"
        )
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18 or int(length) > limit:  # noqa: PLR2004  (int64)
            await too_large.response(path)(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise too_large  # inside the app, which answers with it
            return message

        await self._app(scope, counted, send)
