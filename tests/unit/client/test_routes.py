"""Every call that the client can make is one that the API publishes, with parameters that it knows."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.client import job_calls, operator_calls
from tidegate.client.calls import Call, Listing, query_of
from tidegate.client.follow import Follow
from tidegate.wire.enums import JobState, Resource, Role
from tidegate.wire.governance import BudgetDoc, OverrideRequest
from tidegate.wire.operator import OPERATOR_DOC, Grant, QuotaDoc, TokenRequest
from tidegate.wire.spec import JobSpec

ROOT = Path(__file__).parents[3]
PUBLISHED: dict[str, dict[str, Any]] = json.loads((ROOT / "docs" / "openapi.json").read_text())["paths"]
JOB = "00000000-0000-4000-8000-000000000000"
DIGEST = "0" * 64
SPEC = JobSpec(name="n", run="true")
QUOTA = QuotaDoc(tenant="acme/nlp", flavor="h100", resource=Resource.ACCELERATORS)
TENANT = OPERATOR_DOC.validate_python({"kind": "tenant", "path": "acme/nlp"})
OBJECTS = [
    {"kind": "tenant", "path": "acme/nlp"},
    {"kind": "flavor", "name": "f"},
    {"kind": "backend", "name": "b", "type": "local"},
    {"kind": "pool", "name": "p", "backend": "b", "flavor": "f"},
    {"kind": "storage", "tenant": "acme", "name": "s", "prefix": "s3://x"},
    {"kind": "owner", "tenant": "acme", "backend": "b", "owner": "lab_7"},
    {"kind": "allowance", "tenant": "acme/nlp", "priority": "P1", "gpu_hours": 1},
]
ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "submit": ((SPEC,), {}),
    "dry_run": ((SPEC,), {}),
    "submit_batch": (([SPEC],), {}),
    "list_jobs": ((), {"state": [JobState.QUEUED], "tenant": "acme", "label": ["a=b"], "page_size": 5}),
    "cancel": ((JOB,), {"index": 2, "message": "enough"}),
    "resize": ((JOB, 2), {}),
    "update": ((JOB,), {"labels": {"a": "b"}}),
    "events": ((JOB,), {"after": 7}),
    "logs": ((JOB,), {"rank": 1, "attempt": 2, "index": 3, "offset": 4, "follow": True}),
    "set_quota": ((QUOTA,), {"etag": "x"}),
    "set_budget": ((BudgetDoc(tenant="acme/nlp", amount=5),), {"etag": "x"}),
    "delete_budget": (("acme/nlp",), {}),
    "make_override": ((OverrideRequest(attempt="a", preemption="force", reason="r", expires_in=60),), {}),
    "end_override": ((1,), {}),
    "drain": (("b",), {}),
    "forget_backend": (("b", "burnt"), {"force": True}),
    "delete_document": (("pool", "p"), {}),
    "apply": (([TENANT],), {"prune": True}),
    "diff": (([TENANT],), {}),
    "make_token": ((TokenRequest(tenant="acme", principal="ci", role=Role.SUBMITTER),), {}),
    "revoke_token": ((JOB,), {}),
    "make_grant": (
        (Grant.model_validate({"tenant": "acme", "flavor": "f", "starts_at": "2026-01-01T00:00:00Z"}),),
        {},
    ),
    "revoke_grant": ((1,), {}),
}
OF_TENANT = "usage credits statement quotas budgets owners overrides storages allowances tokens grants audit"
OF_TENANT += " webhook_secret"
BARE = "whoami tenants flavors pools backends"
OF_JOB = "get_job hold unhold checkpoint requeue explain attempts tasks past_events"


def builders() -> Iterator[tuple[str, Callable[..., Any]]]:
    for module in (job_calls, operator_calls):
        for name, function in vars(module).items():
            if callable(function) and getattr(function, "__module__", "") == module.__name__ and name[0] != "_":
                yield name, function


def call_of(name: str, function: Callable[..., Any], tmp_path: Path) -> Call[Any]:
    args: tuple[Any, ...] = ()
    more: dict[str, Any] = {}
    if name == "put_workdir":
        (tmp_path / "a").write_bytes(b"x")
        args, more = (tmp_path / "a", DIGEST), {"tenant": "acme"}
    elif name in OF_TENANT.split():
        more = {"tenant": "acme"}
    elif name in OF_JOB.split():
        args = (JOB,)
    elif name not in BARE.split():
        args, more = ARGUMENTS[name]
    built = function(*args, **more)
    if isinstance(built, Listing):
        return built.page("cursor")
    if isinstance(built, Follow):
        return Call("GET", built.path, lambda body, _: body, built.params)
    assert isinstance(built, Call)
    return built


def assert_is_published(call: Call[Any]) -> None:
    found = []
    for template, methods in PUBLISHED.items():
        pattern = re.sub(r"\\{(\w+)\\}", lambda m: "(.+)" if m[1] == "path" else "([^/:]+)", re.escape(template))
        if re.fullmatch(pattern, call.path) and call.method.lower() in methods:
            found.append(methods[call.method.lower()])
    assert found, f"{call.method} {call.path}"
    known = {parameter["name"] for parameter in found[0].get("parameters", ())}
    assert set(query_of(call.params)) <= known, f"{call.method} {call.path}: {set(query_of(call.params)) - known}"


@pytest.mark.parametrize(("name", "function"), [pytest.param(*pair, id=pair[0]) for pair in builders()])
def test_the_api_knows_this_call(name: str, function: Callable[..., Any], tmp_path: Path) -> None:
    if name == "put_document":
        for document in OBJECTS:
            assert_is_published(function(OPERATOR_DOC.validate_python(document)))
        return
    assert_is_published(call_of(name, function, tmp_path))
