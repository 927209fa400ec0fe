"""Who calls and what they may do. Tokens are stored as SHA-256 only; a tenant's subtree is all that its tokens see."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Annotated, Final
from uuid import UUID

from anyio import to_thread
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session
from sqlmodel import col

from gateway.api.callers import Caller
from gateway.api.deps import Deps, DepsOf
from gateway.api.problems import ProblemError
from gateway.ledger.tables.access import Tenant, Token
from gateway.ledger.tables.work import AttemptRow
from policies.vocabulary import Role

TOKEN_PREFIX: Final = "tg_"  # noqa: S105  (no secret: it lets secret scanners know ours)
_MAX_TOKEN: Final = 512
_BEARER = HTTPBearer(auto_error=False, description="An API token: `Authorization: Bearer tg_...`")
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]


@dataclass(frozen=True, slots=True)
class AttemptCaller:
    """A running attempt that speaks for itself, with the token that dies with it."""

    attempt_id: str
    job_id: UUID
    tenant_id: int


def digest(token: str) -> bytes:
    """What is stored of a token."""
    return hashlib.sha256(token.encode()).digest()


def new_token() -> str:
    """A fresh secret of 256 bits."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def _unauthorized(detail: str) -> ProblemError:
    return ProblemError(
        401,
        "unauthorized",
        detail,
        remedy="send `Authorization: Bearer <token>` with a token that is valid",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _digest_of(bearer: HTTPAuthorizationCredentials | None) -> bytes:
    if bearer is None:
        raise _unauthorized("this request carries no bearer token")
    if len(bearer.credentials) > _MAX_TOKEN:
        raise _unauthorized("the token is not valid")
    return digest(bearer.credentials)


def _row(session: Session, wanted: bytes) -> tuple[Token, str]:
    found = session.execute(
        select(Token, col(Tenant.path))
        .join(Tenant, col(Tenant.id) == col(Token.tenant_id))
        .where(
            col(Token.digest) == wanted,
            col(Token.revoked_at).is_(None),
            or_(col(Token.expires_at).is_(None), col(Token.expires_at) > func.now()),
        )
    ).first()
    if found is None or not hmac.compare_digest(found[0].digest, wanted):
        raise _unauthorized("the token is unknown, expired or revoked")
    return found[0], found[1]


class Requires:
    """Dependency: a person's or a machine's API token with at least this role."""

    def __init__(self, role: Role) -> None:
        self.role = role

    async def __call__(self, request: Request, deps: DepsOf, bearer: Bearer) -> Caller:
        return await _checked(request, deps, bearer, self.role)


async def caller_of(request: Request, deps: Deps, role: Role) -> Caller:
    """The same for a route that does not have its dependencies solved by FastAPI."""
    return await _checked(request, deps, await _BEARER(request), role)


async def _checked(request: Request, deps: Deps, bearer: HTTPAuthorizationCredentials | None, role: Role) -> Caller:
    wanted = _digest_of(bearer)
    caller = deps.callers.recent(wanted)
    if caller is None:
        caller = await to_thread.run_sync(_look_up, deps, wanted)
    if caller.role < role:
        raise ProblemError(
            403,
            "forbidden",
            f"{request.method} {request.url.path} needs the role {role.name.lower()}",
            remedy="ask an admin of your tenant for a token with that role",
        )
    return caller


def _look_up(deps: Deps, wanted: bytes) -> Caller:
    read_at = deps.callers.now()
    with deps.transaction() as session:
        token, path = _row(session, wanted)
    if token.attempt_id is not None:
        raise ProblemError(
            403, "forbidden", "a job's own token speaks for its attempt alone", remedy="use an API token"
        )
    caller = Caller(token.principal, token.tenant_id, path, Role(token.role), token.id)
    deps.callers.keep(wanted, caller, read_at)
    return caller


class RequiresAttempt:
    """Dependency: the token of an attempt that is still alive."""

    def __call__(self, deps: DepsOf, bearer: Bearer) -> AttemptCaller:
        with deps.transaction() as session:
            token, _ = _row(session, _digest_of(bearer))
            if token.attempt_id is None:
                raise ProblemError(
                    403,
                    "forbidden",
                    "only a job's own token may speak for its attempt",
                    remedy="send the token that the job finds in TIDEGATE_TOKEN_FILE",
                )
            attempt = session.get(AttemptRow, token.attempt_id)
            if attempt is None or attempt.ended_at is not None:
                raise _unauthorized("the attempt of this token has ended")
            return AttemptCaller(attempt.id, attempt.job_id, token.tenant_id)


Viewer = Annotated[Caller, Depends(Requires(Role.VIEWER))]
Submitter = Annotated[Caller, Depends(Requires(Role.SUBMITTER))]
TenantAdmin = Annotated[Caller, Depends(Requires(Role.TENANT_ADMIN))]
Operator = Annotated[Caller, Depends(Requires(Role.OPERATOR))]
OfAttempt = Annotated[AttemptCaller, Depends(RequiresAttempt())]
