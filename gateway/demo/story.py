"""The three chapters, each of which proves what it tells: a revocation, a preemption with grace, one without."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gateway.demo import proofs
from gateway.demo.desk import Desk
from gateway.demo.proofs import expect
from tidegate.client import Client
from tidegate.wire.job import Attempt
from tidegate.wire.operator import CreditView
from tidegate.wire.spec import JobSpec

INTERRUPT_AT_STEP = 30
PREEMPT_AT_STEP = 45
EVERY_20_STEPS = 20
NOTICE_ALONE = 1_000_000
"""Steps between two periodic saves: more than there are. What is saved was saved for the notice, or at the end."""
_LOSS = re.compile(r"final_loss=(\S+)")
_STEP = re.compile(r"step (\d+)")

Interrupt = Callable[[str, int], str]
"""(attempt id, rank): the provider takes that member's instance back, with the pool's notice; the instance's id."""
Instances = Callable[[str], Mapping[int, str]]
"""attempt id -> the instance of each rank."""


@dataclass(frozen=True, slots=True)
class Cast:
    """Who takes part: two teams, the provider, and what the training job is made of."""

    desk: Desk
    research: Client
    product: Client
    interrupt: Interrupt
    instances: Instances
    train: Callable[..., JobSpec]
    quick: Callable[..., JobSpec]


def step_of(text: str) -> int:
    """The newest step in a log, -1 before the first."""
    found = _STEP.findall(text)
    return int(found[-1]) if found else -1


def loss_of(desk: Desk, job: str) -> str:
    """The final loss that rank 0 printed, to the last digit."""
    found = _LOSS.search(desk.log(job))
    expect(found is not None, f"{desk.names[job]} printed no final loss:\n{desk.log(job)[-800:]}")
    assert found is not None
    return found[1]


def revocation(cast: Cast) -> tuple[list[str], list[tuple[str, str]]]:
    """A spot instance is taken in mid-epoch; the job saves, moves to others and reaches an unbroken run's loss."""
    desk = cast.desk
    unbroken = desk.submit(cast.research, cast.train("train-unbroken", capacity="on_demand", every=EVERY_20_STEPS))
    broken = desk.submit(cast.research, cast.train("train-on-spot", capacity="spot", every=NOTICE_ALONE))
    desk.until(lambda: step_of(desk.log(broken)) >= INTERRUPT_AT_STEP, f"step {INTERRUPT_AT_STEP} of train-on-spot")
    step, told = step_of(desk.log(broken)), datetime.now(UTC)
    lost = cast.interrupt(desk.attempts(broken)[0].id, 1)
    desk.say(f"[yellow]the provider takes one spot instance back[/] ({lost}), at step {step} or later")
    desk.until(lambda: len(_instances(cast, broken)) > 0, "a second attempt of train-on-spot on instances")
    taken = set(_instances(cast, broken).values())
    desk.finished(broken)
    desk.finished(unbroken)
    attempts = desk.attempts(broken)
    expect([a.state for a in attempts] == ["REVOKED", "SUCCEEDED"], f"attempts ended {[a.state for a in attempts]}")
    expect(attempts[0].reason == "SpotRevoked", f"the first attempt ended for {attempts[0].reason}")
    save = proofs.saved_inside(list(desk.operator.past_events(broken)), attempts[0], told, step)
    proofs.resumed(desk, broken, attempts, save)
    expect(lost not in taken, f"the second attempt ran on {sorted(taken)}, of which {lost} had been taken back")
    job = desk.operator.get(broken)
    expect((job.failures, job.revocations) == (0, 1), "a revocation counted as a failure")
    losses = [(desk.names[j], loss_of(desk, j)) for j in (unbroken, broken)]
    expect(losses[0][1] == losses[1][1], f"final losses differ: {losses}")
    desk.say(f"[green]saved step {save.step} inside the notice, resumed on {', '.join(sorted(taken))}[/]")
    desk.say(f"[green]same final loss, broken or not: {losses[0][1]}[/]")
    return [unbroken, broken], losses


def _instances(cast: Cast, job: str) -> Mapping[int, str]:
    """Those of the second attempt; none before it is placed."""
    attempts = cast.desk.attempts(job)
    return cast.instances(attempts[1].id) if len(attempts) > 1 else {}


