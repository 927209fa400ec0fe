"""What the workflows of a victim and of a waiter do once a P0 has taken over their preemption."""

from policies.vocabulary import Reason
from tests.builders.attempts import a_part, a_view
from workflows.decide import next_step
from workflows.steps import AbortAll, SendStop


def test_a_grace_that_was_cut_after_the_notice_is_told_again() -> None:
    """A P0 has shortened a stop that went out already: the row says that it was not sent, whatever the state says."""
    cut = a_view("STOPPING", a_part(stop_confirmed=True), stop_cause="preempt", stop_grace_s=0, stop_sent=False)
    step = next_step(cut)
    assert isinstance(step, SendStop)
    assert (step.mode, step.grace_s, step.kind) == ("kill", 0, "preempt")


def test_a_displaced_waiter_takes_away_what_was_prepared() -> None:
    gone = a_view("PENDING", a_part("one", "Prepared"), lease_state="voided", stop_cause="preempt", started=[])
    step = next_step(gone)
    assert isinstance(step, AbortAll)
    assert step.end.reason == Reason.PREEMPTED
