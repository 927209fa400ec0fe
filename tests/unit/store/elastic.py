"""One elastic job on the small estate of the store's tests, and what it and its users do."""

from typing import Any
from uuid import UUID

from gateway.ledger import progress, wishes
from gateway.ledger.check import check
from gateway.ledger.engine import in_transaction
from policies.plan import plan
from policies.settings import PolicySettings
from policies.vocabulary import Reason
from tests.unit.store.world import Gate, rows, scalar, write
from workflows.messages import AttemptView
from workflows.store import CommitReport

AT_ONCE = PolicySettings(resize_cool_down_ms=0)
MEMBERS = {"resources": {"accelerators": "H100:1"}, "checkpoint": {"url": "file:///c"}, "kind": "training"}


class Scene:
    """One elastic job with one-GPU members that runs on the two nodes of eight; a P1 may come."""

    def __init__(self, gate: Gate, *, max_gpus: int = 16, first_quota: int | None = None, **spec: Any) -> None:
        self.gate = gate
        write(gate.engine, "UPDATE pools SET place_first = true, places_nodes = true")
        gate.tenant("org", max_gpus=max_gpus)
        gate.tenant("org/low", **({} if first_quota is None else {"max_gpus": first_quota}))
        gate.world.allowance(gate.tenant("org/high"), "P1", 1000)
        self.epoch = gate.store.take_epoch("me")
        elastic = {"min": 2, "target": 4, "max": 12, "reshard": True, **spec.pop("elastic", {})}
        self.job = gate.submit("org/low", elastic=elastic, **{**MEMBERS, **spec})
        assert self.turn().admitted == (self.job,)
        self.first = gate.attempt(self.job)
        gate.runs(self.first)

    def turn(self, settings: PolicySettings = AT_ONCE) -> CommitReport:
        cycle = self.gate.store.cycle()
        report = self.gate.store.commit(self.epoch, cycle, plan(cycle.snapshot, settings, cycle.now_ms))
        assert check(self.gate.engine) == []
        return report

    def saves(self, step: int, *, reshardable: bool = True) -> None:
        number = scalar(self.gate.engine, "SELECT max(number) FROM attempts")
        url = f"file:///c/attempt-{number}/step-{step}"
        attempt = self.gate.attempt(self.job)
        in_transaction(
            self.gate.engine,
            lambda session: progress.checkpoint(session, attempt, step=step, url=url, reshardable=reshardable),
        )

    def asks(self, replicas: int) -> None:
        assert self.gate.wish(wishes.resize, self.job, "main", replicas).changed

    def view(self, attempt: str | None = None) -> AttemptView:
        found = self.gate.store.load_attempt(attempt or self.gate.attempt(self.job))
        assert found is not None
        return found

    def size(self, attempt: str | None = None) -> int:
        return self.view(attempt).replicas_total

    def held(self) -> int:
        return self.gate.world.held(self.gate.tenants["org/low"])

    def states(self) -> list[str]:
        query = "SELECT state FROM attempts WHERE job_id = :job ORDER BY number"
        return [row.state for row in rows(self.gate.engine, query, job=UUID(self.job))]

    def leaves(self) -> None:
        """It was told, has saved and left."""
        attempt = self.gate.attempt(self.job)
        assert self.view(attempt).stop_cause == "resize"
        self.gate.store.stop_sent(attempt)
        self.gate.ends(attempt, Reason.RESIZED, 75)
        assert check(self.gate.engine) == []


def nodes_of(gate: Gate, attempt: str) -> list[list[Any]]:
    (row,) = rows(gate.engine, "SELECT placed FROM attempts WHERE id = :id", id=attempt)
    return list(row.placed[0]["nodes"])
