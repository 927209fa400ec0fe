"""The reconciler's loop: objects at the backends against live attempts in the ledger, and workflows against rows.

An object that a live attempt wants is taken in; one that no live attempt wants is ended, once it is older than the
backend's settle time. A backend that cannot be asked is left alone: no answer is no evidence. Also posts running use.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from backends.errors import BackendError
from backends.port import Backend
from backends.types import Owned, Phase
from workflows.activities.acting import heartbeats
from workflows.activities.turns import Turn
from workflows.messages import Duty
from workflows.store import Live, Store

log = logging.getLogger(__name__)
ZOMBIE_AFTER_S: Final = 60  # at least; a launch whose row is not committed yet is not a zombie
ORPHANED_AFTER_S: Final = 60
AT_ONCE: Final = 16
_OPEN: Final = "ExecutionStatus = 'Running' AND WorkflowType = 'attempt'"


@dataclass(frozen=True, slots=True)
class Orders:
    """What to do about the objects of one backend."""

    adopt: tuple[Owned, ...] = ()
    end: tuple[Owned, ...] = ()


def compare(  # noqa: PLR0917  (read as a sentence by its two callers)
    owned: Iterable[Owned],
    live: Sequence[Live],
    backend: str,
    now: datetime,
    settle_s: int,
    least_s: int = ZOMBIE_AFTER_S,
) -> Orders:
    """Pure. An object that nobody wants is ended once it is older than `settle_s` and `least_s`.

    Of two objects with one key the lower native id wins, unless the ledger drives the other one already (DESIGN §5);
    ended objects are left to the backend.
    """
    wanted = {attempt.attempt_id: attempt for attempt in live if backend in attempt.backends}
    old = now - timedelta(seconds=max(settle_s, least_s))
    adopt: list[Owned] = []
    end: list[Owned] = []
    for key, same in groupby(sorted(owned, key=lambda one: one.handle.key), key=lambda one: one.handle.key):
        objects = sorted(same, key=lambda one: _native_order(one.handle.native))
        attempt = wanted.get(key)
        if attempt is None:
            end.extend(one for one in objects if _runs(one) and one.created_at < old)
            continue
        known = attempt.handles.get(backend)
        keep = next((one for one in objects if one.handle.native == known), objects[0])
        if known != keep.handle.native:
            adopt.append(keep)
        end.extend(one for one in objects if _runs(one) and one.handle.native != keep.handle.native)
    return Orders(tuple(adopt), tuple(end))


def _runs(one: Owned) -> bool:
    return one.phase not in {Phase.ENDED, Phase.ABSENT}


def _native_order(native: str) -> tuple[int, int, str]:
    """Numbers by value before any other text, so that job 9 is lower than job 10."""
    return (0, int(native), "") if native.isdecimal() else (1, 0, native)


class ReconcilerActivity:
    """Two duties: `reconciler` compares, `accrual` posts use and renews rolling leases."""

    def __init__(
        self,
        store: Store,
        backends: Mapping[str, Backend],
        client: Client,
        *,
        every_s: float = 30.0,
        accrue_every_s: float = 300.0,
    ) -> None:
        self._store = store
        self._backends = backends
        self._client = client
        self._every_s = every_s
        self._accrue_every_s = accrue_every_s

    @activity.defn(name="duty_reconciler")
    async def reconcile(self, _duty: Duty) -> str:
        """One turn: every backend and the workflows, every `every_s`."""
        turn = Turn()
        due = time.monotonic()
        while turn.goes_on():
            if time.monotonic() >= due:
                # In a task of its own, so that a slow backend does not stop the heartbeat.
                work = asyncio.create_task(self.once())
                while not work.done() and turn.goes_on():
                    await asyncio.wait([work], timeout=1)
                if not work.done():
                    work.cancel()
                due = time.monotonic() + self._every_s
            await asyncio.sleep(min(1.0, self._every_s))
        return "turn"

    async def once(self) -> None:
        """One pass; what fails is logged and comes again with the next."""
        try:
            names = await asyncio.to_thread(list, self._backends)
        except Exception:
            log.exception("the backends could not be read")
            names = []
        for name in names:
            try:
                await asyncio.to_thread(self.reconcile_backend, name)
            except BackendError as error:
                log.warning("reconciling %s: %s; nothing was concluded", name, error)
            except Exception:
                log.exception("reconciling %s failed", name)
        try:
            await self.restart_orphans()
        except Exception:
            log.exception("looking for attempts without a workflow failed")

    def reconcile_backend(self, name: str) -> Orders:
        """Compare and act at one backend. The backend is listed BEFORE the ledger: an attempt that is admitted in
        between has its row by then, so that its object is never taken for a zombie.
        """
        backend = self._backends[name]
        owned = backend.list_owned()
        live = self._store.live_attempts(name)
        now = datetime.now(tz=owned[0].created_at.tzinfo) if owned else None
        if now is None:
            return Orders()
        orders = compare(owned, live, name, now, backend.capabilities.settle_s)
        for one in orders.adopt:
            self._store.adopt(one.handle.key, name, one.handle.native)
        for one in orders.end:
            log.warning("%s: %s (%s) belongs to no live attempt and is ended", name, one.handle.key, one.handle.native)
            try:
                backend.abort(one.handle)
            except BackendError as error:
                log.warning("%s: %s could not be ended: %s", name, one.handle.key, error)
        return orders

    async def restart_orphans(self, older_than_s: int = ORPHANED_AFTER_S) -> list[str]:
        """Live attempts whose workflow is not open get a start row; their ids."""
        candidates = await asyncio.to_thread(self._store.without_workflow, older_than_s)
        if candidates:
            # Listing costs a call per thousand; it may lag, so that only what it misses is asked for one by one.
            listed = {found.id async for found in self._client.list_workflows(_OPEN, page_size=1000)}
            candidates = [attempt_id for attempt_id in candidates if attempt_id not in listed]
        gate = asyncio.Semaphore(AT_ONCE)

        async def orphaned(attempt_id: str) -> bool:
            async with gate:
                return not await is_open(self._client, attempt_id)

        answers = await asyncio.gather(*(orphaned(attempt_id) for attempt_id in candidates))
        orphans = [attempt_id for attempt_id, alone in zip(candidates, answers, strict=True) if alone]
        for attempt_id in orphans:
            log.warning("attempt %s has no workflow; it is started again", attempt_id)
            await asyncio.to_thread(self._store.start_again, attempt_id)
        return orphans

    @activity.defn(name="duty_accrual")
    def accrue(self, _duty: Duty) -> str:
        """One turn: post use every `accrue_every_s`, and once at its beginning."""
        turn = Turn()
        due = time.monotonic()
        while turn.goes_on():
            if time.monotonic() >= due:
                try:
                    with heartbeats():
                        self._store.accrue()
                except Exception:
                    log.exception("posting use failed; again at the next period")
                due = time.monotonic() + self._accrue_every_s
            time.sleep(min(1.0, self._accrue_every_s))
        return "turn"


async def is_open(client: Client, workflow_id: str) -> bool:
    """Whether a run of this id is open. Errors other than "not found" are raised: no answer is not "no workflow"."""
    try:
        described = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return described.status is WorkflowExecutionStatus.RUNNING
