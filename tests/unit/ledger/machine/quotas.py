"""The rules of time and of quota over time: accrual, grants, redeemed credit."""

from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from gateway.ledger import accrual, steps
from gateway.ledger import credits as credit
from gateway.ledger.config import PlainSettings
from gateway.ledger.tables.capacity import GrantRow
from tests.builders.ledger import FLAVOR, GPU
from tests.harness.crashes import Crash
from tests.unit.ledger.machine.arbiter import Arbiter
from tests.unit.ledger.machine.base import CRASH, PICK, instant
from tests.unit.ledger.machine.estate import CARDS, LENDABLE, POLICY, QUOTAS, TENANTS
from tests.unit.ledger.machine.model import Grant

_TIMES = ("00:00", "06:00", "11:30", "12:04", "18:00", "24:00")


class TimedMachine(Arbiter):
    """The whole machine."""

    @rule(seconds=st.sampled_from([1, 59, 600, 600, 3000, 3001, 3600, 7200, 90_000, 8 * 86_400, 31 * 86_400]))
    def tick(self, seconds: int) -> None:
        self.estate.tick(seconds)

    @rule(crash=CRASH)
    def accrue(self, crash: Crash | None) -> None:
        """A round of posting, renewing, giving up, burning and expiring; killed anywhere, the next one goes on."""

        def work() -> accrual.Accrued:
            done = accrual.accrue(self.estate.engine)
            for attempt in done.refused:
                self.estate.transaction(lambda s, a=attempt: steps.out_of_budget(s, a, PlainSettings()))
            return done

        before = {one.id for one in self.model.live() if one.lease.rolling}
        done = self.act(work, crash, whole=False, twice=False)  # the next round is the same act once more
        assert done.failed == ()
        assert set(done.refused) <= before
        self.count("renewals_refused", len(done.refused))
        self.count("lowered", len(done.lowered))
        self.model.accrue(self.estate.now, set(done.refused))

    @rule(
        tenant=st.sampled_from(TENANTS),
        least=st.integers(0, 2),
        most=st.integers(-6, 6),
        after_s=st.sampled_from([-3600, 0, 0, 600, 86_400]),
        for_s=st.sampled_from([None, 600, 7200, 2 * 86_400]),
        days=st.one_of(st.just(()), st.sets(st.integers(0, 6), min_size=1).map(lambda one: tuple(sorted(one)))),
        times=st.tuples(st.sampled_from(_TIMES[:-1]), st.sampled_from(_TIMES[1:])),
    )
    @precondition(lambda self: sum(not one.revoked for one in self.model.grants) < 3)
    def grant(  # noqa: PLR0917  (drawn by name)
        self,
        tenant: str,
        least: int,
        most: int,
        after_s: int,
        for_s: int | None,
        days: tuple[int, ...],
        times: tuple[str, str],
    ) -> None:
        since = self.estate.clock.at + timedelta(seconds=after_s)
        row = GrantRow(
            tenant_id=self.estate.tenant(tenant),
            flavor=FLAVOR,
            delta_min=least * GPU,
            delta_max=most * GPU,
            starts_at=since,
            ends_at=None if for_s is None else since + timedelta(seconds=for_s),
            recurrence={"days": list(days), "from": times[0], "until": times[1]} if days else None,
        )
        self._store(row)
        start, end = (int(one[:2]) * 60 + int(one[3:]) for one in times)
        begins = int(since.timestamp()) * 1000
        ends = None if for_s is None else begins + for_s * 1000
        assert row.id is not None
        made = Grant(row.id, tenant, FLAVOR, least * GPU, most * GPU, begins, ends, days, (start, end))
        self.model.grants.append(made)

    def _store(self, row: GrantRow) -> None:
        def work(session: object) -> None:
            session.add(row)  # type: ignore[attr-defined]
            session.flush()  # type: ignore[attr-defined]

        self.estate.transaction(work)

    @rule(number=PICK)
    @precondition(lambda self: any(not one.revoked for one in self.model.grants))
    def revoke(self, number: int) -> None:
        grant = self.pick(number, [one for one in self.model.grants if not one.revoked])
        assert grant is not None

        def work(session: object) -> None:
            session.get_one(GrantRow, grant.id).revoked_at = self.estate.clock.at  # type: ignore[attr-defined]

        self.estate.transaction(work)
        grant.revoked = True
        if grant.redeems:
            assert grant.until is not None
            grant.until = min(grant.until, self.estate.now)

    @rule(
        number=PICK,
        percent=st.sampled_from([1, 10, 50, 100]),
        after_s=st.sampled_from([0, 0, 600]),
        for_s=st.sampled_from([600, 7200, 86_400]),
        crash=CRASH,
    )
    @precondition(lambda self: self.model.credits)
    def redeem(self, number: int, percent: int, after_s: int, for_s: int, crash: Crash | None) -> None:
        owed = self.pick(number, self.model.credits)
        assert owed is not None
        posted, held = self.model.credit(owed.tenant, owed.flavor)
        amount = max(1, posted * percent // 100)
        since = self.estate.now + after_s * 1000
        until = since + for_s * 1000
        milli = amount // for_s
        lent = sum(LENDABLE for (t, w), q in QUOTAS.items() if q[0] and t != owed.tenant and w == (owed.flavor, CARDS))
        taken = sum(
            one.least
            for one in self.model.grants
            if one.redeems
            and not one.revoked
            and one.flavor == owed.flavor
            and one.until is not None
            and one.since < until
            and one.until > since
        )
        room = lent * POLICY.credit_share_percent // 100 - taken
        allowed = amount <= posted - held and 1 <= milli <= room

        def work() -> int | None:
            try:
                row: GrantRow = self.estate.transaction(
                    lambda session: credit.redeem(
                        session,
                        tenant_id=self.estate.tenant(owed.tenant),
                        flavor=owed.flavor,
                        gpu_ms=amount,
                        starts_at=instant(since),
                        ends_at=instant(until),
                        principal="ann",
                        settings=POLICY,
                    )
                )
            except credit.CreditRefused:
                return None
            return row.id

        made = self.act(work, crash, twice=False)
        assert (made is not None) == allowed
        if made is not None:
            self.count("redeemed")
            grant = Grant(made, owed.tenant, owed.flavor, milli, 0, since, until, credit=amount, redeems=True)
            self.model.grants.append(grant)
