"""A call is made again where that is safe, with the same key, for a bounded time."""

import logging
import socket
from datetime import UTC, datetime

import pytest

from tests.fakes.gate import FakeGate, Lost, Refuse, problem
from tests.unit.client.conftest import QUICK, TOKEN, Ask
from tidegate import Client, JobSpec
from tidegate.client import ProblemError, ProtocolError, Retry, UnreachableError
from tidegate.client.retry import retry_after_s
from tidegate.wire.enums import Role
from tidegate.wire.operator import TokenRequest

SPEC = JobSpec(name="hello", run="true")


def test_rs_01_a_submit_whose_answer_was_lost_finds_the_job_that_it_made(gate: FakeGate, ask: Ask) -> None:
    gate.fail(Lost(after_effect=True), Lost(after_effect=True))
    made = ask("submit", SPEC)
    assert made.replayed is True
    assert list(gate.jobs) == [made.id]
    keys = {seen.header("Idempotency-Key") for seen in gate.requests_to("POST", "/v1/jobs")}
    assert len(gate.requests_to("POST", "/v1/jobs")) == 3
    assert len(keys) == 1
    assert keys != {""}


def test_a_connection_cut_before_the_effect_is_tried_again(gate: FakeGate, ask: Ask) -> None:
    gate.fail(Lost(after_effect=False))
    assert ask("submit", SPEC).replayed is False


def test_two_submits_are_two_jobs_and_a_given_key_makes_them_one(gate: FakeGate, ask: Ask) -> None:
    assert ask("submit", SPEC).id != ask("submit", SPEC).id
    assert ask("submit", SPEC, key="k").id == ask("submit", SPEC, key="k").id


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_gate_is_asked_again(gate: FakeGate, ask: Ask, status: int) -> None:
    gate.fail(Refuse(status, {"Retry-After": "0"}), Refuse(status))
    assert ask("whoami").tenant == "acme"
    assert len(gate.seen) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 412, 422, 500])
def test_a_refusal_is_not_asked_again(gate: FakeGate, ask: Ask, status: int) -> None:
    gate.fail(Refuse(status, body=problem(status, "some-word", "no", field="run", remedy="write it")))
    with pytest.raises(ProblemError) as caught:
        ask("submit", SPEC)
    error = caught.value
    assert (error.status, error.slug, error.detail, error.field, error.remedy) == (
        status,
        "some-word",
        "no",
        "run",
        "write it",
    )
    assert str(error) == f"run: no; write it ({status})"
    assert len(gate.seen) == 1


def test_a_proxy_that_answers_its_own_page_is_a_problem_too(gate: FakeGate, ask: Ask) -> None:
    gate.fail(*[Refuse(502, body=b"<html>secret stack</html>", media_type="text/html")] * QUICK.tries)
    with pytest.raises(ProblemError) as caught:
        ask("whoami")
    assert (caught.value.status, caught.value.title, caught.value.slug) == (502, "Bad Gateway", "")
    assert len(gate.seen) == QUICK.tries


def test_the_server_is_not_made_to_wait_longer_than_its_patience(gate: FakeGate, ask: Ask) -> None:
    gate.fail(Refuse(429, {"Retry-After": "3600"}))
    with pytest.raises(ProblemError) as caught:
        ask("whoami")
    assert caught.value.status == 429
    assert len(gate.seen) == 1


def test_what_must_not_happen_twice_is_not_repeated_after_a_lost_answer(gate: FakeGate, ask: Ask) -> None:
    gate.fail(Lost(after_effect=True))
    with pytest.raises(UnreachableError):
        ask("make_token", TokenRequest(tenant="acme", principal="ci", role=Role.SUBMITTER))
    assert len(gate.requests_to("POST", "/v1/tokens")) == 1


def test_a_redirect_is_not_followed_so_that_the_token_goes_nowhere_else(gate: FakeGate, ask: Ask) -> None:
    with FakeGate.running() as elsewhere:
        gate.fail(Refuse(302, {"Location": f"{elsewhere.url}/v1/me"}))
        with pytest.raises(ProtocolError, match="TIDEGATE_URL"):
            ask("whoami")
        assert elsewhere.seen == []


def test_an_answer_that_is_no_json_says_so(gate: FakeGate, ask: Ask) -> None:
    gate.fail(Refuse(200, body=b"welcome", media_type="text/html"))
    with pytest.raises(ProtocolError, match="no JSON"):
        ask("whoami")


def test_a_dark_gate_is_unreachable_and_the_token_is_in_no_error_repr_or_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    caplog.set_level(logging.DEBUG)
    with Client(url, TOKEN, retry=QUICK) as client:
        with pytest.raises(UnreachableError) as caught:
            client.whoami()
        shown = [repr(client), repr(vars(client)), repr(caught.value), str(caught.value), caplog.text]
    assert url in str(caught.value)
    assert not [text for text in shown if TOKEN in text]


def test_the_token_goes_with_every_request(gate: FakeGate, ask: Ask) -> None:
    ask("whoami")
    assert gate.seen[0].header("Authorization") == f"Bearer {TOKEN}"


def test_pauses_grow_with_jitter_up_to_a_bound_and_end() -> None:
    retry = Retry(tries=8, first_s=1, longest_s=10)
    most = [retry.pause_s(failures, None, lambda: 1.0) for failures in range(1, 8)]
    assert most == [2, 4, 8, 10, 10, 10, 10]
    assert retry.pause_s(3, None, lambda: 0.5) == 4
    assert retry.pause_s(8, None, lambda: 1.0) is None
    assert retry.pause_s(1, 30.0, lambda: 0.5) == 31


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert retry_after_s("120", now) == 120
    assert retry_after_s("Fri, 02 Jan 2026 03:05:05 GMT", now) == 60
    assert retry_after_s("Fri, 02 Jan 2026 03:00:00 GMT", now) == 0
    assert retry_after_s("soon", now) is None
    assert retry_after_s(None, now) is None
