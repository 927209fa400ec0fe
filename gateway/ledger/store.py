"""The ledger as the workflows see it: `workflows.store.Store` on PostgreSQL, each call one transaction.

Decides nothing: it gives each call its transaction, and keeps what a process may remember between two cycles (decoded
jobs, the last stored snapshot). Losing that memory costs time and nothing else.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from backends.types import Capabilities, LaunchRequest, Observation, PoolCapacity
from gateway.ledger import (
    accrual,
    bulk,
    commit,
    inplace,
    launch,
    observe,
    outbox,
    placing,
    quiet,
    recall,
    reconcile,
    settlement,
    snapshot,
    steps,
    views,
)
from gateway.ledger.archive import Archive
from gateway.ledger.codec import plain
from gateway.ledger.config import LedgerSettings
from gateway.ledger.engine import in_transaction
from gateway.ledger.listen import Listener
from gateway.ledger.queue import QueueMemory
from policies.decisions import Plan
from policies.settings import PolicySettings
from policies.vocabulary import AttemptState, StopCause
from workflows.messages import AttemptView, EndRequest, Settled
from workflows.store import CommitReport, Cycle, Due, Forgotten, Launched, Live, OutboxItem

# The clock's epoch is beyond any that a database restored from a backup could know of: nobody comes back to life.
_TAKE = text(
    """
    UPDATE arbiter SET epoch = greatest(epoch + 1, extract(epoch FROM now())::bigint), holder = :holder, beat = now()
    WHERE id = 1 RETURNING epoch
    """
)


class PostgresStore:
    """Safe to call from many threads; the memory of cycles belongs to the one thread that runs the arbiter."""

    def __init__(
        self,
        engine: Engine,
        dsn: str,
        settings: LedgerSettings,
        *,
        policy: PolicySettings | None = None,
        config_digest: str = "",
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._policy = policy
        self._config = config_digest
        self._work = Listener(dsn, outbox.WORK)
        self._owed = Listener(dsn, outbox.OUTBOX)
        self._memory = QueueMemory()
        self._archive = Archive()

    def close(self) -> None:
        """Let the LISTEN connections go; the engine is its maker's."""
        self._work.close()
        self._owed.close()

    # -- arbiter ------------------------------------------------------------------------------------------------
    def take_epoch(self, holder: str) -> int:
        """See Store."""
        return in_transaction(self._engine, lambda s: int(s.execute(_TAKE, {"holder": holder}).scalar_one()))

    def beat(self, epoch: int) -> None:
        """See Store."""
        in_transaction(self._engine, lambda s: commit.prove(s, epoch))

    def wait_for_work(self, timeout_s: float) -> bool:
        """See Store."""
        return self._work.wait(timeout_s)

    def fingerprint(self) -> str:
        """See Store."""
        return in_transaction(self._engine, quiet.fingerprint)

    def cycle(self) -> Cycle:
        """See Store."""
        restart_ms = self._settings.default_restart_s * 1000
        with Session(self._engine) as session, session.begin():
            return snapshot.read(session, self._memory, default_restart_ms=restart_ms)

    def commit(self, epoch: int, cycle: Cycle, plan: Plan) -> CommitReport:
        """See Store."""
        done = in_transaction(
            self._engine,
            lambda s: commit.apply(s, epoch, cycle, plan, archive=self._archive, config=self._config),
        )
        self._archive = done.archive
        return done.report

    # -- relay ----------------------------------------------------------------------------------------------------
    def wait_for_outbox(self, timeout_s: float) -> bool:
        """See Store."""
        return self._owed.wait(timeout_s)

    def claim_outbox(self, limit: int) -> Sequence[OutboxItem]:
        """See Store."""
        return in_transaction(self._engine, lambda s: outbox.claim(s, limit))

    def outbox_done(self, ids: Sequence[int]) -> None:
        """See Store."""
        in_transaction(self._engine, lambda s: outbox.done(s, ids))

    def outbox_failed(self, item_id: int, error: str) -> None:
        """See Store."""
        in_transaction(self._engine, lambda s: outbox.failed(s, item_id, error))

    def claim_webhooks(self, limit: int) -> Sequence[OutboxItem]:
        """See Store."""
        return in_transaction(self._engine, lambda s: outbox.claim(s, limit, webhooks=True))

    def webhook_failed(self, item_id: int, error: str, delay_s: int | None) -> None:
        """See Store."""
        if delay_s is None:
            in_transaction(self._engine, lambda s: outbox.give_up(s, item_id, error))
        else:
            in_transaction(self._engine, lambda s: outbox.put_off(s, item_id, error, delay_s))

    def begin_launches(self, attempts: Sequence[str]) -> Sequence[Due]:
        """See Store."""
        return in_transaction(self._engine, lambda s: bulk.begin(s, attempts, self._settings))

    def still_wanted(self, attempts: Sequence[str]) -> frozenset[str]:
        """See Store."""
        return in_transaction(self._engine, lambda s: bulk.still_wanted(s, attempts))

    def launched(self, done: Sequence[Launched]) -> None:
        """See Store."""
        in_transaction(self._engine, lambda s: bulk.launched(s, done))

    # -- attempt --------------------------------------------------------------------------------------------------
    def load_attempt(self, attempt_id: str) -> AttemptView | None:
        """See Store."""
        return in_transaction(self._engine, lambda s: views.load(s, attempt_id, self._settings))

    def launch_request(self, attempt_id: str, backend: str) -> LaunchRequest:
        """See Store. LookupError: there is no such live attempt."""
        return in_transaction(self._engine, lambda s: launch.request(s, attempt_id, backend, self._settings))

    def mark(self, attempt_id: str, to: AttemptState, *, at: datetime | None = None) -> bool:
        """See Store."""
        return in_transaction(self._engine, lambda s: steps.mark(s, attempt_id, to, at))

    def prepared(self, attempt_id: str, backend: str, native: str) -> None:
        """See Store."""
        in_transaction(self._engine, lambda s: steps.prepared(s, attempt_id, backend, native))

    def give_up_placing(self, attempt_id: str) -> bool:
        """See Store."""
        return in_transaction(self._engine, lambda s: placing.give_up(s, attempt_id))

    def started(self, attempt_id: str, backend: str) -> None:
        """See Store."""
        in_transaction(self._engine, lambda s: steps.started(s, attempt_id, backend))

    def ask_stop(self, attempt_id: str, cause: StopCause, grace_s: int) -> bool:
        """See Store."""
        return in_transaction(self._engine, lambda s: steps.ask_stop(s, attempt_id, cause, grace_s))

    def stop_sent(self, attempt_id: str, grace_s: int | None = None, since_s: float = 0) -> None:
        """See Store."""
        in_transaction(self._engine, lambda s: steps.stop_sent(s, attempt_id, grace_s, since_s))

    def checkpoint_sent(self, attempt_id: str, number: int) -> None:
        """See Store."""
        in_transaction(self._engine, lambda s: steps.checkpoint_sent(s, attempt_id, number))

    def resize_sent(self, attempt_id: str) -> None:
        """See Store."""
        in_transaction(self._engine, lambda s: inplace.sent(s, attempt_id))

    def resized(self, attempt_id: str, *, reached: bool, message: str = "") -> bool:
        """See Store."""
        return in_transaction(
            self._engine, lambda s: inplace.done(s, attempt_id, reached=reached, message=plain(message))
        )

    def settle(self, end: EndRequest) -> Settled:
        """See Store."""
        return in_transaction(self._engine, lambda s: self._settle(s, end))

    def accrue(self) -> int:
        """See Store. An attempt whose renewal was refused is told to save and leave. Old outbox rows are forgotten."""
        done = accrual.accrue(self._engine)
        for attempt_id in done.refused:
            in_transaction(self._engine, lambda s, one=attempt_id: steps.out_of_budget(s, one, self._settings))  # type: ignore[misc]
        in_transaction(self._engine, outbox.prune)
        return done.touched

    def rest_pool(self, pool: str, seconds: int, reason: str) -> None:
        """See Store."""
        in_transaction(self._engine, lambda s: observe.rest_pool(s, pool, seconds, reason))

    # -- followers and reconciler ---------------------------------------------------------------------------------
    def live_attempts(self, backend: str) -> Sequence[Live]:
        """See Store."""
        return in_transaction(self._engine, lambda s: reconcile.live_attempts(s, backend))

    def observe(self, backend: str, observations: Sequence[Observation]) -> int:
        """See Store."""
        return in_transaction(self._engine, lambda s: observe.store(s, backend, observations)) if observations else 0

    def capacity(self, backend: str, pools: Sequence[PoolCapacity], capabilities: Capabilities | None = None) -> None:
        """See Store."""
        in_transaction(self._engine, lambda s: observe.capacity(s, backend, pools, capabilities))

    def answered(self, backend: str) -> None:
        """See Store."""
        in_transaction(self._engine, lambda s: observe.answered(s, backend))

    def dark(self, backend: str, problem: str) -> None:
        """See Store."""
        in_transaction(self._engine, lambda s: observe.dark(s, backend, problem))

    def without_workflow(self, older_than_s: int) -> Sequence[str]:
        """See Store."""
        return in_transaction(self._engine, lambda s: reconcile.without_workflow(s, older_than_s))

    def start_again(self, attempt_id: str) -> None:
        """See Store."""
        in_transaction(self._engine, lambda s: reconcile.start_again(s, attempt_id))

    def adopt(self, attempt_id: str, backend: str, native: str) -> bool:
        """See Store."""
        return in_transaction(self._engine, lambda s: steps.adopt(s, attempt_id, backend, native))

    def end_without_evidence(self, attempt_id: str) -> Settled:
        """See Store."""
        return in_transaction(self._engine, lambda s: self._settle(s, reconcile.last_end(s, attempt_id)))

    # -- recover ------------------------------------------------------------------------------------------------
    def take_in(self, found: Forgotten) -> str:
        """See Store."""
        return in_transaction(self._engine, lambda s: recall.take_in(s, found, self._policy))

    def after_restore(self) -> Sequence[str]:
        """See Store."""
        return in_transaction(self._engine, lambda s: recall.after_restore(s, self._settings))

    def _settle(self, session: Session, end: EndRequest) -> Settled:
        restart_ms = self._settings.default_restart_s * 1000
        end = replace(end, message=plain(end.message), bad_nodes=[plain(node) for node in end.bad_nodes])
        return settlement.settle(session, end, settings=self._policy, default_restart_ms=restart_ms)
