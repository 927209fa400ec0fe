"""The end of an attempt: once, exact, and with what it means for everybody else."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from gateway.ledger import leases
from gateway.ledger.codec import to_ms
from gateway.ledger.settlement import settle
from gateway.ledger.tables.work import AttemptRow, CheckpointRow, JobRow
from policies.vocabulary import Payer
from tests.builders.ledger import GPU, Try, World, gpus
from workflows.messages import EndRequest, Settled

HOUR = 3_600_000


def end(world: World, made: Try, reason: str, *, ended_ago_s: float | None = 0, **more: Any) -> Settled:
    with world.session() as session, session.begin():
        now: datetime = session.execute(text("SELECT now()")).scalar_one()
        ended = None if ended_ago_s is None else to_ms(now - timedelta(seconds=ended_ago_s))
        return settle(session, EndRequest(made.attempt_id, reason, ended_ms=ended, **more))


def preempt(world: World, made: Try, *, waiter: str, cause: str = "preempt", credit: bool = True) -> None:
    with world.session() as session, session.begin():
        session.execute(
            text(
                "UPDATE attempts SET stop_cause = :cause, stop_credit = :credit, stop_for = :waiter,"
                " stop_asked_at = now() WHERE id = :id"
            ),
            {"cause": cause, "credit": credit, "waiter": waiter, "id": made.attempt_id},
        )


def events(world: World, made: Try) -> list[tuple[str, str | None, str]]:
    with world.session() as session:
        rows = session.execute(
            text("SELECT kind, attempt_id, reason FROM events WHERE job_id = :id ORDER BY id"), {"id": made.job_id}
        )
        return [(row.kind, row.attempt_id, row.reason) for row in rows]


def near(value: int, wanted: int) -> bool:
    """Within two seconds of eight GPUs: the test's own time."""
    return abs(value - wanted) <= 16_000


def test_success_gives_everything_back_and_posts_what_was_used(world: World) -> None:
    root = world.tenant("acme", max_gpus=8)
    leaf = world.tenant("acme/nlp")
    made = world.admit(world.job(leaf), gpus(8), max_duration_ms=4 * HOUR)
    assert world.balance("gpu_time", root, "gpu_ms") == (0, 32 * HOUR)
    world.runs(made, for_s=450)
    assert end(world, made, "Completed", exit_code=0) == Settled(True, "SUCCEEDED", "SUCCEEDED")
    for tenant in (root, leaf):
        assert world.held(tenant) == 0
        posted, pending = world.balance("gpu_time", tenant, "gpu_ms")
        assert near(posted, HOUR)
        assert pending == 0
    attempt: AttemptRow = world.row(AttemptRow, made.attempt_id)
    assert near(attempt.gpu_ms, HOUR)
    assert world.lease(made).state == "posted"
    assert events(world, made)[-2:] == [("SUCCEEDED", made.attempt_id, "Completed"), ("SUCCEEDED", None, "Completed")]


def test_settling_twice_changes_nothing_the_second_time(world: World) -> None:
    tenant = world.tenant("acme")
    made = world.admit(world.job(tenant), gpus(2))
    world.runs(made, for_s=60)
    assert end(world, made, "Completed", exit_code=0).first
    before = (world.scalar("SELECT count(*) FROM entries"), events(world, made), world.lease(made).version)
    assert end(world, made, "NodeLost") == Settled(False, "SUCCEEDED", "SUCCEEDED")
    assert before == (world.scalar("SELECT count(*) FROM entries"), events(world, made), world.lease(made).version)


def test_ql_02_a_double_release_is_a_no_op(world: World) -> None:
    tenant = world.tenant("acme")
    j3 = world.admit(world.job(tenant), gpus(4))
    other = world.admit(world.job(tenant), gpus(4))
    for _ in range(2):
        with world.session() as session, session.begin():
            lease = leases.lock_for_end(session, other.attempt_id)
            assert lease is not None
            leases.release(session, lease, used_from=None, used_until=None, payer=Payer.TENANT)
    assert world.held(tenant) == 4
    assert world.lease(j3).state == "held"


def test_ql_06_i_five_preemptions_then_success_leave_the_retries_untouched(world: World) -> None:
    tenant = world.tenant("acme")
    job_id = world.job(tenant, retry_max=3)
    for _ in range(5):
        made = world.admit(job_id, gpus(1))
        world.runs(made, for_s=5)
        preempt(world, made, waiter="tg-waiter")
        assert end(world, made, "Preempted") == Settled(True, "PREEMPTED", "QUEUED")
    made = world.admit(job_id, gpus(1))
    world.runs(made, for_s=5)
    end(world, made, "Completed", exit_code=0)
    job: JobRow = world.row(JobRow, job_id)
    assert (job.state, job.failures, job.preemptions) == ("SUCCEEDED", 0, 5)


