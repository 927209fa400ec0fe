"""What the workflows of a waiter, and of an attempt whose place waits for it elsewhere, do until they may start."""

from policies.vocabulary import Reason
from tests.builders.attempts import NOW_MS, a_view
from workflows.decide import REREAD_S, after_refusal, next_step
from workflows.messages import Refusal
from workflows.steps import AbortAll, Launch, Prepare, Wait


def test_a_waiter_that_is_not_placed_in_time_gives_up_and_its_pool_rests() -> None:
    more = {"lease_state": "contingent", "started": [], "prepared": [], "pending_ms": NOW_MS - 50_000}
    assert isinstance(next_step(a_view("PENDING", place_timeout_s=51, **more)), Prepare)
    step = next_step(a_view("PENDING", place_timeout_s=50, pools={"one": ["p1"]}, **more))
    assert isinstance(step, AbortAll)
    assert (step.end.reason, step.rest) == (Reason.BACKEND_WAIT_TIMEOUT, ["p1"])
    placed = {**more, "prepared": ["one"]}
    assert isinstance(next_step(a_view("PENDING", place_timeout_s=50, **placed)), Wait)


def test_a_waiter_whose_promise_is_void_takes_away_what_was_made() -> None:
    given_up = a_view("PENDING", lease_state="voided", started=[], prepared=["one"])
    assert isinstance(next_step(given_up), AbortAll)


def test_nothing_is_given_up_before_it_was_tried() -> None:
    """Its workflow was late: the time to place it begins with the first try."""
    late = a_view("RESERVED", lease_state="contingent", started=[], prepared=[], pending_ms=None, created_ms=1)
    assert isinstance(next_step(late), Prepare)


def test_a_refused_waiter_goes_back_with_the_backends_reason() -> None:
    waiter = a_view("PENDING", lease_state="contingent", started=[], prepared=[])
    step = after_refusal(waiter, Refusal("one", "NoCapacity", "full", no_room=True))
    assert isinstance(step, AbortAll)
    assert (step.end.reason, step.end.message, step.end.no_room) == (Reason.BACKEND_REFUSED, "NoCapacity: full", True)


def test_what_is_moved_is_prepared_and_launched_once_the_other_has_ended() -> None:
    """Prepared before, it would resume from an older checkpoint than the one that is about to be saved."""
    moved: dict[str, list[str]] = {"started": [], "prepared": []}
    assert next_step(a_view("RESERVED", lease_state="contingent", follows="going", **moved)) == Wait(REREAD_S)
    assert isinstance(next_step(a_view("RESERVED", lease_state="held", **moved)), Launch)


def test_a_move_that_was_called_off_ends_the_attempt_that_was_to_follow() -> None:
    stays = a_view("RESERVED", lease_state="contingent", follows="stays", started=[], prepared=[])
    step = next_step(stays)
    assert isinstance(step, AbortAll)
    assert step.end.reason == Reason.GANG_ROLLED_BACK
