"""Which kinds of backends there are: one line each. Nothing of a kind is imported before one of it is built."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, cast

from pydantic import BaseModel, ValidationError

from backends.errors import InvalidSettings, Misconfigured
from backends.port import Backend, DeclaresCapacity
from policies.snapshot import Resources


@dataclass(frozen=True, slots=True)
class Kind:
    """Where a kind lives, and the extra of `tidegate-server` that brings what it imports ("" for none)."""

    package: str
    config: str
    backend: str
    extra: str = ""


KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "local": Kind("backends.local", "LocalConfig", "LocalBackend"),
    }
)


def build(name: str, kind: str, config: Mapping[str, Any], gateway: str) -> Backend:
    """The backend `name` of this kind for the gateway `gateway` (the tag of all it makes).

    Raises Misconfigured naming the field, or the extra to install. Contacts nothing.
    """
    entry = _entry(name, kind)
    settings = parse(name, kind, config)
    cls = _load(name, entry, "backend", entry.backend)
    return cast("Backend", cls(name, settings, gateway))


def parse(name: str, kind: str, config: Mapping[str, Any]) -> BaseModel:
    """The settings of one backend, checked but not used. Raises InvalidSettings with each place, or Misconfigured."""
    entry = _entry(name, kind)
    model = cast("type[BaseModel]", _load(name, entry, "config", entry.config))
    try:
        return model.model_validate(dict(config))
    except ValidationError as error:
        # The input is left out of the text: it may hold a credential.
        problems = tuple((item["loc"], item["msg"]) for item in error.errors(include_input=False))
        said = "; ".join(f"{'.'.join(map(str, where)) or 'it'}: {what}" for where, what in problems)
        raise InvalidSettings(f"backend {name} ({kind}): {said}", problems=problems) from None


def declared(settings: BaseModel) -> Mapping[str, Resources] | None:
    """What each pool will report in all, as its settings say; None where the kind learns that only by asking."""
    return settings.declared_capacity() if isinstance(settings, DeclaresCapacity) else None


def _entry(name: str, kind: str) -> Kind:
    entry = KINDS.get(kind)
    if entry is None:
        raise Misconfigured(f"backend {name}: kind {kind!r} is unknown; use one of: {', '.join(sorted(KINDS))}")
    return entry


def _load(name: str, entry: Kind, room: str, attribute: str) -> Any:
    try:
        return getattr(import_module(f"{entry.package}.{room}"), attribute)
    except ModuleNotFoundError as error:
        if not entry.extra or (error.name or "").startswith("backends"):
            raise  # A defect of ours, not a missing extra.
        hint = f"pip install 'tidegate-server[{entry.extra}]'"
        raise Misconfigured(f"backend {name}: {error.name} is not installed; {hint}") from error