def test_ql_06_ii_early_deaths_are_charged_their_real_use(world: World) -> None:
    tenant = world.tenant("acme")
    tries = [world.admit(world.job(tenant), gpus(8), max_duration_ms=240 * 60_000) for _ in range(4)]
    assert world.balance("gpu_time", tenant, "gpu_ms") == (0, 128 * HOUR)
    for made in tries:
        world.runs(made, for_s=112.5)  # a quarter of a GPU-hour each
        end(world, made, "NonZeroExit", exit_code=1)
    posted, pending = world.balance("gpu_time", tenant, "gpu_ms")
    assert near(posted, HOUR)
    assert pending == 0


def test_ql_06_iii_what_is_not_known_is_not_refunded_until_it_is(world: World) -> None:
    tenant = world.tenant("acme")
    made = world.admit(world.job(tenant), gpus(8), max_duration_ms=4 * HOUR)
    world.runs(made, for_s=450)
    end(world, made, "Lost", ended_ago_s=None)
    assert world.held(tenant) == 0
    assert world.balance("gpu_time", tenant, "gpu_ms") == (0, 32 * HOUR)
    attempt: AttemptRow = world.row(AttemptRow, made.attempt_id)
    assert attempt.started_at is not None
    for _ in range(2):
        with world.session() as session, session.begin():
            leases.post_known_use(
                session,
                made.lease_id,
                used_from=attempt.started_at,
                used_until=attempt.started_at + timedelta(seconds=45),
                payer=Payer.TENANT,
            )
    assert world.balance("gpu_time", tenant, "gpu_ms") == (8 * 45_000, 0)


def test_ql_06_iv_an_overrun_is_charged_and_nothing_becomes_negative(world: World) -> None:
    tenant = world.tenant("acme")
    made = world.admit(world.job(tenant), gpus(8), max_duration_ms=1_000_000)
    world.runs(made, for_s=1_100)
    end(world, made, "TimeLimit")
    posted, pending = world.balance("gpu_time", tenant, "gpu_ms")
    assert near(posted, 8 * 1_100_000)
    assert pending == 0


def test_ql_06_v_placed_and_preempted_in_one_round_costs_and_earns_nothing(world: World) -> None:
    tenant = world.tenant("acme")
    made = world.admit(world.job(tenant), gpus(8))
    preempt(world, made, waiter="tg-waiter")
    assert end(world, made, "Preempted").attempt_state == "PREEMPTED"
    assert world.balance("gpu_time", tenant, "gpu_ms") == (0, 0)
    assert world.lease(made).state == "voided"
    assert world.scalar("SELECT count(*) FROM credits") == 0


def test_ql_06_vi_one_preemption_settled_twice_is_one_credit(world: World) -> None:
    tenant = world.tenant("acme")
    made = world.admit(world.job(tenant), gpus(8))
    world.runs(made, for_s=600)
    preempt(world, made, waiter="tg-waiter")
    end(world, made, "Preempted")
    end(world, made, "Preempted")
    assert world.scalar("SELECT count(*) FROM credits") == 1
    earned, _ = world.balance("credit", tenant, "gpu_ms")
    assert near(earned, 8 * 660_000)
    assert world.balance("issuance", None, "gpu_ms") == (-earned, 0)


def test_ql_06_vii_a_cancel_before_the_notice_earns_no_credit(world: World) -> None:
    tenant = world.tenant("acme")
    made = world.admit(world.job(tenant, want_cancel=True), gpus(8))
    world.runs(made, for_s=600)
    preempt(world, made, waiter="tg-waiter")
    assert end(world, made, "Preempted").job_state == "CANCELLED"
    assert world.scalar("SELECT count(*) FROM credits") == 0


