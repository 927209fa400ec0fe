"""Every error leaves as an RFC 9457 problem that names the field and the remedy; nothing internal is ever shown."""

import difflib
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from sqlalchemy.exc import DataError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException

from tidegate.wire import spec as spec_module
from tidegate.wire.base import Wire
from tidegate.wire.problem import PROBLEM_TYPE, FieldProblem, Problem

logger = logging.getLogger("tidegate.api")
MEDIA_TYPE: Final = "application/problem+json"
MAX_ERRORS: Final = 50
_LEADING_FIELD: Final = re.compile(r"(?P<field>[a-z_][A-Za-z0-9_.\-]*): (?P<rest>.+)", re.DOTALL)
_HTTP_REMEDIES: Final = {
    400: "send one JSON document, as /v1/openapi.json describes it",
    404: "check the path; /v1/openapi.json lists every route",
    405: "use another method; /v1/openapi.json lists them",
}
_KNOWN_FIELDS: Final = sorted(
    {
        name
        for member in vars(spec_module).values()
        if isinstance(member, type) and issubclass(member, Wire)
        for name in member.model_fields
    }
)
_REMEDIES: Final = {
    "missing": "add it",
    "json_invalid": "send one well-formed JSON document",
    "string_too_short": "give at least one character",
    "string_too_long": "shorten it",
    "enum": "take one of the listed words",
    "literal_error": "take one of the listed words",
    "int_type": "give an integer",
    "int_from_float": "give an integer",
    "finite_number": "give a finite number",
    "float_type": "give a number",
    "string_type": "give a text",
    "bool_type": "give true or false",
    "bool_parsing": "give true or false",
    "int_parsing": "give an integer",
    "int_parsing_size": "give a smaller number",
    "dict_type": "give an object",
    "model_type": "give an object",
    "model_attributes_type": "give an object",
    "tuple_type": "give a list",
    "list_type": "give a list",
    "uuid_parsing": "give the id as the gate shows it, for example 0b9f6a3e-0d6f-4f0e-9d4f-2f6d3f1f8a55",
    "datetime_parsing": "give an RFC 3339 instant, for example 2030-01-31T12:00:00Z",
    "datetime_from_date_parsing": "give an RFC 3339 instant, for example 2030-01-31T12:00:00Z",
    "timezone_aware": "give an offset, for example 2030-01-31T12:00:00Z",
    "union_tag_invalid": "take one of the listed kinds",
    "union_tag_not_found": "say its `kind`",
}
# What the bound or pattern is stands in the error's own context.
_BOUNDS: Final = {
    "greater_than_equal": "give at least {ge}",
    "greater_than": "give more than {gt}",
    "less_than_equal": "give at most {le}",
    "less_than": "give less than {lt}",
    "multiple_of": "give a multiple of {multiple_of}",
    "string_too_short": "give at least {min_length} character(s)",
    "string_too_long": "give at most {max_length} characters",
    "too_short": "give at least {min_length}",
    "too_long": "give at most {max_length}",
    "enum": "take one of: {expected}",
    "literal_error": "take one of: {expected}",
    "string_pattern_mismatch": "give a text of the form {pattern}",
    "union_tag_invalid": "take one of: {expected_tags}",
}
_WHERE: Final = {
    "job": "list yours with GET /v1/jobs, or ask with a token of the tenant that owns it",
    "attempt": "list those of the job with GET /v1/jobs/<id>/attempts",
    "rank": "give a rank from 0 to the number of members less 1",
    "tenant": "name your token's tenant or one below it; GET /v1/tenants lists them",
    "archive": "PUT it to /v1/workdirs/<sha256> first",
}


