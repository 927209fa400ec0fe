"""Attempt rows as workflows see them, so that a test names only what it is about."""

from dataclasses import replace
from typing import Any

from workflows.messages import AttemptView, GroupSeen

NOW_MS = 1_000_000_000
ID = "tg-0123456789abcdef0123456789abcdef-1"


def a_part(backend: str = "one", phase: str = "Running", **changes: Any) -> GroupSeen:
    """What was seen at one backend: it came up ten seconds ago, unless said otherwise."""
    part = GroupSeen(backend, phase, as_of_ms=NOW_MS, sequence=1)
    if phase in {"Running", "Ended"}:
        part = replace(part, started_ms=NOW_MS - 10_000)
    if phase == "Ended":
        part = replace(part, ended_ms=NOW_MS - 1_000, cause="Completed", exit_code=0)
    return replace(part, **changes)


def a_view(state: str = "RUNNING", *parts: GroupSeen, **changes: Any) -> AttemptView:
    """An attempt at one backend `one`, prepared and started from PENDING on."""
    begun = state != "RESERVED"
    backends = changes.pop("backends", ["one"])
    view = AttemptView(
        attempt_id=ID,
        job_id="0123456789abcdef0123456789abcdef",
        number=1,
        state=state,
        version=1,
        now_ms=NOW_MS,
        backends=backends,
        prepared=list(backends) if begun else [],
        started=list(backends) if begun else [],
        seen=list(parts),
        created_ms=NOW_MS - 60_000,
        pending_ms=NOW_MS - 50_000 if begun else None,
        started_ms=NOW_MS - 10_000 if state in {"RUNNING", "STOPPING", "CHECKPOINTING"} else None,
    )
    return replace(view, **changes)


def stopping(cause: str, *parts: GroupSeen, told_s_ago: int = 1, **changes: Any) -> AttemptView:
    """An attempt that was told to go `told_s_ago` seconds ago, with a grace of 30 s and 60 s to recover."""
    told = {
        "stop_cause": cause,
        "stop_sent": True,
        "stop_grace_s": 30,
        "recovery_s": 60,
        "stop_asked_ms": NOW_MS - told_s_ago * 1000,
        "stopping_ms": NOW_MS - told_s_ago * 1000,
    }
    return a_view("STOPPING", *parts, **{**told, **changes})
