"""What happens to attempts: they begin, are placed, told, seen again and again, and end."""

from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from backends.types import Handle, Observation, Phase
from gateway.ledger import leases
from policies.vocabulary import AttemptState, Payer, Reason
from tests.harness.crashes import Crash
from tests.unit.ledger.machine.base import CRASH, PICK, REASONS, Base, instant
from tests.unit.ledger.machine.model import Attempt
from workflows.messages import EndRequest


class Attempts(Base):
    """Rules about attempts."""

    @rule(number=PICK, crash=CRASH)
    @precondition(lambda self: self.waiters())
    def is_placed(self, number: int, crash: Crash | None) -> None:
        """A waiter's objects exist: its victims are told in the same transaction."""
        one = self.pick(number, self.waiters())
        assert one is not None
        self.place(one, crash)

    def place(self, one: Attempt, crash: Crash | None) -> None:
        self.act(lambda: self.estate.store.prepared(one.id, "b", "native"), crash)
        self.model.place(one)

    @rule(number=PICK, crash=CRASH)
    @precondition(lambda self: self.waiters())
    def gives_up(self, number: int, crash: Crash | None) -> None:
        """A waiter that cannot be placed: its promise is void, who was not told is spared, and it ends."""
        one = self.pick(number, self.waiters())
        assert one is not None
        assert self.act(lambda: self.estate.store.give_up_placing(one.id), crash)
        self.model.void(one, self.estate.now)
        self.model.spare(one.id)

    @rule(number=PICK, crash=CRASH)
    @precondition(lambda self: self.startable())
    def begins(self, number: int, crash: Crash | None) -> None:
        self.begin(number, crash)

    def begin(self, number: int, crash: Crash | None) -> None:
        one = self.pick(number, self.startable())
        if one is None:
            return

        def work() -> None:
            self.estate.store.mark(one.id, AttemptState.PENDING)
            self.estate.store.mark(one.id, AttemptState.RUNNING)

        self.act(work, crash, whole=False)
        self.model.runs(one, self.estate.now)

    def startable(self) -> list[Attempt]:
        return [one for one in self.model.live() if one.state == "RESERVED" and one.lease.state == "held"]

    @rule(number=PICK, crash=CRASH)
    @precondition(lambda self: self.stopping())
    def tell(self, number: int, crash: Crash | None) -> None:
        """The backend has the stop."""
        one = self.pick(number, self.stopping())
        assert one is not None
        self.say_stop(one, crash)

    def say_stop(self, one: Attempt, crash: Crash | None) -> None:
        grace = one.grace
        self.act(lambda: self.estate.store.stop_sent(one.id, grace), crash)
        self.model.told_to_stop(one, grace)

    def stopping(self) -> list[Attempt]:
        return [one for one in self.model.live() if one.cause is not None and not one.told and one.state != "RESERVED"]

    @rule(number=PICK, reason=REASONS, ago=st.integers(0, 7200), said=st.booleans(), crash=CRASH)
    @precondition(lambda self: self.model.attempts)
    def settle(self, number: int, reason: Reason, ago: int, *, said: bool, crash: Crash | None) -> None:
        """Any attempt, ended ones as well: a late or second word changes nothing."""
        one = self.pick(number, self.model.live()) or self.pick(number, list(self.model.attempts.values()))
        assert one is not None
        self.end(one, reason, self.estate.now - ago * 1000 if said else None, crash)

    def end(self, one: Attempt, reason: Reason, ended: int | None, crash: Crash | None) -> None:
        code = 1 if reason is Reason.NON_ZERO_EXIT else None
        end = EndRequest(one.id, reason.value, ended_ms=ended, exit_code=code)
        result = self.act(lambda: self.estate.store.settle(end), crash)
        assert result.first == one.live
        if one.live:
            self.count("settled")
            self.model.settle(one, reason, ended, self.estate.now)
        assert (result.attempt_state, result.job_state) == (one.state, one.job.state) or not result.first

    @rule(number=PICK, phase=st.sampled_from([Phase.PREPARED, Phase.PENDING]), reason=REASONS)
    @precondition(lambda self: self.model.attempts)
    def the_past_is_told_again(self, number: int, phase: Phase, reason: Reason) -> None:
        """A backend that replays its past (QL-02), and an end that is told once more, in other words."""
        one = self.pick(number, list(self.model.attempts.values()))
        assert one is not None
        self.estate.store.observe("b", [Observation(Handle("b", one.id, "n"), phase, self.estate.clock.at)])
        if not one.live:
            before = self.estate.digest()
            assert not self.estate.store.settle(EndRequest(one.id, reason.value)).first
            assert self.estate.digest() == before

    @rule(number=PICK, ago=st.integers(0, 7200), crash=CRASH)
    @precondition(lambda self: self.unknown())
    def the_end_becomes_known(self, number: int, ago: int, crash: Crash | None) -> None:
        one = self.pick(number, self.unknown())
        assert one is not None
        assert one.started is not None
        since, until = instant(one.started), self.estate.clock.at - timedelta(seconds=ago)

        def work() -> bool:
            lease_id = self.estate.scalar("SELECT id FROM leases WHERE attempt_id = :id", id=one.id)
            return bool(
                self.estate.transaction(
                    lambda session: leases.post_known_use(
                        session, lease_id, used_from=since, used_until=until, payer=Payer.TENANT
                    )
                )
            )

        assert self.act(work, crash)
        self.model.known(one.lease, one.started, self.estate.now - ago * 1000, "tenant", self.estate.now)

    def unknown(self) -> list[Attempt]:
        every = self.model.attempts.values()
        return [one for one in every if one.lease.state == "posted" and one.lease.payer == ""]
