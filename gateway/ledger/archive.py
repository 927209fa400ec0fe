"""Snapshots that led to decisions, kept so that a decision can be made again.

A row holds one whole snapshot or what changed since its `base`; its digest is that of its own canonical JSON with the
base's digest in it, so that a changed row, or a changed base, is found out. A cycle that decided nothing keeps none.
"""

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger.codec import dumps
from policies.snapshot import (
    Allowance,
    Borrowing,
    Flavor,
    LiveAttempt,
    Override,
    Pool,
    QueuedJob,
    Quota,
    Snapshot,
    Tenant,
    Usage,
)

MAX_CHAIN: Final = 100  # deltas before a whole one again

_TYPES: Final[Mapping[str, Any]] = {
    "tenants": Tenant,
    "quotas": Quota,
    "usages": Usage,
    "allowances": Allowance,
    "flavors": Flavor,
    "pools": Pool,
    "queued": QueuedJob,
    "live": LiveAttempt,
    "borrowings": Borrowing,
    "overrides": Override,
}
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "tenants": ("path",),
    "quotas": ("tenant", "flavor", "resource"),
    "usages": ("tenant", "flavor", "resource"),
    "allowances": ("tenant", "klass"),
    "flavors": ("name",),
    "pools": ("name",),
    "queued": ("id",),
    "live": ("id",),
    "borrowings": ("lender", "borrower", "flavor", "since_ms", "until_ms", "amount"),
    "overrides": ("attempt", "until_ms", "force"),
}
_INSERT = text(
    """
    INSERT INTO snapshots (digest, base, data, at) VALUES (:digest, :base, CAST(:data AS jsonb), now())
    ON CONFLICT (digest) DO NOTHING
    """
)
_ROW = text("SELECT digest, base, data FROM snapshots WHERE digest = :digest")

Section = dict[str, Hashable]


@dataclass(slots=True)
class Archive:
    """The last snapshot that this process stored, to tell what changed. One arbiter, one archive."""

    digest: str = ""
    chain: int = 0
    sections: dict[str, Section] = field(default_factory=dict)

    def store(self, session: Session, snapshot: Snapshot) -> tuple[str, "Archive"]:
        """Keep the snapshot; its digest, and the archive to use once the transaction has committed."""
        sections = {name: _section(name, getattr(snapshot, name)) for name in _TYPES}
        whole = not self.digest or self.chain >= MAX_CHAIN
        base: dict[str, Section] = {} if whole else self.sections
        data = {
            name: change for name, after in sections.items() if (change := _change(name, base.get(name, {}), after))
        }
        body = dumps({"base": None if whole else self.digest, "data": data})
        digest = hashlib.sha256(body.encode()).hexdigest()
        session.execute(_INSERT, {"digest": digest, "base": None if whole else self.digest, "data": dumps(data)})
        return digest, Archive(digest, 0 if whole else self.chain + 1, sections)


def load(session: Session, digest: str) -> Snapshot:
    """The snapshot again, from its row and the rows it rests on. LookupError: not there, or changed since."""
    rows: list[Mapping[str, Any]] = []
    wanted: str | None = digest
    while wanted is not None:
        row = session.execute(_ROW, {"digest": wanted}).mappings().one_or_none()
        if row is None:
            raise LookupError(f"snapshot {wanted} is not kept")
        body = dumps({"base": row["base"], "data": row["data"]})
        if hashlib.sha256(body.encode()).hexdigest() != wanted:
            raise LookupError(f"snapshot {wanted} was changed after it was stored")
        rows.append(dict(row))
        wanted = row["base"]
    sections: dict[str, dict[str, Any]] = {name: {} for name in _TYPES}
    for row in reversed(rows):
        for name, change in row["data"].items():
            for key in change.get("gone", ()):
                sections[name].pop(key, None)
            sections[name].update(change.get("set", {}))
    return Snapshot(
        **{
            name: tuple(_adapter(name).validate_python(item) for item in found.values())
            for name, found in sections.items()
        }
    )


def _section(name: str, items: tuple[Any, ...]) -> Section:
    fields = _KEYS[name]
    if len(fields) == 1:
        return {getattr(item, fields[0]): item for item in items}
    return {"|".join(str(getattr(item, part)) for part in fields): item for item in items}


def _change(name: str, before: Section, after: Section) -> dict[str, Any]:
    adapter = _adapter(name)
    changed = {
        key: adapter.dump_python(item, mode="json")
        for key, item in after.items()
        if (old := before.get(key)) is not item and old != item
    }
    gone = sorted(before.keys() - after.keys())
    return {**({"set": changed} if changed else {}), **({"gone": gone} if gone else {})}


_ADAPTERS: dict[str, TypeAdapter[Any]] = {}


def _adapter(name: str) -> TypeAdapter[Any]:
    found = _ADAPTERS.get(name)
    if found is None:
        found = _ADAPTERS[name] = TypeAdapter(_TYPES[name])
    return found
