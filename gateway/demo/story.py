"""The three chapters, each of which checks what it tells: a revocation, a preemption with grace, one without."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.demo.desk import DemoFailedError, Desk
from tidegate.client import Client
from tidegate.wire.job import Attempt
from tidegate.wire.operator import CreditView
from tidegate.wire.spec import JobSpec

INTERRUPT_AT_STEP = 30
PREEMPT_AT_STEP = 45
_LOSS = re.compile(r"final_loss=(\S+)")
_STEP = re.compile(r"step (\d+)")

Interrupt = Callable[[str, int], str]
"""(attempt id, rank): the provider takes that member's instance back, with the pool's notice."""


@dataclass(frozen=True, slots=True)
class Cast:
    """Who takes part: two teams, the provider, and what the training job is made of."""

    desk: Desk
    research: Client
    product: Client
    interrupt: Interrupt
    train: Callable[..., JobSpec]
    quick: Callable[..., JobSpec]


def expect(true: bool, what: str) -> None:  # noqa: FBT001  (reads as a sentence)
    """Fail the demo with `what` was expected."""
    if not true:
        raise DemoFailedError(what)


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
    """A spot instance is taken in mid-epoch; the job resumes and reaches the same loss as an unbroken run."""
    desk = cast.desk
    unbroken = desk.submit(cast.research, cast.train("train-unbroken", capacity="on_demand"))
    broken = desk.submit(cast.research, cast.train("train-on-spot", capacity="spot"))
    desk.until(lambda: step_of(desk.log(broken)) >= INTERRUPT_AT_STEP, f"step {INTERRUPT_AT_STEP} of train-on-spot")
    first = desk.attempts(broken)[0]
    desk.say("[yellow]the provider takes one spot instance back[/]")
    cast.interrupt(first.id, 1)
    desk.finished(broken)
    desk.finished(unbroken)
    attempts = desk.attempts(broken)
    expect([a.state for a in attempts] == ["REVOKED", "SUCCEEDED"], f"attempts ended {[a.state for a in attempts]}")
    expect(attempts[0].reason == "SpotRevoked", f"the first attempt ended for {attempts[0].reason}")
    expect(bool(attempts[1].resume_from), "the second attempt did not resume from a checkpoint")
    job = desk.operator.get(broken)
    expect((job.failures, job.revocations) == (0, 1), "a revocation counted as a failure")
    losses = [(desk.names[j], loss_of(desk, j)) for j in (unbroken, broken)]
    expect(losses[0][1] == losses[1][1], f"final losses differ: {losses}")
    desk.say(f"[green]same final loss, broken or not: {losses[0][1]}[/]")
    return [unbroken, broken], losses


def preemption(cast: Cast, klass: str, name: str) -> tuple[list[str], CreditView]:
    """A job of a higher class takes a P2 job's place; the victim returns and finishes; its tenant earns a credit."""
    desk = cast.desk
    victim = desk.submit(cast.research, cast.train(f"{name}-victim", capacity="on_demand"))
    desk.until(lambda: step_of(desk.log(victim)) >= PREEMPT_AT_STEP, f"step {PREEMPT_AT_STEP} of {name}-victim")
    waiter = desk.submit(cast.product, cast.quick(f"{name}-job", klass))
    desk.finished(waiter)
    desk.finished(victim)
    attempts = desk.attempts(victim)
    expect([a.state for a in attempts] == ["PREEMPTED", "SUCCEEDED"], f"attempts ended {[a.state for a in attempts]}")
    expect(bool(attempts[1].resume_from), "the victim did not resume from a checkpoint")
    expect(desk.operator.get(victim).failures == 0, "a preemption counted as a failure")
    credit = credit_of(desk, attempts[0])
    cards = sum(group.replicas for group in attempts[0].placed) * 2
    check_credit(credit, cards, graceful=klass != "P0")
    desk.say(f"[green]{name}: credit {credit.gpu_ms} GPU-ms = {cards} GPUs × {formula(credit)}[/]")
    return [victim, waiter], credit


def credit_of(desk: Desk, attempt: Attempt) -> CreditView:
    """The one credit of this attempt's preemption."""
    found = [credit for credit in desk.operator.credits() if credit.victim_attempt == attempt.id]
    expect(len(found) == 1, f"{len(found)} credits for one preemption")
    return found[0]


def formula(credit: CreditView) -> str:
    """The terms as people read them."""
    terms = credit.terms
    return f"(gap {terms['gap_ms']} + save {terms['save_ms']} + restart {terms['restart_ms']} ms)"


def check_credit(credit: CreditView, cards: int, *, graceful: bool) -> None:
    """With grace there was a save inside the notice; without, there was none and the checkpoint's age counts."""
    terms = credit.terms
    expected = cards * (terms["gap_ms"] + terms["save_ms"] + terms["restart_ms"])
    expect(credit.gpu_ms == expected, f"credit {credit.gpu_ms} is not {expected}: {terms}")
    if graceful:
        expect(terms["save_ms"] > 0, f"no save was made inside the notice: {terms}")
    else:
        expect(terms["save_ms"] == 0 and terms["gap_ms"] > 0, f"a kill without grace has no save, but an age: {terms}")


def job_makers(workdir: str, url: str, python: str) -> tuple[Callable[..., JobSpec], Callable[..., JobSpec]]:
    """(train, quick): the two-node training of examples/train, and a job of a higher class that is soon over."""

    def train(name: str, *, capacity: str) -> JobSpec:
        return JobSpec.model_validate(
            {
                "name": name,
                "kind": "training",
                "workdir": workdir,
                "run": f'exec "{python}" train.py',
                "env": {"STEP_MS": "60", "STEPS": "150", "SAVE_EVERY": "20"},
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
