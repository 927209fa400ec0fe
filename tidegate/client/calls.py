"""A call as a value: what to send and how to read the answer. Shared by both clients, which only carry it.

Decides which calls may be made twice; sends nothing itself.
"""

import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, get_args
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from tidegate.client.errors import ProtocolError, UsageError

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)
Params = Mapping[str, str | int | bool | list[str] | None]
JSON: Final = "application/json"
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request. `repeatable`: the same again has the same effect (by its verb, or by its key)."""

    method: str
    path: str
    read: Callable[[bytes, Mapping[str, str]], T] = field(repr=False)
    params: Params = field(default_factory=dict)
    body: bytes | Path | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True


@dataclass(frozen=True, slots=True)
class Slice(Generic[T]):
    """A page: its items, and the cursor of the next one."""

    items: tuple[T, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A list in pages. Walk it with `page(None)`, then with each page's `next` until that is None."""

    path: str
    item: type[T]
    params: Params = field(default_factory=dict)

    def page(self, cursor: str | None) -> Call[Slice[T]]:
        """The call for one page."""
        return Call("GET", self.path, self._read, {**self.params, "cursor": cursor})

    def _read(self, body: bytes, _headers: Mapping[str, str]) -> Slice[T]:
        envelope = read_json(body)
        if not isinstance(envelope, dict) or not isinstance(envelope.get("items"), list):
            raise ProtocolError(f"{self.path} answered no page; is the URL that of a Tidegate?")
        adapter = TypeAdapter(self.item)
        try:
            items = tuple(adapter.validate_python(_known(self.item, item)) for item in envelope["items"])
        except ValidationError as error:
            raise _strange(self.path, error) from error
        return Slice(items, envelope.get("next"))


def query_of(params: Params) -> httpx.QueryParams:
    """The parameters that are set, as text."""
    return httpx.QueryParams(
        [
            (name, str(one).lower() if isinstance(one, bool) else str(one))
            for name, value in params.items()
            for one in (value if isinstance(value, list) else [value])
            if one is not None
        ]
    )


def segment(name: str) -> str:
    """A name as one segment of a path."""
    if not name or name in {".", ".."}:
        raise UsageError("a name is missing; give the id or name of what is meant")
    return quote(name, safe="")


def tenant_path(path: str) -> str:
    """A tenant's path, whose slashes stay."""
    return "/".join(segment(part) for part in path.split("/"))


def model(kind: type[ModelT]) -> Callable[[bytes, Mapping[str, str]], ModelT]:
    """A reader for answers of this type. Fields that only a newer server knows are passed over."""

    def read(body: bytes, _headers: Mapping[str, str]) -> ModelT:
        try:
            return kind.model_validate(_known(kind, read_json(body)))
        except ValidationError as error:
            raise _strange(kind.__name__, error) from error

    return read


def nothing(_body: bytes, _headers: Mapping[str, str]) -> None:
    """A reader for answers whose body does not matter."""


def read_json(body: bytes) -> Any:
    """The document in a body. ProtocolError when it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("the answer is no JSON; is the URL that of a Tidegate?") from error


def _known(kind: Any, value: Any) -> Any:
    """The value without fields that its type does not have, at every depth: a newer server may say more."""
    if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = kind.model_fields
        return {name: _known(fields[name].annotation, inner) for name, inner in value.items() if name in fields}
    for inner_kind in get_args(kind):
        if isinstance(value, list):
            return [_known(inner_kind, item) for item in value]
        if isinstance(value, dict) and isinstance(inner_kind, type) and issubclass(inner_kind, BaseModel):
            return _known(inner_kind, value)
    return value


def _strange(what: str, error: ValidationError) -> ProtocolError:
    where = ".".join(str(part) for part in error.errors(include_input=False, include_url=False)[0]["loc"])
    return ProtocolError(f"{what}: the answer has an unexpected {where or 'shape'}; upgrade this client")


def get(path: str, kind: type[ModelT], params: Params | None = None) -> Call[ModelT]:
    """Read one thing."""
    return Call("GET", path, model(kind), params or {})


def send(
    method: str,
    path: str,
    read: Callable[[bytes, Mapping[str, str]], T],
    body: BaseModel | None = None,
    *,
    key: str | None = None,
    params: Params | None = None,
    headers: Mapping[str, str] | None = None,
    repeatable: bool = True,
    sparse: bool = False,
) -> Call[T]:
    """Write one thing. With a POST goes an Idempotency-Key that stays the same over all tries.

    `sparse`: fields that were not given are not sent, so that their defaults are the server's to choose.
    """
    sent = dict(headers or {})
    if method == "POST":
        sent["Idempotency-Key"] = _checked_key(key) if key is not None else new_key()
    packed = None
    if body is not None:
        packed = body.model_dump_json(exclude_unset=sparse).encode()
        sent["Content-Type"] = JSON
    return Call(method, path, read, params or {}, packed, sent, repeatable)


def _checked_key(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise UsageError("key: 1 to 255 printable ASCII letters without spaces")
    return key


def given(kind: type[ModelT], **fields: Any) -> ModelT:
    """A request body of what the caller gave; None is left out. UsageError names the argument that is wrong."""
    try:
        return kind(**{name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        words = str(first["msg"]).removeprefix("Value error, ")
        raise UsageError(f"{where}: {words}") from error


def with_tag(call: Call[T], etag: str | None) -> Call[T]:
    """The same call, done only while the thing is as the tag says."""
    return call if etag is None else replace(call, headers={**call.headers, "If-Match": etag})


def new_key() -> str:
    """A key that nobody has used."""
    return uuid.uuid4().hex
