"""Objects younger than a restored backup: taken in under their own number with a lease, or refused by a rule."""

import hashlib
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from backends.types import End, Handle, Observation, Phase
from gateway.ledger.check import check
from policies.snapshot import Placed, Resources
from policies.vocabulary import AttemptState, Reason, StopCause
from tests.builders.ledger import FLAVOR, GPU, POOL
from tests.unit.store.world import Gate, rows, write
from workflows.decide import next_step
from workflows.steps import Settle
from workflows.store import Forgotten, Part


def key(job: str, number: int = 1, chunk: int | None = None) -> str:
    return f"tg-{UUID(job).hex}{'' if chunk is None else f'-c{chunk}'}-{number}"


def found(
    attempt: str, *, gpus: int = 4, group: str = "main", replicas: int = 1, pool: str = POOL, token: bytes = b""
) -> Forgotten:
    members = Resources(gpus * GPU, 4000, 8 << 30)
    placed = (Placed(group, pool, FLAVOR, replicas, members, (("n1", replicas),)),)
    return Forgotten(attempt, {"b": Part(f"native/{attempt}", placed, begun=True, token_sha256=token)})


def seen(gate: Gate, attempt: str, phase: Phase, end: End | None = None, *, told: bool = False) -> None:
    now = datetime.now(UTC)
    handle = Handle("b", attempt, f"native/{attempt}")
    ended_at = now if phase is Phase.ENDED else None
    one = Observation(handle, phase, now, sequence=1, started_at=now, ended_at=ended_at, end=end, stop_confirmed=told)
    gate.store.observe("b", [one])


def test_what_runs_for_a_queued_job_is_its_attempt_with_lease_token_and_workflow(gate: Gate) -> None:
    gate.tenant("acme", max_gpus=16)
    job = gate.submit("acme")
    digest = hashlib.sha256(b"secret").digest()
    assert gate.store.take_in(found(key(job, 3), token=digest)) == ""
    (attempt,) = rows(gate.engine, "SELECT * FROM attempts")
    assert (attempt.id, attempt.number, attempt.state) == (key(job, 3), 3, "PENDING")
    assert (attempt.handles, attempt.started_groups) == ({"b": f"native/{key(job, 3)}"}, ["b"])
    assert attempt.placed[0]["nodes"] == [["n1", 1]]
    assert (gate.job(job).state, gate.job(job).attempts) == ("ADMITTED", 3)
    assert gate.world.held(gate.tenants["acme"]) == 4
    assert gate.outbox("start") == [key(job, 3)]
    (token,) = rows(gate.engine, "SELECT digest, attempt_id FROM tokens WHERE attempt_id IS NOT NULL")
    assert (bytes(token.digest), token.attempt_id) == (digest, key(job, 3))
    assert gate.store.take_in(found(key(job, 3))) == "attempt 3 of its job is newer", "a second run changes nothing"
    assert check(gate.engine) == []


def test_the_attempt_that_it_followed_is_settled_and_costs_the_job_none_of_its_retries(gate: Gate) -> None:
    gate.tenant("acme", max_gpus=16)
    job = gate.submit("acme")
    gate.store.take_epoch("me")
    first = gate.admit(job)
    gate.runs(first)
    seen(gate, first, Phase.ENDED, End(Reason.NON_ZERO_EXIT, 143))
    assert gate.store.take_in(found(key(job, 2))) == ""
    states = {row.id: (row.state, row.reason) for row in rows(gate.engine, "SELECT id, state, reason FROM attempts")}
    assert states == {first: ("REVOKED", "BackendRequeued"), key(job, 2): ("PENDING", "")}
    assert (gate.job(job).state, gate.job(job).failures) == ("ADMITTED", 0)
    assert gate.world.held(gate.tenants["acme"]) == 4
    assert check(gate.engine) == []


def test_one_that_has_ended_meanwhile_is_settled_as_it_ended(gate: Gate) -> None:
    gate.tenant("acme", max_gpus=16)
    job = gate.submit("acme")
    assert gate.store.take_in(found(key(job))) == ""
    seen(gate, key(job), Phase.ENDED, End(Reason.NON_ZERO_EXIT, 7, failed_rank=0, codes={0: 7}))
    view = gate.store.load_attempt(key(job))
    assert view is not None
    step = next_step(view)
    assert isinstance(step, Settle)
    gate.store.settle(step.end)
    assert (gate.job(job).state, gate.job(job).exit_code) == ("FAILED", 7)


