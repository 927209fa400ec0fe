"""Query parameters that a route does not know are refused: a misspelt `dry_run` must never submit a job.

The known names are read from what the route declares, so that no route can be forgotten.
"""

import difflib
from collections.abc import Iterable

from fastapi import params
from fastapi.dependencies.models import Dependant
from starlette.datastructures import QueryParams

from gateway.api.problems import ProblemError
from tidegate.wire.problem import FieldProblem


def declared(dependant: Dependant) -> tuple[str, ...]:
    """The names of a route's query parameters, its dependencies' included."""
    names = {
        field.alias
        for field in dependant.query_params
        if not (isinstance(field.field_info, params.Param) and field.field_info.in_ is not params.ParamTypes.query)
    }
    for inner in dependant.dependencies:
        names.update(declared(inner))
    return tuple(sorted(names))


def check(query: QueryParams, known: Iterable[str]) -> None:
    """ProblemError 422 naming each parameter that is not known and those that are."""
    names = sorted(known)
    unknown = sorted(set(query) - set(names))
    if not unknown:
        return
    errors = [
        FieldProblem(
            field=f"query.{name[:100]}", detail=f"unknown query parameter {name[:100]!r}", remedy=_remedy(name, names)
        )
        for name in unknown[:50]
    ]
    first = errors[0]
    raise ProblemError(422, "unknown-parameter", first.detail, field=first.field, remedy=first.remedy, errors=errors)


def _remedy(name: str, known: list[str]) -> str:
    if not known:
        return "take it away; this route has no query parameters"
    near = difflib.get_close_matches(name, known, n=1)
    these = f"this route knows: {', '.join(known)}"
    return f"did you mean {near[0]}? {these}" if near else f"take it away; {these}"
