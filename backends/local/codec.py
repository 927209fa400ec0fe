"""A launch request as JSON and back, byte for byte. Secrets apart, so that they can lie in a file of their own.

Driven by the dataclasses' own fields and types: a field that is added to them travels too, or is refused aloud.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from backends.types import LaunchRequest, Secret

_AS_THEY_ARE: Final = frozenset({str, int, bool})


def encode(request: LaunchRequest) -> dict[str, Any]:
    """Everything but what holds a secret. TypeError: a field of a type that is not known here."""
    hidden = _hidden(LaunchRequest)
    return {name: _encoded(getattr(request, name)) for name in _types(LaunchRequest) if name not in hidden}


def encode_secrets(request: LaunchRequest) -> dict[str, Any]:
    """What goes into the private file: every field whose type mentions Secret."""
    return {name: _encoded(getattr(request, name), reveal=True) for name in sorted(_hidden(LaunchRequest))}


def decode(value: Mapping[str, Any], private: Mapping[str, Any] | None) -> LaunchRequest:
    """The request as it was given; without secrets where their file is gone (after the end).

    KeyError: a field is missing that has no default. One with a default may be: its record is older than the field.
    """
    request: LaunchRequest = _decoded(LaunchRequest, {**value, **(private or {})})
    return request


def _encoded(value: Any, *, reveal: bool = False) -> Any:
    if value is None or type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Secret) and reveal:
        return value.reveal()
    if isinstance(value, Mapping):
        return {name: _encoded(each, reveal=reveal) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [_encoded(each, reveal=reveal) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _encoded(getattr(value, each.name)) for each in fields(value)}
    raise TypeError(f"a launch request cannot be kept with a {type(value).__name__} in it")


def _decoded(kind: Any, value: Any) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in {UnionType, Union}:
        (known,) = (each for each in inner if each is not NoneType)
        return None if value is None else _decoded(known, value)
    if origin is tuple:
        return tuple(_decoded(inner[0], each) for each in value)
    if origin is Mapping:
        return {name: _decoded(inner[1], each) for name, each in value.items()}
    if is_dataclass(kind):
        return _made(kind, value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is Secret or (isinstance(kind, type) and issubclass(kind, StrEnum)):
        return kind(value)
    raise TypeError(f"a launch request cannot be read with a {kind} in it")


def _made(kind: Any, value: Mapping[str, Any]) -> Any:
    types = _types(kind)
    optional = {each.name for each in fields(kind) if (each.default, each.default_factory) != (MISSING, MISSING)}
    return kind(
        **{name: _decoded(each, value[name]) for name, each in types.items() if name in value or name not in optional}
    )


@cache
def _types(kind: Any) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


@cache
def _hidden(kind: Any) -> frozenset[str]:
    return frozenset(name for name, each in _types(kind).items() if each is Secret or Secret in get_args(each))
