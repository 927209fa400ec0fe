"""The state tables walked pair by pair, and the reason tables for totality."""

from collections.abc import Mapping
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from policies.reasons import CAUSES, VERDICTS, verdict
from policies.states import (
    ATTEMPT_EDGES,
    JOB_EDGES,
    LEASE_EDGES,
    LIVE_ATTEMPT_STATES,
    LIVE_JOB_STATES,
    LIVE_LEASE_STATES,
    IllegalTransitionError,
    predecessors,
    transition,
)
from policies.states_page import page
from policies.vocabulary import AttemptState, JobState, LeaseState, Payer, Reason, RetryClass, StopCause

ROOT = Path(__file__).parents[3]
TABLES: list[tuple[type[StrEnum], Mapping[Any, frozenset[Any]]]] = [
    (JobState, JOB_EDGES),
    (AttemptState, ATTEMPT_EDGES),
    (LeaseState, LEASE_EDGES),
]
PAIRS = [(edges, a, b) for states, edges in TABLES for a, b in product(states, repeat=2)]


@pytest.mark.parametrize(("edges", "current", "to"), PAIRS, ids=lambda v: str(v) if isinstance(v, StrEnum) else "")
def test_every_pair_is_an_edge_or_is_refused(edges: Mapping[Any, frozenset[Any]], current: Any, to: Any) -> None:
    if to in edges[current]:
        assert transition(edges, current, to) is to
        assert current in predecessors(edges, to)
    else:
        with pytest.raises(IllegalTransitionError, match=f"{current} may not become {to}"):
            transition(edges, current, to)
        assert current not in predecessors(edges, to)


@pytest.mark.parametrize(("states", "edges"), TABLES, ids=["job", "attempt", "lease"])
def test_the_tables_are_total_and_no_state_follows_itself(states: Any, edges: Mapping[Any, frozenset[Any]]) -> None:
    assert set(edges) == set(states)
    assert all(state not in after for state, after in edges.items())


@pytest.mark.parametrize(("states", "edges"), TABLES, ids=["job", "attempt", "lease"])
def test_every_live_state_reaches_an_end_and_every_state_is_reachable(
    states: Any, edges: Mapping[Any, frozenset[Any]]
) -> None:
    ends = {state for state, after in edges.items() if not after}
    for state in states:
        reached, ahead = set(), [state]
        while ahead:
            here = ahead.pop()
            reached.add(here)
            ahead += [to for to in edges[here] if to not in reached]
        assert reached & ends
    begun = {next(iter(edges))}
    assert {to for after in edges.values() for to in after} | begun == set(states)


def test_live_states_are_those_with_a_way_on() -> None:
    assert {JobState.QUEUED, JobState.ADMITTED, JobState.RUNNING, JobState.STOPPING} == LIVE_JOB_STATES
    assert len(LIVE_ATTEMPT_STATES) == 5
    assert {LeaseState.CONTINGENT, LeaseState.HELD} == LIVE_LEASE_STATES


def test_a_job_never_ends_as_preempted() -> None:
    assert not {"PREEMPTED", "REVOKED", "LOST"} & {state.value for state in JobState}


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_row_that_its_tables_allow(reason: Reason) -> None:
    row = verdict(reason)
    assert row.words
    assert not JOB_EDGES[row.job]
    if row.attempt is None:
        assert row.job is JobState.REJECTED
        assert row.payer is Payer.NOBODY
        return
    assert not ATTEMPT_EDGES[row.attempt]
    assert any(row.attempt in ATTEMPT_EDGES[live] for live in LIVE_ATTEMPT_STATES)


@pytest.mark.parametrize("reason", [r for r in Reason if VERDICTS[r].attempt in {"PREEMPTED", "REVOKED", "RESIZED"}])
def test_what_was_taken_away_never_counts_as_the_users_failure(reason: Reason) -> None:
    assert verdict(reason).retry in {RetryClass.REQUEUE, RetryClass.INFRASTRUCTURE}


def test_only_our_own_preemptions_may_earn_credit() -> None:
    assert {reason for reason in Reason if verdict(reason).credit} == {Reason.PREEMPTED, Reason.MOVED}


def test_every_cause_of_a_stop_has_a_reason() -> None:
    assert set(CAUSES) == set(StopCause)
    assert set(VERDICTS) == set(Reason)


def test_the_page_of_states_is_current() -> None:
    assert (ROOT / "docs" / "STATES.md").read_text() == page(), "write it anew: see policies/states_page.py"
