"""Events and logs as pages and as streams."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import httpx
import pytest
from fastapi import FastAPI
from httpx_sse import connect_sse
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from backends.errors import Unreachable
from backends.types import Capabilities, Handle, LogChunk
from gateway.api.app import create_app
from gateway.api.deps import Deps
from gateway.api.streams import shown
from gateway.ledger import events
from tests.api.conftest import Client
from tests.harness.federation import Federation, job
from tests.harness.server import serving


class Talking:
    """A backend that has output, in chunks."""

    name = "cluster"
    capabilities = Capabilities(logs=True)

    def __init__(self) -> None:
        self.chunks: Sequence[bytes] = ()
        self.dark = False
        self.asked: list[tuple[str, int, int, bool]] = []

    def logs(self, handle: Handle, rank: int, offset: int = 0, *, follow: bool = False) -> Iterator[LogChunk]:
        self.asked.append((handle.key, rank, offset, follow))
        if self.dark:
            raise Unreachable("cluster does not answer, token=hidden")
        whole = b"".join(self.chunks)
        sent = 0
        for chunk in self.chunks:
            end = sent + len(chunk)
            if end > offset:
                yield LogChunk(rank, whole[max(sent, offset) : end], end)
            sent = end


@pytest.fixture
def talking() -> Talking:
    return Talking()


@pytest.fixture
def app(deps: Deps, talking: Talking) -> FastAPI:
    talks: Any = talking
    return create_app(
        Deps(engine=deps.engine, settings=deps.settings, cursor_key=deps.cursor_key, backends={"cluster": talks})
    )


def happened(engine: Engine, job_id: str, kind: str) -> None:
    with Session(engine) as session, session.begin():
        assert events.append(session, UUID(job_id), kind)


def test_events_come_in_pages(as_: Client, engine: Engine) -> None:
    nlp = as_("nlp")
    made = nlp.post("/v1/jobs", json=job()).json()["id"]
    for kind in ("A", "B"):
        happened(engine, made, kind)
    url = f"/v1/jobs/{made}/events"
    first = nlp.get(url, params={"limit": 2}).json()
    second = nlp.get(url, params={"limit": 2, "cursor": first["next"]}).json()
    assert [e["kind"] for e in first["items"] + second["items"]] == ["QUEUED", "A", "B"]
    assert second["next"] is None


def test_the_event_stream_goes_on_as_things_happen_and_ends_with_the_job(as_: Client, engine: Engine) -> None:
    nlp = as_("nlp")
    made = nlp.post("/v1/jobs", json=job()).json()["id"]
    seen: list[tuple[str, str]] = []
    with connect_sse(nlp, "GET", f"/v1/jobs/{made}/events") as source:
        assert source.response.headers["Content-Type"].startswith("text/event-stream")
        for event in source.iter_sse():
            seen.append((event.event, event.id))
            if event.event == "QUEUED":
                happened(engine, made, "Noted")
            if event.event == "Noted":
                as_("nlp").post(f"/v1/jobs/{made}:cancel")
    assert [kind for kind, _ in seen] == ["QUEUED", "Noted", "CANCELLED"]
    again: list[str] = []
    with connect_sse(nlp, "GET", f"/v1/jobs/{made}/events", headers={"Last-Event-ID": seen[0][1]}) as source:
        again = [event.event for event in source.iter_sse()]
    assert again == ["Noted", "CANCELLED"]


def test_a_last_event_id_that_is_none_is_400(as_: Client) -> None:
    nlp = as_("nlp")
    made = nlp.post("/v1/jobs", json=job()).json()["id"]
    headers = {"Accept": "text/event-stream", "Last-Event-ID": "x"}
    assert nlp.get(f"/v1/jobs/{made}/events", headers=headers).status_code == 400


def test_the_app_stops_within_its_grace_though_a_stream_is_open(app: FastAPI, federation: Federation) -> None:
    headers = {"Authorization": f"Bearer {federation.tokens['nlp']}"}
    opened = threading.Event()

    def follow(base: str, job_id: str) -> None:
        with (
            contextlib.suppress(httpx.RemoteProtocolError),  # the server cuts what outlives its grace
            httpx.Client(base_url=base, headers=headers, timeout=30) as client,
            connect_sse(client, "GET", f"/v1/jobs/{job_id}/events") as source,
        ):
            for _ in source.iter_sse():
                opened.set()

    with serving(app) as base:
        made = httpx.post(f"{base}/v1/jobs", json=job(), headers=headers).json()["id"]
        follower = threading.Thread(target=follow, args=(base, made))
        follower.start()
        assert opened.wait(10)
    follower.join(10)
    assert not follower.is_alive()


def test_logs_as_text_go_on_from_an_offset(as_: Client, federation: Federation, talking: Talking) -> None:
    nlp = as_("nlp")
    made = nlp.post("/v1/jobs", json=job()).json()["id"]
    assert nlp.get(f"/v1/jobs/{made}/logs").status_code == 409
    attempt = federation.attempt(made)
    talking.chunks = [b"one\n", b"two\n"]
    answer = nlp.get(f"/v1/jobs/{made}/logs")
    assert (answer.text, answer.headers["Tidegate-Offset"]) == ("one\ntwo\n", "8")
    assert nlp.get(f"/v1/jobs/{made}/logs", params={"offset": 4, "rank": 3}).text == "two\n"
    assert talking.asked[-1] == (attempt, 3, 4, False)
    assert nlp.get(f"/v1/jobs/{made}/logs", params={"attempt": 7}).status_code == 404


def test_logs_as_a_stream_are_whole_lines_with_offsets_and_an_end(
    as_: Client, federation: Federation, talking: Talking
) -> None:
    nlp = as_("nlp")
    made = nlp.post("/v1/jobs", json=job()).json()["id"]
    federation.attempt(made)
    talking.chunks = [b"he", b"llo\nwo", b"rld\n", "naïve".encode()[:3], "naïve".encode()[3:], b""]
    with connect_sse(nlp, "GET", f"/v1/jobs/{made}/logs", params={"follow": "true"}) as source:
        found = [(e.event, e.id, e.data) for e in source.iter_sse()]
    texts = [httpx.Response(200, text=data).json().get("text") for kind, _, data in found if kind == "log"]
    assert texts == ["hello\n", "world\n", "naïve"]
    assert [event_id for kind, event_id, _ in found if kind == "log"] == ["6", "12", "18"]
    assert found[-1][0] == "end"


def test_a_dark_backend_is_503_and_tells_nothing(as_: Client, federation: Federation, talking: Talking) -> None:
    nlp = as_("nlp")
    made = nlp.post("/v1/jobs", json=job()).json()["id"]
    federation.attempt(made)
    talking.dark = True
    answer = nlp.get(f"/v1/jobs/{made}/logs")
    assert answer.status_code == 503
    assert "hidden" not in answer.text


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("plain\tline\n", "plain\tline\n"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0\x1b\\x", "x"),
        ("\x9b2Jx", "x"),
        ("bell\x07 back\x08space \x7f", "bell back" + "space "),
        ("10%\r20%\r\n", "10%\n20%\n"),
        ("\u202eevil\u202c", "evil"),
        ("\x1b", ""),
        ("\x1b(0lqk", "lqk"),
    ],
)
def test_no_control_sequence_reaches_a_terminal(raw: str, clean: str) -> None:
    assert shown(raw) == clean
