"""How operators' documents differ from what stands. Pure: documents in, changes out, in an order to apply them."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gateway.operators import amounts, urls
from tidegate.wire.governance import BudgetDoc, OwnerDoc
from tidegate.wire.operator import (
    AllowanceDoc,
    BackendDoc,
    Change,
    FlavorDoc,
    OperatorDoc,
    PoolDoc,
    QuotaDoc,
    StorageDoc,
    TenantDoc,
)

Key = tuple[str, str]
Documents = Mapping[Key, OperatorDoc]
ORDER: Final = ("tenant", "flavor", "backend", "pool", "quota", "allowance", "storage", "owner", "budget")


def name_of(doc: OperatorDoc) -> str:
    """What tells two documents of one kind apart."""
    match doc:
        case TenantDoc():
            return doc.path
        case FlavorDoc() | BackendDoc() | PoolDoc():
            return doc.name
        case QuotaDoc():
            return f"{doc.tenant} {doc.flavor} {doc.resource}"
        case AllowanceDoc():
            return f"{doc.tenant} {doc.priority}"
        case StorageDoc():
            return f"{doc.tenant} {doc.name}"
        case OwnerDoc():
            return f"{doc.backend} {doc.owner}"
        case BudgetDoc():
            return f"{doc.tenant} {doc.unit}"


def key_of(doc: OperatorDoc) -> Key:
    """(kind, name)."""
    return doc.kind, name_of(doc)


def normal(doc: OperatorDoc) -> OperatorDoc:
    """One spelling per meaning, so that equal wishes compare equal. ValueError names the field."""
    if isinstance(doc, QuotaDoc):
        texts: dict[str, Any] = {}
        for field in ("min", "max", "lendable"):
            amount = getattr(doc, field)
            try:
                read = None if amount is None else amounts.parse(amount, doc.resource)
            except ValueError as error:
                raise ValueError(f"{field}: {error}") from error
            texts[field] = None if read is None else amounts.show(read, doc.resource)
        return doc.model_copy(update=texts)
    if isinstance(doc, BudgetDoc):
        try:
            return doc.model_copy(update={"amount": _shortest(doc)})
        except ValueError as error:
            raise ValueError(f"amount: {error}") from error
    if isinstance(doc, StorageDoc):
        try:
            return doc.model_copy(update={"prefix": urls.normalise(doc.prefix)})
        except ValueError as error:
            raise ValueError(f"prefix: {error}") from error
    return doc


def _shortest(doc: BudgetDoc) -> str:
    return amounts.show_budget(amounts.parse_budget(doc.amount, doc.unit), doc.unit)


def index(docs: Iterable[OperatorDoc]) -> dict[Key, OperatorDoc]:
    """By key. ValueError when two documents name the same thing."""
    found: dict[Key, OperatorDoc] = {}
    for doc in docs:
        key = key_of(doc)
        if key in found:
            raise ValueError(f"{key[0]} {key[1]!r} stands there twice")
        found[key] = normal(doc)
    return found


def difference(current: Documents, wanted: Documents, *, prune: bool = False) -> tuple[Change, ...]:
    """Creations and updates parents first, then (with `prune`) deletions children first."""
    changes = []
    for key in sorted(wanted, key=_rank):
        before, after = current.get(key), wanted[key]
        if before is None:
            changes.append(Change(action="create", kind=key[0], name=key[1], after=_shown(after)))
        elif before != after:
            changes.append(
                Change(action="update", kind=key[0], name=key[1], before=_shown(before), after=_shown(after))
            )
    if prune:
        gone = sorted(set(current) - set(wanted), key=_rank, reverse=True)
        changes.extend(Change(action="delete", kind=key[0], name=key[1], before=_shown(current[key])) for key in gone)
    return tuple(changes)


def _rank(key: Key) -> tuple[int, str]:
    # A tenant's path sorts behind its parent's, which is a prefix of it.
    return ORDER.index(key[0]), key[1]


def _shown(doc: OperatorDoc) -> dict[str, Any]:
    return doc.model_dump(mode="json")
