"""docs/openapi.json is what the code says; `python -m gateway.api.openapi` writes it anew."""

import json

from gateway.api.openapi import SNAPSHOT, document, rendered


def test_the_snapshot_is_current() -> None:
    assert SNAPSHOT.read_text() == rendered(), "run `python -m gateway.api.openapi`"


def test_it_is_openapi_3_1_and_every_operation_may_answer_with_a_problem() -> None:
    described = document()
    assert described["openapi"].startswith("3.1")
    for path, operations in described["paths"].items():
        assert path.startswith("/v1/")
        for operation in operations.values():
            assert "application/problem+json" in json.dumps(operation["responses"]), (path, operation["operationId"])
            assert operation.get("description"), path