@pytest.mark.parametrize(
    ("name", "count", "run_s", "saved_ago_s", "save_s", "restart_s", "wanted"),
    [
        ("X", 8, 7200, 3600, 0, 1800, 43_200_000),
        ("Y", 4, 7200, 300, 0, 600, 3_600_000),
        ("Z", 2, 300, None, 0, 900, 2_400_000),
        ("Y in grace", 4, 7200, 0, 120, 600, 2_880_000),
        ("no checkpoint", 8, 18_000, None, 0, 600, 33_600_000),
    ],
)
def test_credits_come_out_as_policies_8_says(  # noqa: PLR0917  (a row of the table is its arguments)
    world: World,
    name: str,
    count: int,
    run_s: int,
    saved_ago_s: int | None,
    save_s: int,
    restart_s: int,
    wanted: int,
) -> None:
    tenant = world.tenant("acme")
    made = world.admit(world.job(tenant), gpus(count), restart_ms=restart_s * 1000)
    world.runs(made, for_s=run_s)
    preempt(world, made, waiter="tg-waiter")
    with world.session() as session, session.begin():
        now: datetime = session.execute(text("SELECT now()")).scalar_one()
        if saved_ago_s is not None:
            session.add(
                CheckpointRow(
                    job_id=made.job_id,
                    attempt_number=1,
                    step=5,
                    url="s3://b/5",
                    verified=1,
                    save_ms=save_s * 1000,
                    at=now - timedelta(seconds=saved_ago_s),
                )
            )
        session.execute(
            text("UPDATE attempts SET noticed_at = :at, started_at = :started WHERE id = :id"),
            {
                "at": now - timedelta(seconds=save_s) if save_s else None,
                "started": now - timedelta(seconds=run_s),
                "id": made.attempt_id,
            },
        )
        session.execute(
            text("UPDATE leases SET created_at = :at WHERE id = :id"),
            {"at": now - timedelta(seconds=run_s), "id": made.lease_id},
        )
        settle(session, EndRequest(made.attempt_id, "Preempted", ended_ms=to_ms(now)))
    earned, _ = world.balance("credit", tenant, "gpu_ms")
    assert abs(earned - wanted) <= count, name  # the clock's fraction of a millisecond, on each GPU
    assert world.balance("issuance", None, "gpu_ms") == (-earned, 0)


def test_ql_04_a_waiters_share_is_held_the_moment_its_victim_leaves(world: World) -> None:
    root = world.tenant("acme", max_gpus=8)
    lender, borrower = world.tenant("acme/q1"), world.tenant("acme/q2")
    first, second = (world.admit(world.job(borrower), gpus(4)) for _ in range(2))
    for made in (first, second):
        world.runs(made, for_s=30)
    waiter = world.admit(world.job(lender), gpus(8), contingent_on=[first.attempt_id, second.attempt_id])
    assert world.lease(waiter).state == "contingent"
    preempt(world, first, waiter=waiter.attempt_id)
    end(world, first, "Preempted")

    again = world.job(borrower)
    refused: Callable[[], Try] = lambda: world.admit(again, gpus(1))  # noqa: E731
    with pytest.raises(leases.LimitExceeded):
        refused()
    assert world.balance("concurrency", lender, "accelerators") == (4 * GPU, 4 * GPU)
    assert world.lease(waiter).contingent_on == [second.attempt_id]

    end(world, second, "Preempted")
    assert world.lease(waiter).state == "held"
    assert world.balance("concurrency", root, "accelerators") == (8 * GPU, 0)
    assert world.scalar("SELECT count(*) FROM outbox WHERE kind = 'nudge' AND target = :a", a=waiter.attempt_id) == 1


def test_ql_04_a_waiter_that_leaves_frees_what_it_waited_for(world: World) -> None:
    world.tenant("acme", max_gpus=8)
    lender, borrower = world.tenant("acme/q1"), world.tenant("acme/q2")
    first, second = (world.admit(world.job(borrower), gpus(4)) for _ in range(2))
    waiter = world.admit(
        world.job(lender, want_cancel=True), gpus(8), contingent_on=[first.attempt_id, second.attempt_id]
    )
    for made in (first, second):
        world.runs(made, for_s=30)
        preempt(world, made, waiter=waiter.attempt_id)
    end(world, first, "Preempted")
    assert end(world, waiter, "UserCancelled") == Settled(True, "STOPPED", "CANCELLED")
    assert world.held(lender) == 0
    assert world.row(AttemptRow, second.attempt_id).stop_cause is None
    world.admit(world.job(borrower), gpus(4))


def test_what_one_victim_frees_is_promised_once(world: World) -> None:
    tenant = world.tenant("acme", max_gpus=8)
    victim = world.admit(world.job(tenant), gpus(4))
    world.admit(world.job(tenant), gpus(4))
    world.admit(world.job(tenant), gpus(4), contingent_on=[victim.attempt_id])
    with pytest.raises(leases.LimitExceeded):
        world.admit(world.job(tenant), gpus(4), contingent_on=[victim.attempt_id])


def test_a_waiter_that_is_itself_a_victim_frees_nothing(world: World) -> None:
    tenant = world.tenant("acme", max_gpus=8)
    victim = world.admit(world.job(tenant), gpus(8))
    waiter = world.admit(world.job(tenant), gpus(8), contingent_on=[victim.attempt_id])
    with pytest.raises(leases.LimitExceeded):
        world.admit(world.job(tenant), gpus(8), contingent_on=[waiter.attempt_id])