class ProblemError(Exception):
    """Raised anywhere below a route; becomes the answer. `slug` is the stable word behind the problem's type."""

    def __init__(
        self,
        status: int,
        slug: str,
        detail: str,
        *,
        field: str = "",
        remedy: str = "",
        errors: Iterable[FieldProblem] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.slug = slug
        self.detail = detail
        self.field = field
        self.remedy = remedy
        self.errors = tuple(errors)
        self.headers = dict(headers or {})

    def response(self, instance: str = "") -> Response:
        """The answer; `instance` is the request's path."""
        problem = Problem(
            type=PROBLEM_TYPE + self.slug,
            title=self.slug.replace("-", " ").capitalize(),
            status=self.status,
            detail=self.detail,
            field=self.field,
            remedy=self.remedy,
            instance=instance,
            errors=self.errors,
        )
        return Response(problem.model_dump_json(), self.status, headers=self.headers, media_type=MEDIA_TYPE)


def not_found(what: str, name: object) -> ProblemError:
    """Nothing of that name, or nothing that this caller may know of: the two look the same."""
    remedy = _WHERE.get(what, f"check the name; GET /v1/{what}s lists those that you may see")
    return ProblemError(404, "not-found", f"there is no {what} {str(name)[:200]!r} that you may see", remedy=remedy)


def invalid(field: str, detail: str, remedy: str, *, slug: str = "invalid") -> ProblemError:
    """What was sent can never be accepted as it is."""
    return ProblemError(
        422, slug, detail, field=field, remedy=remedy, errors=[FieldProblem(field=field, detail=detail, remedy=remedy)]
    )


def conflict(slug: str, detail: str, remedy: str, *, field: str = "") -> ProblemError:
    """It clashes with what is stored now."""
    return ProblemError(409, slug, detail, field=field, remedy=remedy)


def _path(loc: Sequence[Any]) -> str:
    inside = loc[1:] if loc and loc[0] in {"body", "query", "path", "header"} else loc
    return ".".join(str(part) for part in inside if not str(part).startswith(("function-", "tagged-union")))


def _field_problem(error: Mapping[str, Any]) -> FieldProblem:
    field = _path(error["loc"])
    kind = str(error["type"])
    detail = str(error["msg"]).removeprefix("Value error, ")
    if kind == "value_error" and (match := _LEADING_FIELD.fullmatch(detail)):
        field, detail = (f"{field}.{match['field']}" if field else match["field"]), match["rest"]
    if kind == "extra_forbidden":
        name = str(error["loc"][-1])
        near = difflib.get_close_matches(name, _KNOWN_FIELDS, n=1)
        remedy = f"did you mean {near[0]}? Else take it away" if near else "take it away; there is no such field"
        return FieldProblem(field=field[:500], detail=f"unknown field {name[:100]!r}", remedy=remedy)
    head, semicolon, tail = detail.partition("; ")
    remedy = tail if semicolon else _remedy(kind, error.get("ctx") or {})
    return FieldProblem(field=field[:500], detail=(head if semicolon else detail)[:1000], remedy=remedy[:500])


def _remedy(kind: str, context: Mapping[str, Any]) -> str:
    bound = _BOUNDS.get(kind)
    if bound is not None:
        try:
            return bound.format_map(context)
        except KeyError:
            pass
    return _REMEDIES.get(kind, "give a value as the schema in /v1/openapi.json describes it")


def from_validation(errors: Sequence[Mapping[str, Any]]) -> ProblemError:
    """One problem for everything that pydantic found wrong, the first field in front."""
    found = [_field_problem(error) for error in errors[:MAX_ERRORS]]
    kinds = {str(error["type"]) for error in errors}
    first = found[0] if found else FieldProblem(field="", detail="the request is not valid")
    if kinds == {"json_invalid"}:
        return ProblemError(400, "malformed-json", first.detail, remedy=first.remedy, errors=found)
    slug = "unknown-field" if kinds == {"extra_forbidden"} else "invalid"
    return ProblemError(422, slug, first.detail, field=first.field, remedy=first.remedy, errors=found)


def _unavailable() -> ProblemError:
    return ProblemError(
        503, "unavailable", "the ledger does not answer just now", remedy="try again", headers={"Retry-After": "1"}
    )


def install(app: FastAPI) -> None:
    """Teach the app to answer every exception with a problem."""

    @app.exception_handler(ProblemError)
    async def _problem(request: Request, error: ProblemError) -> Response:
        return error.response(request.url.path)

    @app.exception_handler(RequestValidationError)
    async def _validation(request: Request, error: RequestValidationError) -> Response:
        return from_validation(error.errors()).response(request.url.path)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        slug = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
        allowed = (error.headers or {}).get("Allow", "")
        remedy = f"use {allowed}" if allowed else _HTTP_REMEDIES.get(error.status_code, "see /v1/openapi.json")
        problem = ProblemError(error.status_code, slug, str(error.detail), remedy=remedy, headers=error.headers)
        return problem.response(request.url.path)

    @app.exception_handler(DataError)
    async def _data(request: Request, error: DataError) -> Response:
        logger.warning("a value did not fit its column: %s", type(error.orig).__name__)
        problem = ProblemError(422, "invalid", "a value is outside what can be stored", remedy="give a smaller value")
        return problem.response(request.url.path)

    async def _down(request: Request, error: Exception) -> Response:
        logger.warning("database unavailable: %s", type(error).__name__)
        return _unavailable().response(request.url.path)

    for kind in (OperationalError, InterfaceError, PoolTimeoutError):
        app.add_exception_handler(kind, _down)

    @app.exception_handler(Exception)
    async def _defect(request: Request, error: Exception) -> Response:
        # The traceback goes to the log through the server's own handler; the caller learns nothing of it.
        logger.error("unexpected %s at %s %s", type(error).__name__, request.method, request.url.path)
        problem = ProblemError(500, "internal-error", "a defect of the gate; it was logged", remedy="report it")
        return problem.response(request.url.path)
