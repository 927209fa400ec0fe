"""What a caller may not see is not shown, by one mechanism for every answer (DESIGN §8).

Ids of jobs and attempts are looked for in every text of an answer, wherever the text stands; those outside the caller's
subtree are replaced. Numbers that say how much a tenant outside it uses, or what its jobs would cost, are left out;
limits stay, since they say what stands in the way. An operator sees all.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast
from uuid import UUID

from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.orm import Session
from sqlmodel import col

from gateway.ledger.tables.access import Tenant
from gateway.ledger.tables.work import JobRow
from gateway.queries.scope import Scope

M = TypeVar("M", bound=BaseModel)
HIDDEN: Final = "another tenant's job"
_ATTEMPT: Final = re.compile(r"tg-([0-9a-f]{32})(?:-c[0-9]{1,7})?-[0-9]{1,6}")
_JOB: Final = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?:/[0-9]+)?")
_USE: Final = frozenset({"used", "held", "spent", "observed"})
_COST: Final = "cost_gpu_ms"
_ABOUT_OTHERS: Final = frozenset({"victims", "shrunk"})  # counts of those who make way, beside what that costs them
# The caller's own words about its own job, shown byte for byte.
_OWN: Final = frozenset({"id", "spec", "labels", "name", "principal", "cursor"})


def veiled(session: Session, scope: Scope, items: Iterable[M]) -> list[M]:
    """The answers as this caller may see them. One query for all of them, and none where no foreign id can stand."""
    found = list(items)
    if scope.path is None:
        return found
    named = {job for item in found for text in _texts(item) for job in _jobs_in(text)}
    veil = _Veil(scope, _visible(session, scope, named))
    return [veil.model(item) for item in found]


def veiled_one(session: Session, scope: Scope, item: M) -> M:
    """The same for one."""
    return veiled(session, scope, [item])[0]


def _visible(session: Session, scope: Scope, jobs: set[UUID]) -> dict[UUID, bool]:
    if not jobs:
        return {}
    query = select(col(JobRow.id), col(Tenant.path)).join(Tenant, col(Tenant.id) == col(JobRow.tenant_id))
    rows = session.execute(query.where(col(JobRow.id).in_(jobs)))
    return {job: scope.holds(path) for job, path in rows}


class _Veil:
    def __init__(self, scope: Scope, visible: Mapping[UUID, bool]) -> None:
        self._scope = scope
        self._visible = visible

    def model(self, item: M) -> M:
        changed = {}
        for name in type(item).model_fields:
            if name not in _OWN:
                before = getattr(item, name)
                after = self._value(before)
                if after is not before:
                    changed[name] = after
        return item.model_copy(update=changed) if changed else item

    def _value(self, value: Any) -> Any:
        if isinstance(value, BaseModel):
            return self.model(value)
        if type(value) is str:
            return self._text(value)
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, list | tuple):
            return type(value)(self._value(one) for one in value)
        return value

    def _mapping(self, value: Mapping[Any, Any]) -> dict[Any, Any]:
        tenant = value.get("tenant")
        foreign = isinstance(tenant, str) and not self._scope.holds(tenant)
        gone = _USE if foreign else frozenset()
        kept = {key: one for key, one in value.items() if key not in gone}
        if not _ABOUT_OTHERS.isdisjoint(kept):
            kept = {key: one for key, one in kept.items() if not str(key).startswith(_COST)}
        return {self._value(key): self._value(one) for key, one in kept.items()}

    def _text(self, text: str) -> str:
        if len(text) < 32:  # noqa: PLR2004  (no id is shorter)
            return text
        # An attempt's id names its job; one that no row is left of may be anybody's. Other UUIDs are no jobs'.
        text = _ATTEMPT.sub(lambda m: m[0] if self._visible.get(UUID(hex=m[1]), False) else HIDDEN, text)
        return _JOB.sub(lambda m: m[0] if self._visible.get(UUID(m[0][:36]), True) else HIDDEN, text)


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            if name not in _OWN:
                yield from _texts(getattr(value, name))
    elif type(value) is str:
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _texts(key)
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in cast("Sequence[Any]", value):
            yield from _texts(one)


def _jobs_in(text: str) -> Iterable[UUID]:
    for match in _ATTEMPT.finditer(text):
        yield UUID(hex=match[1])
    for match in _JOB.finditer(text):
        yield UUID(match[0][:36])
