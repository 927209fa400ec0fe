"""The metadata endpoint speaks as EC2's IMDSv2 does."""

import http.client
import json
import threading
import time
from collections.abc import Iterator

import pytest

from backends.local.metadata import MAX_TOKENS, TOKEN_HEADER, TOKEN_PATH, TTL_HEADER, Facts, serve

ACTION = "/latest/meta-data/spot/instance-action"


@pytest.fixture
def facts() -> Facts:
    return Facts("i-0abc", "local-a", "spot")


@pytest.fixture
def port(facts: Facts) -> Iterator[int]:
    server = serve(facts)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def token(port: int, ttl_s: int = 60) -> dict[str, str]:
    status, text = ask(port, TOKEN_PATH, "PUT", **{TTL_HEADER: str(ttl_s)})
    assert status == 200
    return {TOKEN_HEADER: text}


def test_nothing_is_told_without_a_token(port: int) -> None:
    assert ask(port, "/latest/meta-data/instance-id") == (401, "")
    assert ask(port, ACTION, **{TOKEN_HEADER: "made-up"}) == (401, "")
    assert ask(port, "/latest/meta-data/instance-id", **token(port)) == (200, "i-0abc")


def test_a_token_runs_out(port: int, facts: Facts) -> None:
    header = token(port, 60)
    facts.tokens[header[TOKEN_HEADER]] = time.monotonic() - 1
    assert ask(port, "/latest/meta-data/instance-id", **header)[0] == 401


@pytest.mark.parametrize("ttl", ["", "0", "21601", "soon", "-5"])
def test_a_token_needs_a_sensible_life(port: int, ttl: str) -> None:
    assert ask(port, TOKEN_PATH, "PUT", **{TTL_HEADER: ttl})[0] == 400


def test_a_proxy_gets_no_token(port: int) -> None:
    assert ask(port, TOKEN_PATH, "PUT", **{TTL_HEADER: "60", "X-Forwarded-For": "1.2.3.4"})[0] == 403


def test_an_interruption_is_404_until_it_is_published(port: int, facts: Facts) -> None:
    header = token(port)
    assert ask(port, ACTION, **header)[0] == 404
    assert ask(port, "/latest/meta-data/events/recommendations/rebalance", **header)[0] == 404
    facts.action_at, facts.rebalance_at = 1_767_323_045.6, 1_767_323_000.0
    status, text = ask(port, ACTION, **header)
    assert (status, json.loads(text)) == (200, {"action": "terminate", "time": "2026-01-02T03:04:05Z"})
    status, text = ask(port, "/latest/meta-data/events/recommendations/rebalance", **header)
    assert json.loads(text) == {"noticeTime": "2026-01-02T03:03:20Z"}
    assert ask(port, "/latest/meta-data/instance-life-cycle", **header) == (200, "spot")


def test_tokens_asked_for_without_end_do_not_fill_the_memory(facts: Facts) -> None:
    for _ in range(MAX_TOKENS + 50):
        facts.new_token(60)
    assert len(facts.tokens) <= MAX_TOKENS
