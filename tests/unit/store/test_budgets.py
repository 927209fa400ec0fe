"""What a budget does to a job: it waits with numbers and a way out, stands in nobody's way, and runs when it may."""

from typing import Any

from gateway.ledger.check import check
from gateway.ledger.meter import GPU_MS, HOUR_MS, MICRO_USD
from policies.plan import plan
from policies.settings import PolicySettings
from policies.vocabulary import AttemptState, Reason, StopCause
from tests.unit.store.world import Gate, live, rows, scalar, write


def a_cycle(gate: Gate) -> Any:
    """One cycle of the live plan; what the commit reports."""
    cycle = gate.store.cycle()
    return gate.store.commit(gate.store.take_epoch("test"), cycle, plan(cycle.snapshot, PolicySettings(), cycle.now_ms))


def test_a_job_that_no_budget_pays_for_is_told_whose_budget_how_much_and_what_helps(gate: Gate) -> None:
    gate.tenant("acme")
    gate.tenant("acme/nlp")
    gate.world.budget(gate.tenants["acme"], GPU_MS, 10 * HOUR_MS)
    running = gate.submit("acme/nlp", max_duration="2h")  # 4 cards
    a_cycle(gate)
    job = gate.submit("acme/nlp", max_duration="1h")
    a_cycle(gate)
    pending = gate.job(job).pending
    assert gate.job(running).state == "ADMITTED"
    assert pending["token"] == "BudgetExhausted"
    assert pending["blocker"] == "acme"
    told = {name: pending["numbers"][name] for name in ("tenant", "resource", "limit", "spent", "used", "asked")}
    assert told == {
        "tenant": "acme",
        "resource": GPU_MS,
        "limit": 10 * HOUR_MS,
        "spent": 0,
        "used": 8 * HOUR_MS,
        "asked": 4 * HOUR_MS,
    }
    for word in ("is 10.00 GPU-hours", "4.00 GPU-hours that this job asks", "next period begins at", "max_duration"):
        assert word in pending["remedy"]


def test_a_budget_in_dollars_is_told_in_dollars(gate: Gate) -> None:
    gate.tenant("acme")
    gate.world.budget(gate.tenants["acme"], MICRO_USD, 7_500_000)
    job = gate.submit("acme", max_duration="1h")  # 4 cards of two dollars
    a_cycle(gate)
    assert "the budget of acme is 7.50 dollars" in gate.job(job).pending["remedy"]
    assert gate.job(job).pending["numbers"]["asked"] == 8_000_000


def test_a_job_without_a_budget_takes_no_room_in_the_plan_from_one_that_can_run(gate: Gate) -> None:
    """Both ask for all sixteen cards; the first one came first and cannot pay."""
    gate.tenant("poor")
    gate.tenant("rich")
    gate.world.budget(gate.tenants["poor"], GPU_MS, HOUR_MS)
    first = gate.submit("poor", resources={"accelerators": "H100:8"}, num_nodes=2, max_duration="1h")
    second = gate.submit("rich", resources={"accelerators": "H100:8"}, num_nodes=2, max_duration="1h")
    a_cycle(gate)  # in this one the ledger says no
    assert gate.job(first).pending["token"] == "BudgetExhausted"
    a_cycle(gate)
    assert gate.job(second).state == "ADMITTED"
    assert gate.job(first).pending["token"] == "BudgetExhausted"


def test_it_runs_in_the_cycle_after_the_budget_was_raised_or_its_period_is_over(gate: Gate) -> None:
    gate.tenant("acme")
    gate.world.budget(gate.tenants["acme"], GPU_MS, HOUR_MS)
    job = gate.submit("acme", max_duration="1h")
    a_cycle(gate)
    a_cycle(gate)
    assert gate.job(job).state == "QUEUED"
    write(gate.engine, "UPDATE budgets SET amount = :amount", amount=4 * HOUR_MS)
    a_cycle(gate)
    assert gate.job(job).state == "ADMITTED"

    gate.runs(gate.attempt(job))
    gate.ends(gate.attempt(job))
    write(gate.engine, "UPDATE budgets SET spent_before = -CAST(:hour AS bigint)", hour=HOUR_MS)
    again = gate.submit("acme", max_duration="1h")
    a_cycle(gate)
    assert gate.job(again).pending["token"] == "BudgetExhausted"
    write(gate.engine, "UPDATE budgets SET period_started_at = now() - interval '31 days'")
    a_cycle(gate)
    assert gate.job(again).state == "ADMITTED"


