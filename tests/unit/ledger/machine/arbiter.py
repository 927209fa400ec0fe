"""The queue and the arbiter: jobs come, are admitted, wait for victims, are displaced, and are cancelled."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from gateway.ledger import wishes
from policies.decisions import Act, Plan, Preempt, Why
from policies.vocabulary import Reason, StopCause
from tests.builders.ledger import FLAVOR, GPU
from tests.harness.crashes import Crash
from tests.unit.ledger.machine.attempts import Attempts
from tests.unit.ledger.machine.base import CRASH, KLASS, PICK, VICTIMS
from tests.unit.ledger.machine.estate import CARDS, JOBS, OTHER, TENANTS
from tests.unit.ledger.machine.model import Attempt, Job, What, levels
from tests.unit.store.world import live
from workflows.store import CommitReport, Cycle


class Arbiter(Attempts):
    """Rules about jobs and plans."""

    # -- queue ----------------------------------------------------------------------------------------------------
    @initialize(jobs=st.lists(st.tuples(st.sampled_from(TENANTS), KLASS, st.integers(1, 5)), min_size=4, max_size=4))
    def some_run(self, jobs: list[tuple[str, str, int]]) -> None:
        for tenant, klass, cards in jobs:
            self.submit(tenant, klass, cards, 0, None, 1, None)
            self.admit(len(self.queued()) - 1, None)
            self.begin(0, None)

    @rule(
        tenant=st.sampled_from(TENANTS),
        klass=KLASS,
        cards=st.integers(1, 6),
        more=st.sampled_from([0, 0, 1, 2]),
        duration=st.sampled_from([None, 600, 7200]),
        retries=st.integers(0, 2),
        crash=CRASH,
    )
    @precondition(lambda self: len(self.queued()) < 6)
    def submits(self, **drawn: Any) -> None:
        self.submit(**drawn)

    def submit(  # noqa: PLR0917  (drawn by name)
        self, tenant: str, klass: str, cards: int, more: int, duration: int | None, retries: int, crash: Crash | None
    ) -> None:
        spec = {"priority": klass, "max_duration": duration, "retry": {"max": retries}}
        key = self.act(lambda: self.estate.gate.submit(tenant, **spec), crash, twice=False)
        amounts: dict[What, int] = {}
        for flavor, count in ((FLAVOR, cards), (OTHER, more)):
            if count:
                each = {CARDS: count * GPU, "cpus": 1000, "memory": 1 << 30, JOBS: 1}
                amounts |= {(flavor, what): amount for what, amount in each.items()}
        length = None if duration is None else duration * 1000
        self.model.jobs[key] = Job(key, tenant, klass, amounts, length, retries)

    @rule(number=PICK, crash=CRASH)
    @precondition(lambda self: self.model.jobs)
    def cancel(self, number: int, crash: Crash | None) -> None:
        job = self.pick(number, list(self.model.jobs.values()))
        assert job is not None
        self.act(lambda: self.estate.gate.wish(wishes.cancel, job.id), crash)
        self.model.cancel(job)

    @rule(number=PICK, crash=CRASH)
    @precondition(lambda self: self.queued())
    def hold(self, number: int, crash: Crash | None) -> None:
        job = self.pick(number, self.queued())
        assert job is not None
        self.act(lambda: self.estate.gate.wish(wishes.unhold if job.on_hold else wishes.hold, job.id), crash)
        job.on_hold = not job.on_hold

    # -- arbiter --------------------------------------------------------------------------------------------------
    @rule(number=PICK, crash=CRASH)
    @precondition(lambda self: self.queued())
    def admits(self, number: int, crash: Crash | None) -> None:
        self.admit(number, crash)

    @rule(number=PICK, crash=CRASH)
    @precondition(lambda self: self.queued())
    def admits_and_begins(self, number: int, crash: Crash | None) -> None:
        self.admit(number, crash)
        self.begin(number, crash)

    def admit(self, number: int, crash: Crash | None) -> None:
        job = self.pick(number, self.queued())
        assert job is not None
        cycle = self.estate.store.cycle()
        self.commit(job, cycle, Act(admits=(self.estate.an_admit(cycle, job),)), [], crash)

    @rule(number=PICK, victims=VICTIMS, grace=st.integers(0, 3), crash=CRASH)
    @precondition(lambda self: self.queued() and self.victims())
    def preempts(self, number: int, victims: list[int], grace: int, crash: Crash | None) -> None:
        self.preempt(number, victims, grace, crash)

    @rule(number=PICK, victims=VICTIMS, crash=CRASH)
    @precondition(lambda self: self.queued() and self.victims())
    def preempts_to_the_end(self, number: int, victims: list[int], crash: Crash | None) -> None:
        """Decided, placed, told, ended: the whole way at once, each step of it killed somewhere."""
        before = {one.id for one in self.waiters()}
        self.preempt(number, victims, 1, crash)
        for waiter in [one for one in self.waiters() if one.id not in before]:
            self.place(waiter, crash)
            for victim in [self.model.attempts[key] for key in waiter.lease.waits_for]:
                if victim.state == "RUNNING" and victim.cause == "preempt":
                    self.say_stop(victim, crash)
                self.end(victim, Reason.PREEMPTED, None, crash)

    def preempt(self, number: int, victims: list[int], grace: int, crash: Crash | None) -> None:
        job = self.pick(number, self.queued())
        assert job is not None
        chosen = {one.id: one for n in victims if (one := self.pick(n, self.victims())) and one.job is not job}
        if chosen:
            self.over(job, list(chosen.values()), [], grace * 100, crash)

    @rule(number=PICK, waiter=PICK, grace=st.integers(0, 3), crash=CRASH)
    @precondition(lambda self: self.queued() and self.waiters())
    def displace(self, number: int, waiter: int, grace: int, crash: Crash | None) -> None:
        """A higher class in the middle of a preemption: the waiter is displaced, its victims pass on."""
        job, displaced = self.pick(number, self.queued()), self.pick(waiter, self.waiters())
        assert job is not None
        assert displaced is not None
        going = [self.model.attempts[one] for one in displaced.lease.waits_for]
        if any(one.cause not in {None, "preempt"} for one in going):
            return  # another stop is not the arbiter's to change
        self.over(job, going, [displaced], grace * 100, crash)

    def over(self, job: Job, going: list[Attempt], displaced: list[Attempt], grace: int, crash: Crash | None) -> None:
        cycle = self.estate.store.cycle()
        admit = self.estate.an_admit(cycle, job, tuple(one.id for one in going))
        preempts = [
            Preempt(
                one.id,
                live(cycle, one.id).version,
                job.id,
                StopCause.PREEMPT,
                grace * 1000,
                credit=one.job.tenant != job.tenant,
                why=Why("CheapestSet"),
                again=bool(displaced) and one in going,
                displaced=one in displaced,
            )
            for one in [*displaced, *going]
        ]
        self.commit(job, cycle, Act((admit,), tuple(preempts)), going, crash, displaced=displaced)

    def commit(
        self,
        job: Job,
        cycle: Cycle,
        act: Act,
        going: list[Attempt],
        crash: Crash | None,
        *,
        displaced: list[Attempt] | None = None,
    ) -> None:
        plan = Plan(acts=(act,), policy="machine")
        told = self.bounds(job, going, displaced or [])

        def work() -> CommitReport:
            return self.estate.store.commit(self.estate.epoch, cycle, plan)

        report = self.act(work, crash)
        if job.on_hold or job.want_cancel:
            assert report.dropped[job.id] == "Stale"
            return
        if job.id not in report.admitted:
            token = report.dropped[job.id]
            assert token in {"TenantLimit", "BudgetExhausted"}, report
            assert told != "must", f"refused ({token}) although there is room: {job}"
            self.count("refused")
            return
        assert told != "must not", f"admitted although a limit is passed: {job}"
        self.count("admitted" if not going else "waiting" if not displaced else "displaced")
        self.follow(job, act, going, displaced or [])

    def follow(self, job: Job, act: Act, going: list[Attempt], displaced: list[Attempt]) -> None:
        """The model does the same."""
        now = self.estate.now
        made = self.estate.gate.attempt(job.id)
        lease = str(self.estate.scalar("SELECT id FROM leases WHERE attempt_id = :id", id=made))
        for one in displaced:
            self.model.void(one, now)
        waiter = self.model.take(job, made, lease, [one.id for one in going], now)
        for preempt in act.preempts:
            one, grace = self.model.attempts[preempt.attempt], preempt.grace_ms // 1000
            if one in displaced:
                self.model.displaced(one, waiter, grace, earns=preempt.credit)
            else:
                self.model.due(one, waiter, grace, earns=preempt.credit)
        for one in displaced:
            self.model.spare(one.id)
        for level in levels(job.tenant):
            for what in job.amounts:
                most = self.model.most(level, what, now, self.estate.clock.at)
                if most is not None:
                    judged = self.ceilings.judged
                    freed = sum(one.lease.held.get(what, 0) for one in going)
                    grows = job.amounts[what] > freed  # only then was it looked at
                    judged[level, what] = most if grows else max(most, judged.get((level, what), 0))

    def bounds(self, job: Job, going: list[Attempt], displaced: list[Attempt]) -> str:
        """What anybody would say: "must" (room for everything at once), "must not" (not even net of the victims)."""
        now, at = self.estate.now, self.estate.clock.at
        roomy = self.estate.room(job) == ""
        for level in levels(job.tenant):
            for what, asked in job.amounts.items():
                most = self.model.most(level, what, now, at)
                if most is None:
                    continue
                held, waiting = self.model.sums(level, what)
                freed = sum(one.lease.held.get(what, 0) for one in [*going, *displaced])
                if asked > freed and held + asked - freed > most:
                    return "must not"
                roomy = roomy and held + waiting + asked <= most
        if self.estate.room(job) == "class" and not displaced:
            return "must not"
        return "must" if roomy else ""
