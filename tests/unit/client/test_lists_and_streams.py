"""Lists are walked page by page; streams go on where a connection broke and end when the job has."""

from collections import deque

import pytest

from tests.fakes.gate import FakeGate, Refuse, event
from tests.unit.client.conftest import TOKEN, Ask
from tidegate import Client
from tidegate.client import ProblemError, ProtocolError, WaitTimeoutError
from tidegate.client.errors import UnreachableError
from tidegate.client.watch import Watch
from tidegate.wire.enums import JobState

ENDED = {"state": "SUCCEEDED", "exit_code": 0}


def test_a_list_is_walked_over_all_its_pages(gate: FakeGate, ask: Ask) -> None:
    names = [f"job-{n}" for n in range(8)]
    for name in names:
        gate.add(name)
    found = ask("list", state=(JobState.QUEUED, JobState.RUNNING), label=("team=x",), tenant="acme", page_size=3)
    assert [job.name for job in found] == names
    first, second, third = gate.requests_to("GET", "/v1/jobs")
    assert first.query == {"state": ["QUEUED", "RUNNING"], "label": ["team=x"], "tenant": ["acme"], "limit": ["3"]}
    assert (second.query["cursor"], third.query["cursor"]) == (["3"], ["6"])


def test_pages_are_fetched_only_when_they_are_needed(gate: FakeGate) -> None:
    for n in range(8):
        gate.add(f"job-{n}")
    with Client(gate.url, TOKEN) as client:
        assert next(client.list()).name == "job-0"
    assert len(gate.seen) == 1


def test_events_go_on_where_the_connection_broke(gate: FakeGate, ask: Ask) -> None:
    job = gate.add(events=[event(n) for n in (3, 5, 9, 12)], states=deque([ENDED]))
    gate.cut_streams_after.extend([2, 1])
    assert [one.id for one in ask("events", job.id)] == [3, 5, 9, 12]
    streams = gate.requests_to("GET", f"/v1/jobs/{job.id}/events")
    assert [seen.header("Last-Event-ID") for seen in streams[:3]] == ["", "5", "9"]


def test_a_stream_that_closes_before_the_jobs_end_is_opened_again(gate: FakeGate, ask: Ask) -> None:
    """A server that restarts closes its streams in the regular way."""
    job = gate.add(events=[event(1)], states=deque([{"state": "RUNNING"}, {"state": "RUNNING"}, ENDED]))
    assert [one.id for one in ask("events", job.id)] == [1]
    assert len(gate.requests_to("GET", f"/v1/jobs/{job.id}/events")) >= 3


def test_a_stream_waits_for_a_gate_that_is_away(gate: FakeGate, ask: Ask) -> None:
    job = gate.add(events=[event(1)], states=deque([ENDED]))
    gate.fail(Refuse(503), Refuse(502))
    assert [one.id for one in ask("events", job.id)] == [1]


def test_a_stream_of_a_job_that_is_not_there_is_refused(gate: FakeGate, ask: Ask) -> None:
    gate.fail(Refuse(404, path="/events"))
    with pytest.raises(ProblemError):
        ask("events", "unknown")


def test_a_page_in_place_of_a_stream_is_no_reason_to_try_for_ever(gate: FakeGate, ask: Ask) -> None:
    gate.fail(Refuse(200, body=b"<html>", media_type="text/html"))
    with pytest.raises(ProtocolError, match="no stream"):
        ask("events", gate.add().id)


def test_logs_come_whole_over_broken_connections(gate: FakeGate, ask: Ask) -> None:
    text = "first\nsecond ñ\nthird\n"
    job = gate.add(logs={(1, 2): text}, states=deque([ENDED]))
    gate.cut_streams_after.extend([1, 1])
    pieces = ask("logs", job.id, rank=2, attempt=1, follow=True)
    assert "".join(piece.text for piece in pieces) == text
    assert pieces[-1].offset == len(text.encode())


def test_waiting_ends_with_the_job(gate: FakeGate, ask: Ask) -> None:
    job = gate.add(states=deque([{"state": "QUEUED"}, {"state": "RUNNING"}, {"state": "FAILED", "exit_code": 3}]))
    gate.fail(Refuse(503))
    found = ask("wait", job.id)
    assert (found.state, found.exit_code) == (JobState.FAILED, 3)


def test_waiting_is_bounded_and_leaves_the_job_alone(gate: FakeGate, ask: Ask) -> None:
    job = gate.add(states=deque([{"state": "RUNNING"}]))
    with pytest.raises(WaitTimeoutError, match="goes on"):
        ask("wait", job.id, timeout_s=0.2)
    assert not [seen for seen in gate.seen if seen.method != "GET"]


def test_a_watch_bears_a_dark_gate_for_minutes_and_a_refusal_not_at_all() -> None:
    now = [0.0]
    watch = Watch("j", clock=lambda: now[0])
    for _ in range(10):
        now[0] += 29
        watch.after_error(UnreachableError("dark"))
    watch.pause_s()
    now[0] += 1000
    watch.after_error(UnreachableError("dark again"))
    now[0] += 301
    with pytest.raises(UnreachableError):
        watch.after_error(UnreachableError("dark"))
