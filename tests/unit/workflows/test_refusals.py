"""From an error of the port to what the workflow does about it: who waits, and for whom a pool closes."""

from backends.errors import Misconfigured, TenantNotServed
from policies.vocabulary import Reason
from tests.builders.attempts import a_view
from workflows.activities.acting import outcome, rest
from workflows.decide import after_refusal
from workflows.steps import AbortAll


def test_a_tenant_that_is_not_served_makes_its_job_stay_away_and_closes_no_pool() -> None:
    error = TenantNotServed("one serves another tenant; name both in trust_below")
    assert rest(error) is None
    refusal = outcome("one", error, None).refusal
    assert refusal is not None
    step = after_refusal(a_view("PENDING", prepared=[], started=[]), refusal)
    assert isinstance(step, AbortAll)
    assert (step.end.reason, step.end.refused_by) == (Reason.BACKEND_REFUSED, "one")
    assert step.end.message == f"Misconfigured: {error}"
    assert not step.rest


def test_what_is_misconfigured_for_everybody_closes_the_pool_and_no_job_has_to_remember_it() -> None:
    error = Misconfigured("one: the token has expired; give a new one")
    assert rest(error) == (300, "Misconfigured")
    refusal = outcome("one", error, None).refusal
    assert refusal is not None
    step = after_refusal(a_view("PENDING", prepared=[], started=[]), refusal)
    assert isinstance(step, AbortAll)
    assert step.end.refused_by == ""
