"""A job's whole way through the store by hand, and what a commit does when the world has moved on."""

import hashlib

import pytest
from sqlalchemy.orm import Session

from gateway.ledger import progress, wishes
from gateway.ledger.archive import load
from gateway.ledger.engine import in_transaction
from policies.decisions import Act, Reject, Wait, Why
from policies.vocabulary import AttemptState, Pending, Reason, StopCause
from tests.unit.store.world import Gate, a_preempt, an_admit, queued, rows, scalar, write
from workflows.store import FencedError


def test_a_job_lives_from_submit_to_its_end(gate: Gate) -> None:
    gate.tenant("acme", max_gpus=8)
    job = gate.submit("acme", env={"A": "b c"}, max_duration="1h")
    gate.store.take_epoch("me")
    attempt = gate.admit(job)
    assert gate.job(job).state == "ADMITTED"
    assert gate.outbox("start") == [attempt]

    item = gate.store.claim_outbox(10)[0]
    assert (item.kind, item.target) == ("start", attempt)
    gate.store.outbox_done([item.id])

    view = gate.store.load_attempt(attempt)
    assert view is not None
    assert (view.state, view.backends, view.lease_state, view.max_duration_s) == ("RESERVED", ["b"], "held", 3600)
    assert gate.store.mark(attempt, AttemptState.PENDING)
    assert not gate.store.mark(attempt, AttemptState.PENDING)

    request = gate.store.launch_request(attempt, "b")
    assert request.env == {"A": "b c"}
    assert request.groups[0].nodes == ("n1",)
    assert request.groups[0].command == ("/bin/sh", "-c", "python train.py")
    assert request.token is not None
    digest = hashlib.sha256(request.token.reveal().encode()).digest()
    assert scalar(gate.engine, "SELECT attempt_id FROM tokens WHERE digest = :digest", digest=digest) == attempt

    gate.store.prepared(attempt, "b", "native/1")
    gate.store.started(attempt, "b")
    gate.store.started(attempt, "b")
    gate.store.mark(attempt, AttemptState.RUNNING)
    view = gate.store.load_attempt(attempt)
    assert view is not None
    assert (view.prepared, view.started, view.handles) == (["b"], ["b"], {"b": "native/1"})
    assert gate.job(job).state == "RUNNING"
    assert [one.attempt_id for one in gate.store.live_attempts("b")] == [attempt]
    assert gate.world.held(gate.tenants["acme"]) == 4

    settled = gate.ends(attempt)
    assert (settled.first, settled.attempt_state, settled.job_state) == (True, "SUCCEEDED", "SUCCEEDED")
    assert not gate.ends(attempt).first
    assert gate.world.held(gate.tenants["acme"]) == 0
    assert gate.store.live_attempts("") == ()
    kinds = [row.kind for row in rows(gate.engine, "SELECT kind FROM events ORDER BY id")]
    assert kinds == ["QUEUED", "ADMITTED", "RESERVED", "PENDING", "RUNNING", "RUNNING", "SUCCEEDED", "SUCCEEDED"]
    assert scalar(gate.engine, "SELECT count(*) FROM tokens WHERE revoked_at IS NULL") == 0
    with pytest.raises(LookupError):
        gate.store.launch_request(attempt, "b")