def test_a_retry_waits_and_the_last_failure_ends_the_job(world: World) -> None:
    tenant = world.tenant("acme")
    job_id = world.job(tenant, retry_max=1)
    made = world.admit(job_id, gpus(1))
    world.runs(made)
    assert end(world, made, "NonZeroExit", exit_code=3).job_state == "QUEUED"
    assert world.row(JobRow, job_id).not_before is not None
    made = world.admit(job_id, gpus(1))
    world.runs(made)
    assert end(world, made, "NonZeroExit", exit_code=3).job_state == "FAILED"
    job: JobRow = world.row(JobRow, job_id)
    assert (job.failures, job.exit_code, job.reason) == (2, 3, "NonZeroExit")
    assert job.pending is None


def test_a_lost_node_is_avoided_and_paid_by_the_platform(world: World) -> None:
    tenant = world.tenant("acme")
    job_id = world.job(tenant)
    made = world.admit(job_id, gpus(4))
    world.runs(made, for_s=100)
    assert end(world, made, "NodeLost", bad_nodes=["n7"]) == Settled(True, "REVOKED", "QUEUED")
    assert world.row(JobRow, job_id).request["avoid_nodes"] == ["n7"]
    assert world.balance("gpu_time", tenant, "gpu_ms") == (0, 0)
    assert near(world.balance("gpu_time", None, "gpu_ms")[0], 400_000)


def test_a_refused_launch_costs_nothing(world: World) -> None:
    tenant = world.tenant("acme")
    job_id = world.job(tenant)
    made = world.admit(job_id, gpus(4))
    assert end(world, made, "BackendRefused") == Settled(True, "REFUSED", "QUEUED")
    assert world.lease(made).state == "voided"
    assert world.balance("gpu_time", tenant, "gpu_ms") == (0, 0)


def test_an_array_ends_when_every_index_has_ended(world: World) -> None:
    tenant = world.tenant("acme")
    job_id = world.job(tenant, array_size=3, request={"array": {"max_failed": 1}})
    tries = [world.admit(job_id, gpus(1), chunk=n, first_index=n, last_index=n, number=1) for n in range(3)]
    for made in tries:
        world.runs(made)
    assert end(world, tries[0], "Completed", exit_code=0).job_state == "RUNNING"
    assert end(world, tries[1], "NonZeroExit", exit_code=2).job_state == "RUNNING"
    assert end(world, tries[2], "SpotRevoked").job_state == "QUEUED"
    last = world.admit(job_id, gpus(1), chunk=2, first_index=2, last_index=2, number=2)
    world.runs(last)
    assert end(world, last, "Completed", exit_code=0).job_state == "SUCCEEDED"
    job: JobRow = world.row(JobRow, job_id)
    assert (job.array_ended, job.array_failed) == (3, 1)


def test_money_follows_time_and_price(engine: Any) -> None:
    world = World(engine, price=2_000_000)
    tenant = world.tenant("acme")
    made = world.admit(world.job(tenant), gpus(8), max_duration_ms=HOUR)
    assert world.balance("money", tenant, "micro_usd", flavor="") == (0, 16_000_000)
    world.runs(made, for_s=1800)
    end(world, made, "Completed", exit_code=0)
    posted, pending = world.balance("money", tenant, "micro_usd", flavor="")
    assert abs(posted - 8_000_000) < 20_000
    assert pending == 0


def test_use_is_clamped_to_the_lease_and_never_negative(world: World) -> None:
    tenant = world.tenant("acme")
    made = world.admit(world.job(tenant), gpus(8))
    world.runs(made, for_s=10)
    end(world, made, "Completed", exit_code=0, ended_ago_s=3600)
    assert world.balance("gpu_time", tenant, "gpu_ms") == (0, 0)


def test_the_attempts_token_dies_with_it(world: World) -> None:
    tenant = world.tenant("acme")
    made = world.admit(world.job(tenant), gpus(1))
    with world.session() as session, session.begin():
        session.execute(
            text(
                "INSERT INTO tokens (id, digest, tenant_id, principal, role, attempt_id)"
                " VALUES (gen_random_uuid(), 'x', :tenant, 'job', 1, :attempt)"
            ),
            {"tenant": tenant, "attempt": made.attempt_id},
        )
    end(world, made, "Completed", exit_code=0)
    assert world.scalar("SELECT count(*) FROM tokens WHERE revoked_at IS NULL") == 0


def test_who_is_preempted_more_often_than_k_times_gets_the_bonus(world: World) -> None:
    tenant = world.tenant("acme")
    job_id = world.job(tenant)
    bonuses = []
    for _ in range(5):
        made = world.admit(job_id, gpus(1))
        world.runs(made, for_s=100)
        preempt(world, made, waiter="tg-waiter")
        end(world, made, "Preempted")
        bonuses.append(
            world.scalar(
                "SELECT (terms->>'bonus_gpu_ms')::bigint FROM credits WHERE victim_attempt = :id", id=made.attempt_id
            )
        )
    assert bonuses[:3] == [0, 0, 0]
    assert all(bonus > 0 for bonus in bonuses[3:])
