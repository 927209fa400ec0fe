"""Query parameters that a route does not know: refused on every route, whatever else is right."""

from collections.abc import Iterator

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from sqlalchemy import Engine

from gateway.api.app import ROUTERS
from gateway.api.openapi import document
from tests.api.conftest import Client
from tests.api.test_bad_input import the_problem
from tests.api.test_submit import jobs_stored
from tests.harness.federation import job

NOWHERE = "00000000-0000-0000-0000-000000000000"


def routes() -> Iterator[tuple[str, str]]:
    waiting: list[APIRouter] = [module.router for module in ROUTERS]
    while waiting:
        for route in waiting.pop().routes:
            if isinstance(route, APIRoute):
                for method in sorted(route.methods or ()):
                    yield method, f"/v1{route.path}"
            else:  # a router inside a router: its routes count as well
                inner = getattr(route, "original_router", None)
                assert isinstance(inner, APIRouter), route
                waiting.append(inner)


def test_every_route_refuses_a_parameter_that_it_does_not_declare_and_names_those_it_does(as_: Client) -> None:
    described = document()["paths"]
    root = as_("root")
    seen = 0
    for method, path in routes():
        documented = described[path.replace(":path}", "}")][method.lower()].get("parameters", [])
        known = sorted(p["name"] for p in documented if p["in"] == "query")
        url = path.replace("{path:path}", "acme")
        while "{" in url:
            url = url[: url.index("{")] + NOWHERE + url[url.index("}") + 1 :]
        problem = the_problem(root.request(method, url, params={"no_such_parameter": "1"}))
        assert (problem["status"], problem["field"]) == (422, "query.no_such_parameter"), (method, path)
        assert problem["type"].endswith("/unknown-parameter")
        assert all(name in problem["remedy"] for name in known), (method, path, problem["remedy"])
        seen += 1
    assert seen > 40


@pytest.mark.parametrize("typo", ["dryrun", "dry-run", "dry_runn", "DRY_RUN"])
def test_a_misspelt_dry_run_never_submits(as_: Client, engine: Engine, typo: str) -> None:
    problem = the_problem(as_("nlp").post(f"/v1/jobs?{typo}=true", json=job()))
    assert problem["status"] == 422
    assert "dry_run" in problem["remedy"]
    assert jobs_stored(engine) == 0
