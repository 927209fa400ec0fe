"""Put a difference into the ledger: one transaction, checked as a whole, audited change by change.

Two appliers wait for each other, so that a sum that one of them checked still holds when it commits.
"""

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import delete, func, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlmodel import SQLModel, col

from gateway.ledger import limits
from gateway.ledger.tables.access import ClassAllowance, Storage, Tenant
from gateway.ledger.tables.accounts import BudgetRow
from gateway.ledger.tables.capacity import BackendRow, Flavor, ForeignUseRow, NodeRow, OwnerRow, Pool, QuotaRow
from gateway.operators import amounts, audit, checks, stored, urls
from gateway.operators.diff import Documents, Key, difference
from gateway.queries.scope import lineage
from tidegate.wire.governance import BudgetDoc, OwnerDoc
from tidegate.wire.operator import (
    OPERATOR_DOC,
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
from tidegate.wire.problem import FieldProblem

_LOCK: Final = 0x7469_6465  # any constant; names this lock among the database's advisory locks


class InvalidDocumentsError(ValueError):
    """The documents may not stand like this; `problems` names each field and remedy. Nothing was changed."""

    def __init__(self, problems: list[FieldProblem]) -> None:
        super().__init__(problems[0].detail if problems else "invalid documents")
        self.problems = problems


class InUseError(Exception):
    """Something that was to be deleted is still referred to. Nothing was changed."""


def lock(session: Session) -> None:
    """Make other appliers wait until this transaction ends. Before any row lock, so that none waits twice."""
    session.execute(select(func.pg_advisory_xact_lock(_LOCK)))


def plan(session: Session, wanted: Documents, *, prune: bool = False, home: str = "") -> tuple[Change, ...]:
    """The difference, checked as it would stand. Takes the appliers' lock until the transaction ends.

    `home`: the applier's own tenant, which no pruning takes away with the token in its hand.
    """
    lock(session)
    current = stored.documents(session)
    if prune and home:
        own = {("tenant", path) for path in lineage(home)}
        wanted = {**{key: doc for key, doc in current.items() if key in own}, **wanted}
    after: dict[Key, OperatorDoc] = dict(wanted) if prune else {**current, **wanted}
    _check(session, after)
    return difference(current, wanted, prune=prune)


def plan_removal(session: Session, key: Key) -> tuple[Change, ...]:
    """The difference that takes one document away; empty when there is none of that name."""
    lock(session)
    current = stored.documents(session)
    after = {other: doc for other, doc in current.items() if other != key}
    if len(after) < len(current):
        _check(session, after)
    return difference(current, after, prune=True)


def _check(session: Session, after: Documents) -> None:
    sums, silent = stored.reported(session)
    found = checks.problems(after, checks.capacities_of(after, sums, silent))
    if found:
        raise InvalidDocumentsError(found)


def execute(session: Session, changes: tuple[Change, ...], *, principal: str) -> None:
    """Write the changes in their order with an audit row each, and wake the arbiter."""
    for change in changes:
        tenant = (change.after or change.before or {}).get("tenant")
        if change.kind == "tenant":
            tenant = change.name
        tenant_id = _tenant_id(session, tenant) if tenant and change.action != "create" else None
        try:
            with session.begin_nested():
                if change.after is not None:
                    _write(session, OPERATOR_DOC.validate_python(change.after), create=change.action == "create")
                else:
                    _remove(session, OPERATOR_DOC.validate_python(change.before))
        except IntegrityError as error:
            raise InUseError(
                f"{change.kind} {change.name!r} is still in use by jobs, tokens or other objects"
            ) from error
        if change.kind == "tenant" and change.action == "delete":
            tenant_id = None
        elif tenant and tenant_id is None:
            tenant_id = _tenant_id(session, tenant)
        audit.record(
            session,
            principal=principal,
            tenant_id=tenant_id,
            action=f"{change.kind}.{change.action}",
            target=change.name,
            before=change.before,
            after=change.after,
        )
    if changes:
        session.execute(text("SELECT pg_notify('tidegate_work', '')"))


def _tenant_id(session: Session, path: str) -> int | None:
    return session.execute(select(col(Tenant.id)).where(col(Tenant.path) == path)).scalar_one_or_none()


def _required(session: Session, path: str) -> int:
    found = _tenant_id(session, path)
    assert found is not None, "checked by plan()"
    return found


def _columns(session: Session, doc: OperatorDoc) -> tuple[type[SQLModel], dict[str, Any], dict[str, Any]]:
    """(table, key columns, other columns) of a document."""
    match doc:
        case TenantDoc():
            parent, _, _ = doc.path.rpartition("/")
            values = {"active": doc.active, "contact": doc.contact, "queue_limit": doc.queue_limit}
            return Tenant, {"path": doc.path}, {**values, "parent_id": _required(session, parent) if parent else None}
        case FlavorDoc():
            values = doc.model_dump(exclude={"kind", "name"})
            return Flavor, {"name": doc.name}, {**values, "capacity_type": str(doc.capacity_type)} | _raw(doc)
        case BackendDoc():
            return BackendRow, {"name": doc.name}, {"kind": doc.type, "config": doc.config, "draining": doc.draining}
        case PoolDoc():
            return (
                Pool,
                {"name": doc.name},
                {
                    "backend": doc.backend,
                    "flavor": doc.flavor,
                    "tenure": str(doc.tenure),
                    "config": doc.config,
                },
            )
        case _:
            return _of_tenant(doc, _required(session, doc.tenant))


def _of_tenant(
    doc: QuotaDoc | AllowanceDoc | StorageDoc | BudgetDoc | OwnerDoc, tenant_id: int
) -> tuple[type[SQLModel], dict[str, Any], dict[str, Any]]:
    match doc:
        case QuotaDoc():
            key = {"tenant_id": tenant_id, "flavor": doc.flavor, "resource": str(doc.resource)}
            return (
                QuotaRow,
                key,
                {
                    "min": amounts.parse(doc.min, doc.resource),
                    "max": None if doc.max is None else amounts.parse(doc.max, doc.resource),
                    "lendable": amounts.parse(doc.lendable, doc.resource),
                },
            )
        case AllowanceDoc():
            key = {"tenant_id": tenant_id, "klass": str(doc.priority)}
            return ClassAllowance, key, {"gpu_ms": doc.gpu_hours * stored.MS_PER_HOUR, "period_s": doc.period}
        case StorageDoc():
            key = {"tenant_id": tenant_id, "name": doc.name}
            values = {"scheme": urls.scheme_of(doc.prefix), "prefix": doc.prefix, "credential": doc.credential}
            return Storage, key, values
        case BudgetDoc():
            key = {"tenant_id": tenant_id, "unit": amounts.LEDGER_UNITS[doc.unit]}
            return BudgetRow, key, {"amount": amounts.parse_budget(doc.amount, doc.unit), "period_s": doc.period}
        case OwnerDoc():
            return OwnerRow, doc.model_dump(include={"backend", "owner"}), {"tenant_id": tenant_id}


def _raw(doc: FlavorDoc) -> dict[str, Any]:
    # model_dump would write quantities as texts; the column holds bytes.
    return {"accelerator_memory": doc.accelerator_memory}


def _write(session: Session, doc: OperatorDoc, *, create: bool) -> None:
    table, key, values = _columns(session, doc)
    if create:
        if isinstance(doc, BudgetDoc):  # what was spent before there was a budget is not of its first period
            values = {**values, "spent_before": limits.posted(session, key["tenant_id"], key["unit"])}
        session.add(table(**key, **values))
        session.flush()
        return
    version = table.__table__.c.version  # type: ignore[attr-defined]
    session.execute(update(table).where(*_matches(table, key)).values(**values, version=version + 1))


def _remove(session: Session, doc: OperatorDoc) -> None:
    table, key, _ = _columns(session, doc)
    if isinstance(doc, PoolDoc):
        session.execute(delete(NodeRow).where(col(NodeRow.pool) == doc.name))
        session.execute(delete(ForeignUseRow).where(col(ForeignUseRow.pool) == doc.name))
    session.execute(delete(table).where(*_matches(table, key)))


def _matches(table: type[SQLModel], key: Mapping[str, Any]) -> list[Any]:
    columns = table.__table__.c  # type: ignore[attr-defined]
    return [columns[name] == value for name, value in key.items()]
