"""What the kinds of backends say to operators' documents: which settings they cannot read, and what they declare.

The one place where a backend's document and its pools' become the settings of a kind: the check at write and the
directory that builds backends read the same. Nothing here knows any kind; nothing is built or asked.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from backends import registry
from backends.errors import InvalidSettings, Misconfigured
from policies.snapshot import Resources

_OURS: Final = {
    "pool": {
        "name": "the document itself says it",
        "flavor": "the document itself says it",
        "capacity_type": "the flavor says it",
    },
    "backend": {"pools": "pools have documents of their own"},
}
_MOST: Final = 300  # characters of a key that somebody made up


@dataclass(frozen=True, slots=True)
class PoolPart:
    """What a kind reads of a pool: its name, its flavor and that one's capacity type, its own settings."""

    name: str
    flavor: str
    capacity_type: str
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BackendPart:
    """A backend with its pools, as stored or as they would be."""

    name: str
    kind: str
    config: Mapping[str, Any]
    pools: Sequence[PoolPart] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """A setting that cannot be read. `pool`: whose it is, "" for the backend's own. `field`: of that document."""

    pool: str
    field: str
    detail: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Faults, and what the pools hold in all where the kind knows it (None: it learns that by asking)."""

    faults: tuple[Fault, ...] = ()
    declared: Mapping[str, Resources] | None = None


def settings_of(part: BackendPart, data_dir: Path) -> dict[str, Any]:
    """What a kind's own settings are read from: the operators' words, its pools with their flavors, and a folder."""
    return {
        "state_dir": str(data_dir.resolve() / "backends" / part.name),
        **part.config,
        "pools": [
            {**pool.config, "name": pool.name, "flavor": pool.flavor, "capacity_type": pool.capacity_type}
            for pool in part.pools
        ],
    }


def judge(part: BackendPart) -> Verdict:
    """What the kind says. A backend that has no pool yet is not blamed for that: its document comes first."""
    ours = tuple(_ours(part))
    try:
        # Where the folder lies is this machine's business and changes nothing about what is valid.
        settings = registry.parse(part.name, part.kind, settings_of(part, Path()))
    except InvalidSettings as error:
        found = [_placed(part, where, what) for where, what in error.problems if part.pools or where != ("pools",)]
        return Verdict((*ours, *found))
    except Misconfigured as error:
        return Verdict((Fault("", "type", _without_name(str(error), part.name), "give a type that is installed here"),))
    return Verdict(ours, registry.declared(settings))


def without(part: BackendPart, pools: Mapping[str, str]) -> BackendPart:
    """The same backend with fewer pools."""
    kept = tuple(pool for pool in part.pools if pool.name not in pools)
    return BackendPart(part.name, part.kind, part.config, kept)


def words_by_pool(faults: Sequence[Fault]) -> Mapping[str, str]:
    """In words for people, by pool; "" for what is wrong with the backend itself."""
    words: dict[str, list[str]] = defaultdict(list)
    for fault in faults:
        words[fault.pool].append(f"{fault.field}: {fault.detail}")
    return {pool: "; ".join(found)[:500] for pool, found in words.items()}


def _ours(part: BackendPart) -> Iterator[Fault]:
    """Keys that would be written over what the documents say, or be written over by it."""
    for name, why in _OURS["backend"].items():
        if name in part.config:
            yield Fault("", f"config.{name}", f"it cannot be set here: {why}", f"take {name} out")
    for pool in part.pools:
        for name, why in _OURS["pool"].items():
            if name in pool.config:
                yield Fault(pool.name, f"config.{name}", f"it cannot be set here: {why}", f"take {name} out")


def _placed(part: BackendPart, where: tuple[str | int, ...], what: str) -> Fault:
    """(pools, 0, nodes) is the field `config.nodes` of the first pool; everything else is the backend's own."""
    pool = ""
    if len(where) > 1 and where[0] == "pools" and isinstance(where[1], int):
        pool, where = part.pools[where[1]].name, where[2:]
    inner = ".".join(map(str, where))[:_MOST]
    return Fault(
        pool,
        f"config.{inner}" if inner else "config",
        what,
        f"take it out; a {'pool' if pool else 'backend'} of kind {part.kind} has no such setting"
        if "Extra inputs" in what
        else f"correct it as the settings of kind {part.kind} say (docs/backends/{part.kind}.md)",
    )


def _without_name(text: str, name: str) -> str:
    return text.removeprefix(f"backend {name}: ")