def preemption(cast: Cast, klass: str, name: str, restart_ms: Callable[[str], int]) -> tuple[list[str], CreditView]:
    """A job of a higher class takes a P2 job's place; the victim returns and finishes; its tenant earns a credit."""
    desk, graceful = cast.desk, klass != "P0"
    every = NOTICE_ALONE if graceful else EVERY_20_STEPS
    victim = desk.submit(cast.research, cast.train(f"{name}-victim", capacity="on_demand", every=every))
    desk.until(lambda: step_of(desk.log(victim)) >= PREEMPT_AT_STEP, f"step {PREEMPT_AT_STEP} of {name}-victim")
    step = step_of(desk.log(victim))
    waiter = desk.submit(cast.product, cast.quick(f"{name}-job", klass))
    desk.finished(waiter)
    desk.finished(victim)
    attempts = desk.attempts(victim)
    expect([a.state for a in attempts] == ["PREEMPTED", "SUCCEEDED"], f"attempts ended {[a.state for a in attempts]}")
    expect(desk.operator.get(victim).failures == 0, "a preemption counted as a failure")
    events = list(desk.operator.past_events(victim))
    told = proofs.first(events, attempts[0], "StopAsked")
    if graceful:
        save = proofs.saved_inside(events, attempts[0], told, step)
    else:
        saves = proofs.saves_of(events, attempts[0])
        expect(bool(saves), "the victim had saved nothing before it was killed")
        save = saves[-1]
    proofs.resumed(desk, victim, attempts, save)
    loss = proofs.loss_of(attempts[0], save, restart_ms(attempts[0].id), graceful=graceful)
    credit = credit_of(desk, attempts[0])
    proofs.paid(credit, loss)
    # What is measured lies between two instants that the events show.
    measured_by = proofs.saves_of(events, attempts[0])[0].at - proofs.first(events, attempts[0], "PENDING")
    expect(0 < loss.restart_ms <= measured_by.total_seconds() * 1000, f"a restart of {loss.restart_ms} ms was measured")
    desk.say(f"[green]{name}: credit {credit.gpu_ms} GPU-ms = {loss}[/]")
    return [victim, waiter], credit


def credit_of(desk: Desk, attempt: Attempt) -> CreditView:
    """The one credit of this attempt's preemption."""
    found = [credit for credit in desk.operator.credits() if credit.victim_attempt == attempt.id]
    expect(len(found) == 1, f"{len(found)} credits for one preemption")
    return found[0]


def job_makers(workdir: str, url: str, python: str) -> tuple[Callable[..., JobSpec], Callable[..., JobSpec]]:
    """(train, quick): the two-node training of examples/train, and a job of a higher class that is soon over."""

    def train(name: str, *, capacity: str, every: int) -> JobSpec:
        return JobSpec.model_validate(
            {
                "name": name,
                "kind": "training",
                "workdir": workdir,
                "run": f'exec "{python}" train.py',
                "env": {"STEP_MS": "60", "STEPS": "150", "SAVE_EVERY": str(every)},
                "num_nodes": 2,
                "resources": {"accelerators": "V100:2", "cpus": 2, "memory": "1Gi"},
                "capacity": {"type": capacity},
                "checkpoint": {"url": f"{url}/{name}", "interval": "30m"},
                "max_duration": "2h",
                "gang_timeout": "2m",
                "grace": "60s",
            }
        )

    def quick(name: str, klass: str) -> JobSpec:
        return JobSpec.model_validate(
            {
                "name": name,
                "priority": klass,
                "run": "echo serving; sleep 2; echo done",
                "num_nodes": 2,
                "resources": {"accelerators": "V100:2", "cpus": 1, "memory": "256Mi"},
                "capacity": {"type": "on_demand"},
                "max_duration": "5m",
                "gang_timeout": "2m",
            }
        )

    return train, quick


def checkpoint_prefix(data_dir: Path) -> Path:
    """A folder that every team of the demo may write below."""
    prefix = data_dir / "checkpoints"
    prefix.mkdir(parents=True, exist_ok=True)
    prefix.chmod(0o1777)
    return prefix