def test_a_shorter_duration_is_another_question(gate: Gate) -> None:
    gate.tenant("acme")
    gate.world.budget(gate.tenants["acme"], GPU_MS, HOUR_MS)
    job = gate.submit("acme", max_duration="1h")
    a_cycle(gate)
    assert gate.job(job).pending["token"] == "BudgetExhausted"
    write(
        gate.engine,
        "UPDATE jobs SET request = request || '{\"max_duration_ms\": 900000}', version = version + 1 WHERE id = :job",
        job=job,
    )
    a_cycle(gate)
    assert gate.job(job).state == "ADMITTED"


def test_a_refused_renewal_gives_notice_and_grace_and_ends_in_the_queue_as_budget_exhausted(gate: Gate) -> None:
    """DESIGN §6: notice, grace, QUEUED(BudgetExhausted); then it waits like any job that cannot pay."""
    gate.tenant("acme")
    gate.world.budget(gate.tenants["acme"], GPU_MS, 5 * HOUR_MS)
    job = gate.submit("acme", grace="90s")  # 4 cards and no max_duration: an hour at a time
    a_cycle(gate)
    attempt = gate.attempt(job)
    gate.runs(attempt)
    write(gate.engine, "UPDATE leases SET created_at = created_at - interval '55 minutes'")
    write(gate.engine, "UPDATE leases SET covers_until = covers_until - interval '55 minutes'")
    write(gate.engine, "UPDATE attempts SET started_at = started_at - interval '55 minutes'")
    gate.store.accrue()

    refused = rows(gate.engine, "SELECT reason, data FROM events WHERE kind = 'RenewalRefused'")
    assert len(refused) == 1
    assert "the budget of acme is 5.00 GPU-hours" in refused[0].reason
    assert (refused[0].data["tenant"], refused[0].data["limit"]) == ("acme", 5 * HOUR_MS)
    row = rows(gate.engine, "SELECT stop_cause, stop_grace_s FROM attempts")[0]
    assert (row.stop_cause, row.stop_grace_s) == (StopCause.BUDGET, 90)
    assert attempt in gate.outbox("nudge")

    gate.store.stop_sent(attempt)
    settled = gate.ends(attempt, Reason.BUDGET_EXHAUSTED, None)
    assert settled.job_state == "QUEUED"
    assert scalar(gate.engine, "SELECT state FROM attempts") == AttemptState.STOPPED
    assert gate.job(job).reason == "BudgetExhausted"
    assert gate.job(job).failures == 0
    a_cycle(gate)
    assert gate.job(job).pending["token"] == "BudgetExhausted"
    assert gate.job(job).pending["numbers"]["spent"] > 3 * HOUR_MS
    assert check(gate.engine) == []


def test_a_waiter_that_cannot_pay_stops_no_victim(gate: Gate) -> None:
    gate.tenant("acme")
    gate.tenant("rich")
    gate.world.budget(gate.tenants["acme"], GPU_MS, HOUR_MS)
    gate.world.allowance(gate.tenants["acme"], "P0", gpu_hours=1000)
    write(gate.engine, "UPDATE pools SET place_first = true, places_nodes = true")
    victims = [gate.submit("rich", resources={"accelerators": "H100:8"}) for _ in range(2)]
    a_cycle(gate)
    for victim in victims:
        gate.runs(gate.attempt(victim))
    job = gate.submit("acme", priority="P0", resources={"accelerators": "H100:8"}, max_duration="1h")
    for _ in range(2):
        a_cycle(gate)
    assert gate.job(job).pending["token"] == "BudgetExhausted"
    cycle = gate.store.cycle()
    assert all(live(cycle, gate.attempt(victim)).stopping is None for victim in victims)