def test_ql_02_a_fenced_arbiter_commits_nothing(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme")
    old = gate.store.take_epoch("old")
    cycle = gate.store.cycle()
    new = gate.store.take_epoch("new")
    assert new > old
    with pytest.raises(FencedError):
        gate.commit(cycle, Act(admits=(an_admit(cycle, job),)), epoch=old)
    with pytest.raises(FencedError):
        gate.store.beat(old)
    assert gate.job(job).state == "QUEUED"
    assert scalar(gate.engine, "SELECT count(*) FROM attempts") == 0
    assert gate.commit(cycle, Act(admits=(an_admit(cycle, job),)), epoch=new).admitted == (job,)


def test_a_stale_version_drops_that_act_only(gate: Gate) -> None:
    gate.tenant("acme")
    changed, same = gate.submit("acme"), gate.submit("acme")
    gate.store.take_epoch("me")
    cycle = gate.store.cycle()
    gate.wish(wishes.update, changed, labels={"a": "b"})
    report = gate.commit(
        cycle, Act(admits=(an_admit(cycle, changed),)), Act(admits=(an_admit(cycle, same, node="n2"),))
    )
    assert report.admitted == (same,)
    assert report.dropped == {changed: "Stale"}
    assert gate.job(changed).state == "QUEUED"
    assert gate.commit(cycle).dropped == {}


def test_an_act_holds_whole_or_not_at_all(gate: Gate) -> None:
    gate.tenant("acme")
    victim_job, waiter = gate.submit("acme"), gate.submit("acme")
    gate.store.take_epoch("me")
    victim = gate.admit(victim_job)
    gate.runs(victim)
    cycle = gate.store.cycle()
    gate.ends(victim)
    act = Act(admits=(an_admit(cycle, waiter, victims=(victim,)),), preempts=(a_preempt(cycle, victim, waiter),))
    report = gate.commit(cycle, act)
    assert report.admitted == report.preempted == ()
    assert report.dropped == {waiter: "Stale", victim: "Stale"}
    assert gate.job(waiter).attempts == 0
    assert gate.world.held(gate.tenants["acme"]) == 0


def test_ql_01_a_burst_of_admissions_never_passes_the_limit(gate: Gate) -> None:
    gate.tenant("acme", max_gpus=10)
    jobs = [gate.submit("acme") for _ in range(5)]
    gate.store.take_epoch("me")
    cycle = gate.store.cycle()
    report = gate.commit(cycle, *(Act(admits=(an_admit(cycle, job, gpus=3),)) for job in jobs))
    assert report.admitted == tuple(jobs[:3])
    assert report.dropped == dict.fromkeys(jobs[3:], "TenantLimit")
    assert gate.world.held(gate.tenants["acme"]) == 9
    assert gate.job(jobs[4]).pending["token"] == "TenantLimit"
    again = gate.store.cycle()
    repeated = gate.commit(again, Act(admits=(an_admit(again, jobs[4], gpus=3),)))
    assert repeated.waits_written == 0


def test_waits_are_written_only_when_their_token_or_blocker_changes(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme")
    gate.store.take_epoch("me")

    def wait(blocker: str) -> int:
        cycle = gate.store.cycle()
        version = queued(cycle, job).version
        one = Wait(job, version, Pending.WAITING_FOR_CAPACITY, Why("WaitingForCapacity", {"n": 1}), blocker, 1000)
        return gate.commit(cycle, waits=(one,)).waits_written

    assert [wait("x"), wait("x"), wait("y")] == [1, 0, 1]
    assert gate.job(job).pending["blocker"] == "y"
    assert gate.job(job).pending["starts_at"] == "1970-01-01T00:00:01+00:00"
    assert scalar(gate.engine, "SELECT count(*) FROM decisions WHERE kind = 'Wait'") == 2
    assert scalar(gate.engine, "SELECT count(*) FROM snapshots") == 2


def test_a_decision_can_be_read_with_the_snapshot_it_rested_on(gate: Gate) -> None:
    gate.tenant("acme", max_gpus=12, min_gpus=4)
    jobs = [gate.submit("acme") for _ in range(3)]
    gate.store.take_epoch("me")
    seen = []
    for job in jobs[:2]:
        cycle = gate.store.cycle()
        gate.commit(cycle, Act(admits=(an_admit(cycle, job),)))
        seen.append(cycle.snapshot)
    found = rows(gate.engine, "SELECT snapshot, policy FROM decisions WHERE kind = 'Admit' ORDER BY id")
    assert [row.policy for row in found] == ["by-hand", "by-hand"]
    assert scalar(gate.engine, "SELECT count(*) FROM snapshots WHERE base IS NOT NULL") == 1
    for row, snapshot in zip(found, seen, strict=True):
        with Session(gate.engine) as session:
            loaded = load(session, row.snapshot)
        for section in ("queued", "live", "quotas", "usages", "pools", "tenants", "flavors"):
            assert sorted(getattr(loaded, section), key=repr) == sorted(getattr(snapshot, section), key=repr)
    write(gate.engine, "UPDATE snapshots SET data = data || '{\"x\": 1}' WHERE base IS NULL")
    with Session(gate.engine) as session, pytest.raises(LookupError, match="changed"):
        load(session, found[1].snapshot)


def test_a_reject_ends_the_job_with_its_reason(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme")
    gate.store.take_epoch("me")
    cycle = gate.store.cycle()
    reject = Reject(job, queued(cycle, job).version, Reason.QUEUE_SLO, Why("QueueSlo", remedy="raise sla.max_queue"))
    assert gate.commit(cycle, rejects=(reject,)).rejected == (job,)
    row = gate.job(job)
    assert (row.state, row.reason, row.message) == ("REJECTED", "QueueSlo", "raise sla.max_queue")
    assert gate.commit(cycle, rejects=(reject,)).dropped == {job: "Stale"}


def test_ql_04_what_a_victim_frees_is_kept_for_the_waiter(gate: Gate) -> None:
    gate.tenant("org", max_gpus=8)
    gate.tenant("org/q1", min_gpus=8)
    gate.tenant("org/q2")
    first, second = gate.submit("org/q2"), gate.submit("org/q2")
    gate.store.take_epoch("me")
    victims = (gate.admit(first), gate.admit(second))
    for victim in victims:
        gate.runs(victim)
    waiter = gate.submit("org/q1", resources={"accelerators": "H100:8"})
    cycle = gate.store.cycle()
    report = gate.commit(
        cycle,
        Act(
            admits=(an_admit(cycle, waiter, gpus=8, victims=victims),),
            preempts=tuple(a_preempt(cycle, victim, waiter) for victim in victims),
        ),
    )
    assert (report.admitted, report.preempted) == ((waiter,), victims)
    attempt = gate.attempt(waiter)
    assert gate.job(waiter).pending["token"] == "WaitingForPreemption"
    gate.is_placed(attempt)
    view = gate.store.load_attempt(victims[0])
    assert view is not None
    assert (view.stop_cause, view.stop_grace_s, view.stop_sent) == ("preempt", 300, False)

    for victim in victims:
        gate.store.stop_sent(victim)
    assert gate.ends(victims[0], Reason.PREEMPTED, 75).job_state == "QUEUED"
    view = gate.store.load_attempt(attempt)
    assert view is not None
    assert (view.lease_state, view.place_first) == ("contingent", True)
    cycle = gate.store.cycle()
    back = gate.commit(cycle, Act(admits=(an_admit(cycle, first),)))
    assert back.dropped == {first: "TenantLimit"}  # the freed four are the waiter's, nobody ever sees them free

    gate.ends(victims[1], Reason.PREEMPTED, 75)
    view = gate.store.load_attempt(attempt)
    assert view is not None
    assert (view.lease_state, view.place_first) == ("held", False)
    assert attempt in gate.outbox("nudge")
    assert scalar(gate.engine, "SELECT count(*) FROM attempts WHERE state = 'PREEMPTED'") == 2
    assert gate.job(first).preemptions == 1
    assert gate.job(first).failures == 0


def test_ql_04_second_run_the_waiter_is_cancelled_and_the_untold_victim_is_spared(gate: Gate) -> None:
    gate.tenant("org", max_gpus=8)
    gate.tenant("org/q1")
    gate.tenant("org/q2")
    first, second = gate.submit("org/q2"), gate.submit("org/q2")
    gate.store.take_epoch("me")
    told, untold = gate.admit(first), gate.admit(second)
    gate.runs(told)
    gate.runs(untold)
    waiter = gate.submit("org/q1", resources={"accelerators": "H100:8"})
    cycle = gate.store.cycle()
    gate.commit(
        cycle,
        Act(
            admits=(an_admit(cycle, waiter, gpus=8, victims=(told, untold)),),
            preempts=(a_preempt(cycle, told, waiter), a_preempt(cycle, untold, waiter)),
        ),
    )
    gate.is_placed(gate.attempt(waiter))
    gate.store.stop_sent(told)
    gate.ends(told, Reason.PREEMPTED, 75)
    gate.wish(wishes.cancel, waiter)
    view = gate.store.load_attempt(untold)
    assert view is not None
    assert (view.state, view.stop_cause) == ("RUNNING", "")
    settled = gate.ends(gate.attempt(waiter), Reason.USER_CANCELLED, None)
    assert settled.job_state == "CANCELLED"
    assert gate.world.held(gate.tenants["org"]) == 4
    assert gate.admit(first)  # the hold has ended: admitted in the next round
    assert gate.world.held(gate.tenants["org"]) == 8


def test_a_stop_that_went_out_as_it_was_taken_back_counts_as_given(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme")
    gate.store.take_epoch("me")
    attempt = gate.admit(job)
    gate.runs(attempt)
    gate.store.stop_sent(attempt)
    view = gate.store.load_attempt(attempt)
    assert view is not None
    assert (view.state, view.stop_cause, view.stop_sent) == ("STOPPING", StopCause.WAITER_GONE.value, True)


def test_a_cancel_overrides_a_milder_stop_and_nothing_overrides_a_cancel(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme")
    gate.store.take_epoch("me")
    attempt = gate.admit(job)
    gate.runs(attempt)
    assert gate.store.ask_stop(attempt, StopCause.STALL, 60)
    assert not gate.store.ask_stop(attempt, StopCause.BUDGET, 60)
    assert gate.store.ask_stop(attempt, StopCause.CANCEL, 5)
    assert not gate.store.ask_stop(attempt, StopCause.STALL, 60)
    view = gate.store.load_attempt(attempt)
    assert view is not None
    assert (view.stop_cause, view.stop_grace_s) == ("cancel", 5)


def test_the_next_attempt_resumes_from_the_newest_valid_checkpoint_by_step(gate: Gate) -> None:
    gate.tenant("acme")
    job = gate.submit("acme", checkpoint={"url": "file:///ckpt/j", "interval": "5m"}, retry={"max": 3})
    gate.store.take_epoch("me")
    attempt = gate.admit(job)
    request = gate.store.launch_request(attempt, "b")
    assert (request.checkpoint_url, request.resume_from) == ("file:///ckpt/j/attempt-1", "")
    gate.runs(attempt)

    def save(step: int, url: str) -> bool:
        return in_transaction(
            gate.engine, lambda session: progress.checkpoint(session, attempt, step=step, url=url, save_ms=10**9)
        )

    assert save(9, "file:///ckpt/j/attempt-1/step-9")
    assert save(10, "file:///ckpt/j/attempt-1/step-10")
    assert not save(10, "file:///ckpt/j/attempt-1/step-10")
    for outside in ("file:///ckpt/j/attempt-2/step-11", "file:///ckpt/j/attempt-1/../x", "s3://other/attempt-1/s"):
        with pytest.raises(progress.OutsideError):
            save(11, outside)
    assert scalar(gate.engine, "SELECT max(save_ms) FROM checkpoints") < 60_000  # clamped to what it ran
    gate.ends(attempt, Reason.NON_ZERO_EXIT, 1)
    with pytest.raises(progress.FencedAttemptError):
        save(12, "file:///ckpt/j/attempt-1/step-12")
    write(gate.engine, "UPDATE jobs SET not_before = NULL")
    second = gate.admit(job)
    request = gate.store.launch_request(second, "b")
    assert request.checkpoint_url == "file:///ckpt/j/attempt-2"
    assert request.resume_from == "file:///ckpt/j/attempt-1/step-10"
    in_transaction(gate.engine, lambda session: progress.checkpoint_broken(session, second, request.resume_from))
    assert gate.store.launch_request(second, "b").resume_from == "file:///ckpt/j/attempt-1/step-9"
