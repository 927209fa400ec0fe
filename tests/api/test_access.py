"""Who may do what, and what a tenant never sees. The routes are taken from the router, so that a new one is tested."""

import re
from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, iter_route_contexts
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session
from sqlmodel import col

from gateway.api.auth import Requires, RequiresAttempt
from gateway.ledger.tables.access import Token
from policies.vocabulary import Role
from tests.api.conftest import Client
from tests.harness.federation import Federation, job

OPEN = {"/v1/healthz", "/v1/readyz"}


def routes(app: FastAPI) -> Iterator[tuple[str, str, object]]:
    """(method, path, its auth dependency or None) of every route of ours."""
    for context in iter_route_contexts(app.routes):
        route = context.original_route
        if isinstance(route, APIRoute):
            assert context.path is not None
            for method in sorted(route.methods or ()):
                yield method, context.path, guard(route.dependant)


def guard(dependant: Dependant) -> object:
    found = [d.call for d in dependant.dependencies if isinstance(d.call, Requires | RequiresAttempt)]
    assert len(found) <= 1
    return found[0] if found else None


def test_every_route_asks_for_a_token_but_the_two_of_health(app: FastAPI) -> None:
    seen = list(routes(app))
    assert len(seen) > 50
    for method, path, dependency in seen:
        assert (dependency is None) == (path in OPEN), f"{method} {path}"


def filled(path: str) -> str:
    values = {
        "job_id": str(uuid4()),
        "token_id": str(uuid4()),
        "sha256": "0" * 64,
        "path:path": "acme",
        "grant_id": "1",
    }
    return re.sub(r"\{([^}]+)\}", lambda match: values.get(match[1], "thing"), path)


def test_without_a_valid_token_every_route_answers_401(app: FastAPI, url: str, federation: Federation) -> None:
    with httpx.Client(base_url=url) as nobody:
        for method, path, dependency in routes(app):
            if dependency is None:
                continue
            for headers in ({}, {"Authorization": "Bearer tg_wrong"}, {"Authorization": "Basic eDp5"}):
                answer = nobody.request(method, filled(path), headers=headers, json={})
                # A body that is no good may be told before who is asking: it tells nothing of what is stored.
                assert answer.status_code in {401, 422}, f"{method} {path} {answer.status_code}"
                assert answer.headers["Content-Type"] == "application/problem+json"


def test_a_role_below_the_routes_is_403(app: FastAPI, as_: Client) -> None:
    by_role = {Role.SUBMITTER: "nlp-viewer", Role.TENANT_ADMIN: "nlp", Role.OPERATOR: "nlp-admin"}
    tried = 0
    for method, path, dependency in routes(app):
        if isinstance(dependency, Requires) and dependency.role > Role.VIEWER:
            answer = as_(by_role[dependency.role]).request(method, filled(path), json={})
            assert answer.status_code in {403, 422}, f"{method} {path} {answer.status_code}"
            tried += answer.status_code == 403
    assert tried > 15


def test_of_another_tenants_job_every_route_says_404(app: FastAPI, as_: Client) -> None:
    made = as_("nlp").post("/v1/jobs", json=job("hidden")).json()["id"]
    bodies = {":resize": {"replicas": 2}, "PATCH": {"labels": {}}}
    tried = 0
    for method, path, dependency in routes(app):
        if "{job_id}" not in path or not isinstance(dependency, Requires):
            continue
        body = next((b for mark, b in bodies.items() if mark in f"{method} {path}"), None)
        for stranger in ("vision", "other", "other-admin"):
            answer = as_(stranger).request(method, path.replace("{job_id}", made), json=body)
            assert answer.status_code == 404, f"{method} {path} {answer.status_code}"
            assert "hidden" not in answer.text
            nobodys = as_(stranger).request(method, path.replace("{job_id}", str(uuid4())), json=body)
            assert nobodys.json()["type"] == answer.json()["type"]
        tried += 1
    assert tried >= 12
    assert as_("acme-admin").get(f"/v1/jobs/{made}").status_code == 200


def test_lists_hold_the_callers_subtree_only(as_: Client, app: FastAPI) -> None:
    for who in ("nlp", "vision", "other"):
        assert as_(who).post("/v1/jobs", json=job(f"of-{who}")).status_code == 202
    names = {
        who: {j["name"] for j in as_(who).get("/v1/jobs").json()["items"]} for who in ("nlp", "acme-admin", "other")
    }
    assert names == {"nlp": {"of-nlp"}, "acme-admin": {"of-nlp", "of-vision"}, "other": {"of-other"}}
    for method, path, dependency in routes(app):
        if method == "GET" and "{" not in path and isinstance(dependency, Requires):
            client = as_("other-admin") if dependency.role < Role.OPERATOR else as_("root")
            answer = client.get(path)
            assert answer.status_code == 200, (path, answer.text)
            if client is not as_("root") and dependency.role < Role.OPERATOR:
                assert "acme" not in answer.text, path
            outside = client.get(path, params={"tenant": "acme/nlp"})
            # A route without such a parameter says so.
            assert outside.status_code in {200, 404} or outside.json()["field"] == "query.tenant", path
            assert "of-nlp" not in outside.text or dependency.role >= Role.OPERATOR, path


def test_a_token_is_shown_once_stored_hashed_and_dies_when_revoked(as_: Client, url: str, engine: Engine) -> None:
    admin = as_("nlp-admin")
    made = admin.post("/v1/tokens", json={"tenant": "acme/nlp", "principal": "ci", "role": "submitter"}).json()
    secret = made["secret"]
    assert secret not in admin.get("/v1/tokens").text
    assert secret not in admin.get("/v1/audit").text
    with Session(engine) as session:
        row = session.execute(select(Token).where(col(Token.principal) == "ci")).scalar_one()
        assert secret.encode() not in bytes(row.digest)
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}) as ci:
        assert ci.get("/v1/me").json() == {"principal": "ci", "tenant": "acme/nlp", "role": "submitter"}
        assert as_("other-admin").delete(f"/v1/tokens/{made['id']}").status_code == 404
        assert admin.delete(f"/v1/tokens/{made['id']}").status_code == 200
        assert ci.get("/v1/me").status_code == 401
    acts = [(a["action"], a["principal"]) for a in admin.get("/v1/audit").json()["items"]]
    assert acts == [("token.revoke", "nlp-admin"), ("token.create", "nlp-admin")]


def test_nobody_makes_a_token_above_their_own_role_or_outside_their_tenant(as_: Client) -> None:
    admin = as_("nlp-admin")
    above = admin.post("/v1/tokens", json={"tenant": "acme/nlp", "principal": "x", "role": "operator"})
    assert above.status_code == 403
    outside = admin.post("/v1/tokens", json={"tenant": "acme/vision", "principal": "x", "role": "viewer"})
    assert outside.status_code == 404


def test_an_expired_token_is_worth_nothing(as_: Client, url: str, engine: Engine) -> None:
    made = as_("nlp-admin").post(
        "/v1/tokens", json={"tenant": "acme/nlp", "principal": "brief", "role": "viewer", "expires_in": "1h"}
    )
    with Session(engine) as session, session.begin():
        row = session.execute(select(Token).where(col(Token.principal) == "brief")).scalar_one()
        assert row.expires_at is not None
        row.expires_at = row.created_at
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {made.json()['secret']}"}) as late:
        assert late.get("/v1/me").status_code == 401


@pytest.mark.parametrize("path", sorted(OPEN))
def test_health_needs_no_token(url: str, path: str) -> None:
    assert httpx.get(url + path).status_code == 200
