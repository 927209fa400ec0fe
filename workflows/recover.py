"""`tidegate recover`, after a restore from backup: the ledger has forgotten what happened since, the backends have not.

A new epoch, every open workflow ended, every backend listed, objects adopted by their key or ended, what has ended
settled, and workflows started again from their rows. A backend that cannot be asked is named in the report; nothing
is concluded about it.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from backends.errors import BackendError
from backends.port import Backend
from policies.vocabulary import AttemptState
from workflows.activities.reconciler import compare
from workflows.store import Live, Store

HOLDER: Final = "recover"
_OPEN: Final = "ExecutionStatus = 'Running' AND WorkflowType IN ('attempt', 'duty')"


@dataclass(slots=True)
class RecoverReport:
    """What was found and done. `unreachable`: backend -> why it could not be asked; run again once it answers."""

    epoch: int = 0
    workflows_ended: int = 0
    adopted: list[str] = field(default_factory=list)
    objects_ended: list[str] = field(default_factory=list)
    settled: list[str] = field(default_factory=list)
    restarted: list[str] = field(default_factory=list)
    unreachable: dict[str, str] = field(default_factory=dict)


async def recover(store: Store, backends: Mapping[str, Backend], client: Client) -> RecoverReport:
    """Run it while no worker runs. Safe to repeat."""
    report = RecoverReport(epoch=await asyncio.to_thread(store.take_epoch, HOLDER))
    report.workflows_ended = await _end_workflows(client)
    seen: set[tuple[str, str]] = set()
    for name in sorted(backends):
        try:
            seen |= await asyncio.to_thread(_take_in, store, name, backends[name], report)
        except BackendError as error:
            report.unreachable[name] = str(error)
    for attempt in await asyncio.to_thread(store.live_attempts, ""):
        if await asyncio.to_thread(_is_lost, attempt, backends, seen, report):
            await asyncio.to_thread(store.end_without_evidence, attempt.attempt_id)
            report.settled.append(attempt.attempt_id)
        else:
            await asyncio.to_thread(store.start_again, attempt.attempt_id)
            report.restarted.append(attempt.attempt_id)
    return report


async def _end_workflows(client: Client) -> int:
    ended = 0
    async for found in client.list_workflows(_OPEN):
        try:
            await client.get_workflow_handle(found.id, run_id=found.run_id).terminate("tidegate recover")
            ended += 1
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
    return ended


def _take_in(store: Store, name: str, backend: Backend, report: RecoverReport) -> set[tuple[str, str]]:
    """Adopt, end and observe at one backend; the (backend, key) pairs that exist there."""
    owned = backend.list_owned()
    live = store.live_attempts(name)
    orders = compare(owned, live, name, datetime.now(UTC), backend.capabilities.settle_s)
    for one in orders.adopt:
        if store.adopt(one.handle.key, name, one.handle.native):
            report.adopted.append(one.handle.key)
    for one in orders.end:
        backend.abort(one.handle)
        report.objects_ended.append(one.handle.key)
    wanted = {attempt.attempt_id for attempt in live}
    ended = {(one.handle.key, one.handle.native) for one in orders.end}
    kept = [one for one in owned if one.handle.key in wanted and (one.handle.key, one.handle.native) not in ended]
    store.observe(name, backend.observe([one.handle for one in kept]))
    return {(name, one.handle.key) for one in kept}


def _is_lost(attempt: Live, backends: Mapping[str, Backend], seen: set[tuple[str, str]], report: RecoverReport) -> bool:
    """Launched once, and no backend that it was placed at has anything of it: asked again by key, and all answered."""
    if attempt.state is AttemptState.RESERVED:
        return False
    for name in attempt.backends:
        if name not in backends or name in report.unreachable or (name, attempt.attempt_id) in seen:
            return False
        try:
            if backends[name].find(attempt.attempt_id) is not None:
                return False
        except BackendError as error:
            report.unreachable[name] = str(error)
            return False
    return bool(attempt.backends)
