"""The ledger once more, in plain dictionaries and the simplest words: what the real one is compared with.

Knows nothing of tables, locks or entries. Times in milliseconds. It does not decide whether a lease is given (the
machine asks it for bounds), only what each fact means.
"""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from policies.credit.amount import credit_of
from policies.reasons import VERDICTS
from policies.retry import Counters, next_step
from policies.settings import PolicySettings
from policies.vocabulary import Payer, Reason

HOUR: Final = 3_600_000
DAY: Final = 24 * HOUR
RESTART: Final = 60_000
LIVE: Final = ("contingent", "held")
What = tuple[str, str]
"""Flavor and resource."""


@dataclass
class Job:
    id: str
    tenant: str
    klass: str
    amounts: dict[What, int]
    duration: int | None
    retries: int
    state: str = "QUEUED"
    attempts: int = 0
    failures: int = 0
    preemptions: int = 0
    revocations: int = 0
    want_cancel: bool = False
    on_hold: bool = False


@dataclass
class Lease:
    id: str
    attempt: str
    tenant: str
    amounts: dict[What, int]
    created: int
    ahead: int
    covers: int
    rolling: bool
    waits_for: list[str]
    held: dict[What, int] = field(default_factory=dict)
    state: str = "held"
    used: int = 0
    payer: str = ""
    accrued: int | None = None
    resolved: int | None = None


@dataclass
class Attempt:
    id: str
    job: Job
    lease: Lease
    created: int
    state: str = "RESERVED"
    started: int | None = None
    ended: int | None = None
    cause: str | None = None
    stop_for: str = ""
    earns: bool = False
    told: bool = False
    grace: int = 0
    due: tuple[int, bool] | None = None  # grace and credit of a stop that it is not told before its waiter is placed

    @property
    def live(self) -> bool:
        return self.ended is None


@dataclass
class Credit:
    attempt: str
    preemption: str
    tenant: str
    flavor: str
    amount: int
    at: int
    burned: int = 0


@dataclass
class Grant:
    id: int
    tenant: str
    flavor: str
    least: int
    most: int
    since: int
    until: int | None
    days: tuple[int, ...] = ()
    minutes: tuple[int, int] = (0, 0)  # after midnight
    revoked: bool = False
    redeems: bool = False
    credit: int = 0  # GPU-ms of a redemption that are still held
    burned_at: int | None = None

    def open_at(self, now: int, at: datetime) -> bool:
        """Day by day, as a person would look it up."""
        if self.revoked or now < self.since or (self.until is not None and now >= self.until):
            return False
        if not self.days:
            return True
        start, end = self.minutes
        for ago in (0, 1):
            midnight = at.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=ago)
            length = end - start if end > start else end - start + 1440
            begin = midnight + timedelta(minutes=start)
            if midnight.weekday() in self.days and begin <= at < begin + timedelta(minutes=length):
                return True
        return False


