"""Interruption notices in the way of EC2's IMDSv2: acted upon here, before anybody is asked."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar

from tests.harness.agents import agents
from tests.harness.waiting import eventually
from tests.unit.agent.test_stops import listener

ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class Service(BaseHTTPRequestHandler):
    """The two documents, and tokens of which only the newest is good."""

    documents: ClassVar[dict[str, dict[str, str]]]
    tokens: ClassVar[list[str]]

    def do_PUT(self) -> None:
        assert self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self.tokens.append(f"token-{len(self.tokens)}")
        self.reply(200, self.tokens[-1])

    def do_GET(self) -> None:
        if self.headers["X-aws-ec2-metadata-token"] != self.tokens[-1]:
            self.reply(401, "")
        elif self.path in self.documents:
            self.reply(200, json.dumps(self.documents[self.path]))
        else:
            self.reply(404, "")

    def reply(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@contextmanager
def service() -> Iterator[tuple[str, type[Service]]]:
    handler = type("Handler", (Service,), {"documents": {}, "tokens": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", handler
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def terminate_in(seconds: float) -> dict[str, str]:
    at = datetime.fromtimestamp(time.time() + seconds, UTC)
    return {"action": "terminate", "time": at.strftime("%Y-%m-%dT%H:%M:%SZ")}


def test_a_revocation_stops_every_member_by_the_deadline_wherever_the_gateway_is() -> None:
    with service() as (url, state), agents(1, ["--metadata", url, "--metadata-poll-s", "0.1"]) as [agent]:
        listener(agent, "tg-1", leave="SIGUSR1")
        listener(agent, "tg-2")
        state.documents[ACTION] = terminate_in(120)
        member = agent.reaches("ended", "tg-1")
        assert (member["exit_code"], member["stop"]["kind"], member["notice"]["kind"]) == (75, "revoke", "revoke")
        other = agent.reaches("stopping", "tg-2")
        assert 115 < other["stop"]["deadline"] - time.time() < 121
        assert other["notice"]["kind"] == "revoke"
        _, answer = agent.call("GET", "/members")
        assert (answer["revocation"]["kind"], answer["revocation"]["detail"]) == ("revoke", "terminate")


def test_an_instance_that_is_taken_away_starts_nothing_new() -> None:
    with service() as (url, state), agents(1, ["--metadata", url, "--metadata-poll-s", "0.1"]) as [agent]:
        state.documents[ACTION] = terminate_in(30)
        eventually(lambda: agent.call("GET", "/health")[1]["revocation"])
        status, answer = agent.call("POST", "/members", {"launch": "tg-1", "rank": 0, "script": "true"})
        assert (status, answer["error"]["code"]) == (409, "revoked")


def test_rebalance_advice_tells_and_stops_nothing() -> None:
    with service() as (url, state), agents(1, ["--metadata", url, "--metadata-poll-s", "0.1"]) as [agent]:
        listener(agent, "tg-1")
        state.documents[REBALANCE] = {"noticeTime": "2026-01-02T03:04:05Z"}
        agent.says('"kind": "rebalance"', "tg-1")
        member = agent.member("tg-1")
        assert (member["state"], member["stop"]) == ("running", None)
        agent.start("tg-2", script="true")
        agent.reaches("ended", "tg-2")
        assert agent.log("tg-1").count("rebalance") == 1, "the same advice is told once"


def test_an_expired_token_is_renewed_and_a_silent_service_is_no_notice() -> None:
    with service() as (url, state), agents(1, ["--metadata", url, "--metadata-poll-s", "0.1"]) as [agent]:
        eventually(lambda: state.tokens)
        state.tokens.append("another")  # what the agent holds is now refused
        state.documents[ACTION] = terminate_in(60)
        eventually(lambda: agent.call("GET", "/health")[1]["revocation"])
        assert len(state.tokens) == 3
    with agents(1, ["--metadata", "http://127.0.0.1:9", "--metadata-poll-s", "0.05"]) as [agent]:
        agent.start("tg-1", argv=[sys.executable, "-c", "import time; time.sleep(0.4)"])
        assert agent.reaches("ended", "tg-1")["cause"] == "Completed"
        assert agent.call("GET", "/health")[1]["revocation"] is None