def test_an_index_of_an_array_is_taken_in_under_its_own_number(gate: Gate) -> None:
    gate.tenant("acme", max_gpus=16)
    job = gate.submit("acme", array={"indexes": 3})
    assert gate.store.take_in(found(key(job, 2, chunk=1))) == ""
    (task,) = rows(gate.engine, "SELECT index, state, attempts, attempt_id FROM tasks")
    assert tuple(task) == (1, "ADMITTED", 2, key(job, 2, chunk=1))
    assert check(gate.engine) == []


def test_what_cannot_be_owned_is_refused_by_a_rule_and_its_number_is_not_used_again(gate: Gate) -> None:
    gate.tenant("acme", max_gpus=4)
    job = gate.submit("acme", num_nodes=2, resources={"accelerators": "H100:2", "cpus": 1})
    rules = {
        "submitted after the backup": found(key(str(uuid4()))),
        "only a part of its gang": found(key(job, 4), gpus=2, replicas=1),
        "a pool that is not configured": found(key(job, 5), pool="elsewhere"),
        "cannot have a lease again": found(key(job, 6), gpus=4, replicas=2),
    }
    for words, one in rules.items():
        assert words in gate.store.take_in(one)
    silent = Forgotten(key(job, 7), {"b": Part("x", (), begun=True)})
    assert "cannot say where it runs" in gate.store.take_in(silent)
    assert rows(gate.engine, "SELECT id FROM attempts") == []
    assert gate.world.held(gate.tenants["acme"]) == 0
    assert gate.job(job).attempts == 7, "what comes next writes into another checkpoint folder"
    assert gate.store.take_in(found(key(job, 8), gpus=2, replicas=2)) == ""


def test_an_object_of_a_job_that_has_ended_is_nobodys(gate: Gate) -> None:
    gate.tenant("acme", max_gpus=16)
    job = gate.submit("acme")
    gate.store.take_epoch("me")
    gate.ends(gate.admit(job))
    assert gate.store.take_in(found(key(job, 2))) == "its job has ended"


@pytest.mark.parametrize(("code", "state"), [(143, "QUEUED"), (75, "QUEUED"), (0, "SUCCEEDED")])
def test_a_stop_that_no_row_knows_sends_the_job_back_to_the_queue_unless_it_was_done(
    gate: Gate, code: int, state: str
) -> None:
    gate.tenant("acme", max_gpus=16)
    job = gate.submit("acme")
    gate.store.take_epoch("me")
    attempt = gate.admit(job)
    gate.runs(attempt)
    seen(gate, attempt, Phase.ENDED, End(Reason.NON_ZERO_EXIT if code else Reason.COMPLETED, code), told=True)
    assert list(gate.store.after_restore()) == [attempt]
    assert list(gate.store.after_restore()) == []
    view = gate.store.load_attempt(attempt)
    assert view is not None
    assert view.stop_cause == StopCause.WAITER_GONE
    step = next_step(view)
    assert isinstance(step, Settle)
    gate.store.settle(step.end)
    assert (gate.job(job).state, gate.job(job).failures) == (state, 0)


def test_the_age_of_a_backup_stalls_nobody(gate: Gate) -> None:
    gate.tenant("acme", max_gpus=16)
    job = gate.submit("acme", stall={"timeout": "60s"})
    gate.store.take_epoch("me")
    attempt = gate.admit(job)
    gate.runs(attempt)
    seen(gate, attempt, Phase.RUNNING)
    ten_minutes_ago = "(extract(epoch FROM now()) * 1000)::bigint - 600000"
    write(gate.engine, f"UPDATE attempts SET progress = jsonb_build_object('at_ms', {ten_minutes_ago})")
    before, _ = gate.store.load_attempt(attempt), gate.store.after_restore()
    after = gate.store.load_attempt(attempt)
    assert before is not None
    assert after is not None
    assert before.stall_after_ms is not None
    assert after.stall_after_ms is not None
    assert before.stall_after_ms < before.now_ms
    assert after.stall_after_ms >= after.now_ms + 59_000
    assert (after.state, after.stop_cause) == (AttemptState.RUNNING, "")