class Model:
    """What has happened, and what follows from it."""

    def __init__(self, quotas: dict[tuple[str, What], tuple[int, int | None]], policy: PolicySettings) -> None:
        self.quotas = quotas  # (tenant, what) -> min, max
        self.policy = policy
        self.jobs: dict[str, Job] = {}
        self.attempts: dict[str, Attempt] = {}
        self.credits: list[Credit] = []
        self.grants: list[Grant] = []

    # -- sums -----------------------------------------------------------------------------------------------------
    def live(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts.values() if attempt.live]

    def leases(self) -> list[Lease]:
        return [attempt.lease for attempt in self.attempts.values()]

    def sums(self, level: str, what: What) -> tuple[int, int]:
        """Held and waited for, at this tenant and below."""
        mine = [one for one in self.leases() if one.state in LIVE and within(one.tenant, level)]
        held = sum(one.held.get(what, 0) for one in mine)
        return held, sum(one.amounts.get(what, 0) for one in mine) - held

    def most(self, level: str, what: What, now: int, at: datetime) -> int | None:
        """The ceiling at this instant; None: there is none."""
        most = self.quotas.get((level, what), (0, None))[1]
        if most is None or what[1] != "accelerators":
            return most
        return max(0, most + sum(g.most for g in self._grants(level, what[0]) if g.open_at(now, at)))

    def credit(self, tenant: str, flavor: str) -> tuple[int, int]:
        """Owed, and held by redemptions."""
        mine = [one for one in self.credits if (one.tenant, one.flavor) == (tenant, flavor)]
        return sum(one.amount - one.burned for one in mine), sum(g.credit for g in self._grants(tenant, flavor))

    def _grants(self, tenant: str, flavor: str) -> list[Grant]:
        return [grant for grant in self.grants if (grant.tenant, grant.flavor) == (tenant, flavor)]

    # -- admission ------------------------------------------------------------------------------------------------
    def take(self, job: Job, attempt_id: str, lease_id: str, victims: list[str], now: int) -> Attempt:
        waits = [one for one in victims if self.attempts[one].lease.state in LIVE]
        ahead = HOUR if job.duration is None else job.duration
        lease = Lease(
            lease_id, attempt_id, job.tenant, dict(job.amounts), now, ahead, now + ahead, job.duration is None, waits
        )
        lease.state = "contingent" if waits else "held"
        lease.held = {} if waits else dict(job.amounts)
        job.attempts += 1
        job.state = "ADMITTED"
        self.attempts[attempt_id] = Attempt(attempt_id, job, lease, now)
        return self.attempts[attempt_id]

    def due(self, victim: Attempt, waiter: Attempt, grace: int, *, earns: bool) -> None:
        victim.due, victim.stop_for = (grace, earns), waiter.id

    def place(self, waiter: Attempt) -> None:
        """Its objects exist: only now are its victims told."""
        if waiter.lease.state != "contingent" or waiter.cause is not None or waiter.job.want_cancel:
            return
        for victim in self.live():
            if victim.stop_for == waiter.id and victim.due is not None:
                grace, earns = victim.due
                victim.due = None
                if victim.cause is None:
                    victim.cause, victim.grace, victim.earns = "preempt", grace, earns
                else:
                    victim.told = victim.told and grace >= victim.grace
                    victim.grace, victim.earns = min(victim.grace, grace), victim.earns or earns

    def void(self, waiter: Attempt, now: int) -> None:
        """It gives its promise up, or loses it to a higher class."""
        self._resolve(waiter.lease, None, None, Payer.NOBODY.value, now)

    def displaced(self, waiter: Attempt, by: Attempt, grace: int, *, earns: bool) -> None:
        waiter.cause, waiter.earns, waiter.grace, waiter.stop_for = "preempt", earns, grace, by.id

    def spare(self, waiter: str) -> None:
        for victim in self.live():
            if victim.stop_for != waiter or victim.lease.state not in LIVE:
                continue
            told = victim.told or victim.cause not in {None, "preempt"}
            if victim.due is not None or not told:
                victim.due = None
                if not told:
                    victim.cause, victim.stop_for, victim.earns, victim.grace = None, "", False, 0

    def promised(self, victim: Attempt) -> bool:
        """Whether a stop that is due counts: while its waiter waits."""
        waiter = self.attempts.get(victim.stop_for)
        return victim.due is not None and waiter is not None and waiter.lease.state == "contingent"

    # -- steps ----------------------------------------------------------------------------------------------------
    def runs(self, attempt: Attempt, now: int) -> None:
        attempt.state, attempt.started = "RUNNING", now
        attempt.job.state = "RUNNING"

    def told_to_stop(self, attempt: Attempt, grace: int) -> None:
        attempt.told = grace <= attempt.grace
        if attempt.state != "RESERVED":
            attempt.state = attempt.job.state = "STOPPING"

    def cancel(self, job: Job) -> None:
        mine = [attempt for attempt in self.live() if attempt.job is job]
        if job.state == "QUEUED" and not mine:
            job.state, job.want_cancel = "CANCELLED", True
        elif job.state in {"QUEUED", "ADMITTED", "RUNNING", "STOPPING"} and not job.want_cancel:
            job.want_cancel = True
            for attempt in mine:
                if attempt.lease.state == "contingent":
                    self.spare(attempt.id)

    # -- the end --------------------------------------------------------------------------------------------------
    def settle(self, attempt: Attempt, reason: Reason, said: int | None, now: int) -> None:
        verdict = VERDICTS[reason]
        assert verdict.attempt is not None
        lease, job = attempt.lease, attempt.job
        ended = min(max(now if said is None else said, attempt.created), now)
        unknown = attempt.started is not None and said is None and reason is Reason.LOST
        waited = lease.state == "contingent"
        since = None if waited else attempt.started
        if lease.state in LIVE:
            self._resolve(lease, since, None if unknown else ended, verdict.payer.value, now)
        if waited:
            self.spare(attempt.id)
        self._pass_on(attempt)
        refused = verdict.attempt == "REFUSED" and attempt.state not in {"RESERVED", "PENDING"}
        earns = verdict.credit and attempt.earns and attempt.cause in {"preempt", "move"} and not job.want_cancel
        attempt.state, attempt.ended = "STOPPED" if refused else verdict.attempt.value, ended
        if earns and attempt.started is not None:
            self._owe(attempt, now)
        counters = Counters(job.failures, job.preemptions, job.revocations)
        step = next_step(
            verdict,
            counters,
            retry_max=job.retries,
            now_ms=now,
            settings=self.policy,
            cancel_wanted=job.want_cancel,
        )
        job.state = step.job_state.value
        job.failures, job.preemptions, job.revocations = step.failures, step.preemptions, step.revocations

    def _resolve(self, lease: Lease, since: int | None, until: int | None, payer: str, now: int) -> None:
        unknown = since is not None and until is None
        if not unknown:
            lease.used, lease.ahead, lease.payer = used(lease, since, until, now), 0, payer
        lease.state = "posted" if lease.state == "held" and (unknown or lease.used) else "voided"
        lease.waits_for, lease.resolved = [], now

    def known(self, lease: Lease, since: int, until: int, payer: str, now: int) -> None:
        lease.used, lease.ahead, lease.payer = used(lease, since, until, now), 0, payer

    def _pass_on(self, victim: Attempt) -> None:
        """What it held goes to those who wait for it, the oldest first; the last of its victims brings the rest."""
        freed = Counter(victim.lease.held)
        waiting = [one for one in self.leases() if one.state == "contingent" and victim.id in one.waits_for]
        for lease in sorted(waiting, key=lambda one: (one.created, one.id)):
            lease.waits_for = [one for one in lease.waits_for if one != victim.id]
            for what, amount in lease.amounts.items():
                missing = amount - lease.held.get(what, 0)
                share = min(missing, freed[what]) if lease.waits_for else missing
                lease.held[what] = lease.held.get(what, 0) + share
            freed.clear()
            if not lease.waits_for:
                lease.state = "held"

    def _owe(self, attempt: Attempt, now: int) -> None:
        assert attempt.started is not None
        assert attempt.ended is not None
        earlier = [
            one
            for one in self.attempts.values()
            if one.job is attempt.job and one is not attempt and one.state == "PREEMPTED"
        ]
        often = sum(one.ended is not None and one.ended > now - 30 * DAY for one in earlier)
        cards = sorted((f, n) for (f, r), n in attempt.lease.amounts.items() if r == "accelerators")
        for number, (flavor, milli) in enumerate(cards):
            found = credit_of(
                milli_gpu=milli,
                started_ms=max(attempt.started, attempt.lease.created),
                ended_ms=attempt.ended,
                checkpoint_ms=None,
                save_ms=0,
                restart_ms=RESTART,
                preemptions_in_period=often,
                settings=self.policy,
            )
            owed = self.credit(attempt.lease.tenant, flavor)[0]
            amount = min(found.gpu_ms, max(0, self.policy.credit_cap_gpu_ms - owed))
            if amount > 0:
                key = attempt.stop_for or attempt.id
                key = key if number == 0 else f"{key}/{flavor}"
                self.credits.append(Credit(attempt.id, key, attempt.lease.tenant, flavor, amount, now))

    # -- time -----------------------------------------------------------------------------------------------------
    def accrue(self, now: int, refused: set[str]) -> None:
        """One round: use posted, leases renewed but for the refused ones, unknown ends given up, credits burned."""
        for attempt in self.live():
            lease = attempt.lease
            if lease.state not in LIVE:
                continue
            if attempt.started is not None:
                length = now - (max(attempt.started, lease.created) if lease.accrued is None else lease.accrued)
                lease.used, lease.ahead, lease.accrued = lease.used + length, max(0, lease.ahead - length), now
            if lease.rolling and lease.state == "held" and lease.covers - now <= HOUR // 6:
                if attempt.id not in refused:
                    lease.ahead, lease.covers = max(HOUR, lease.ahead), now + HOUR
                elif attempt.cause is None:
                    attempt.cause, attempt.grace = "budget", 300
        for attempt in self.attempts.values():
            lease = attempt.lease
            gone = lease.resolved is not None and lease.resolved < now - 7 * DAY
            if lease.state == "posted" and lease.payer == "" and gone and attempt.started is not None:
                assert lease.resolved is not None
                self.known(lease, attempt.started, lease.resolved, Payer.PLATFORM.value, now)
        for grant in sorted(self.grants, key=lambda one: one.id):
            self._burn(grant, now)
        self._expire(now)

    def _burn(self, grant: Grant, now: int) -> None:
        if not grant.credit or grant.until is None or (grant.since > now and not grant.revoked):
            return
        what = (grant.flavor, "accelerators")
        until = min(now, grant.until)
        above = max(0, self.sums(grant.tenant, what)[0] - self.quotas.get((grant.tenant, what), (0, None))[0])
        length = max(0, until - max(grant.since, grant.burned_at or grant.since))
        burned = min(min(above, grant.least) * length // 1000, grant.credit, self.credit(grant.tenant, grant.flavor)[0])
        grant.credit, grant.burned_at = 0 if now >= grant.until else grant.credit - burned, now
        for credit in sorted(self.credits, key=lambda one: (one.at, one.attempt)):
            if (credit.tenant, credit.flavor) == (grant.tenant, grant.flavor):
                part = min(burned, credit.amount - credit.burned)
                credit.burned += part
                burned -= part

    def _expire(self, now: int) -> None:
        for credit in sorted(self.credits, key=lambda one: (one.at, one.attempt)):
            if credit.at + 90 * DAY <= now:
                owed, held = self.credit(credit.tenant, credit.flavor)
                credit.burned += max(0, min(credit.amount - credit.burned, owed - held))


def used(lease: Lease, since: int | None, until: int | None, now: int) -> int:
    """Clamped to [lease made, now], never negative."""
    return 0 if since is None or until is None else max(0, min(until, now) - max(since, lease.created))


def within(tenant: str, level: str) -> bool:
    """Whether the tenant is this level or lies below it."""
    return tenant == level or tenant.startswith(f"{level}/")


def levels(tenant: str) -> list[str]:
    """The root first."""
    parts = tenant.split("/")
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]
