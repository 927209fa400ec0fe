"""Operators' changes over HTTP: one document or many, planned, executed and audited in one transaction."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session

from gateway.api.callers import Caller
from gateway.api.deps import Deps
from gateway.api.problems import ProblemError, conflict, invalid, not_found
from gateway.operators import apply, stored
from gateway.operators.diff import Key, index
from tidegate.wire.operator import Change, OperatorDoc


@contextmanager
def changing(deps: Deps) -> Iterator[Session]:
    """A transaction whose refusals by the operators' rules become problems."""
    try:
        with deps.transaction() as session:
            yield session
        deps.configs.forget()
        deps.callers.forget()
    except apply.InvalidDocumentsError as error:
        first = error.problems[0]
        raise ProblemError(
            422, "invalid", first.detail, field=first.field, remedy=first.remedy, errors=error.problems[:50]
        ) from error
    except apply.InUseError as error:
        raise conflict("in-use", str(error), "end or move what uses it first") from error


def put(session: Session, caller: Caller, doc: OperatorDoc) -> tuple[Change, ...]:
    """Create or replace one document."""
    try:
        wanted = index([doc])
    except ValueError as error:
        field, _, detail = str(error).partition(": ")
        raise invalid(field, detail, "correct the amount or URL") from error
    changes = apply.plan(session, wanted)
    apply.execute(session, changes, principal=caller.principal)
    return changes


def remove(session: Session, caller: Caller, key: Key) -> None:
    """Take one document away; 404 when it is not there."""
    changes = apply.plan_removal(session, key)
    if not changes:
        raise not_found(*key)
    apply.execute(session, changes, principal=caller.principal)


def documents_of(session: Session, kind: str) -> list[OperatorDoc]:
    """Every stored document of a kind, by name."""
    found = stored.documents(session)
    return [found[key] for key in sorted(found) if key[0] == kind]


def same_name(path_name: str, body_name: str, field: str) -> None:
    """A body that names another thing than the URL is a mistake."""
    if path_name != body_name:
        raise invalid(field, f"the body says {body_name!r}, the URL {path_name!r}", "make the two equal")
