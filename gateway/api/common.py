"""Small things that many routes share."""

from typing import Annotated
from uuid import UUID

from fastapi import Depends, Request
from sqlalchemy.orm import Session

from gateway.api.callers import Caller
from gateway.api.hub import Hub
from gateway.api.problems import ProblemError, not_found
from gateway.ledger.tables.work import JobRow
from gateway.queries import jobs
from gateway.queries.scope import Scope, tenant_id


def scope_of(caller: Caller) -> Scope:
    """What this caller may see."""
    return Scope(None if caller.everywhere else caller.tenant)


def narrowed(caller: Caller, tenant: str | None) -> Scope:
    """The same, cut to `tenant`; 404 where that lies outside."""
    scope = scope_of(caller).narrowed(tenant)
    if scope is None:
        raise not_found("tenant", tenant)
    return scope


def visible_job(session: Session, caller: Caller, job_id: UUID) -> tuple[JobRow, str]:
    """The job and its tenant's path; 404 where it is not there or not to be seen."""
    found = jobs.find(session, scope_of(caller), job_id)
    if found is None:
        raise not_found("job", job_id)
    return found


def visible_tenant(session: Session, caller: Caller, path: str) -> int:
    """The tenant's id; 404 likewise."""
    found = tenant_id(session, scope_of(caller), path)
    if found is None:
        raise not_found("tenant", path)
    return found


def etag(version: int) -> str:
    """A strong validator of a row's version."""
    return f'"{version}"'


def check_if_match(if_match: str | None, current: str) -> None:
    """412 where the caller's idea of the row is not what stands."""
    if if_match is None or if_match.strip() == "*":
        return
    if current not in {tag.strip() for tag in if_match.split(",")}:
        raise ProblemError(
            412,
            "precondition-failed",
            f"it was changed meanwhile and is {current} now",
            field="If-Match",
            remedy="read it again, then decide",
        )


async def _hub(request: Request) -> Hub:
    hub: Hub = request.app.state.hub
    return hub


HubOf = Annotated[Hub, Depends(_hub)]
