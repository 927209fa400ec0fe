"""`tidegate recover`, after a restore from backup: the ledger has forgotten what happened since, the backends have not.

A new epoch, every open workflow ended, every backend listed. What the ledger knows is looked at, and settled where it
is over. What it has forgotten is taken in by its tags (the newest attempt of each job), ended ones first, so that their
leases are free again for those that run; what cannot be taken in is ended, with the rule in words. Then workflows start
again from their rows. A backend that cannot be asked is named in the report; nothing is concluded about it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from backends.errors import BackendError
from backends.naming import parse_attempt_id
from backends.port import Backend, Recalls
from backends.types import Handle, Owned, Phase, Recalled
from policies.vocabulary import AttemptState
from workflows.activities.reconciler import compare
from workflows.decide import next_step
from workflows.steps import Settle
from workflows.store import Forgotten, Live, Part, Store

HOLDER: Final = "recover"
OF_NOBODY: Final = "no live attempt wants it"
TWICE: Final = "its launch has another object"
_ANY_AGE: Final = datetime.max.replace(tzinfo=UTC)  # for `now`: nobody launches anything, so that nothing is too young
_OPEN: Final = "ExecutionStatus = 'Running' AND WorkflowType IN ('attempt', 'duty')"


@dataclass(slots=True)
class RecoverReport:
    """What was found and done. `unreachable`: backend -> why it could not be asked; run again once it answers.

    adopted: attempts whose objects were taken in. remembered: those of them that the ledger had forgotten altogether.
    objects_ended: key -> by which rule. stops_forgotten: told to stop after the backup, nobody knows why any more.
    """

    epoch: int = 0
    workflows_ended: int = 0
    adopted: list[str] = field(default_factory=list)
    remembered: list[str] = field(default_factory=list)
    objects_ended: dict[str, str] = field(default_factory=dict)
    stops_forgotten: list[str] = field(default_factory=list)
    settled: list[str] = field(default_factory=list)
    restarted: list[str] = field(default_factory=list)
    unreachable: dict[str, str] = field(default_factory=dict)


async def recover(store: Store, backends: Mapping[str, Backend], client: Client) -> RecoverReport:
    """Run it while no worker runs. Safe to repeat."""
    report = RecoverReport(epoch=await asyncio.to_thread(store.take_epoch, HOLDER))
    report.workflows_ended = await _end_workflows(client)
    await asyncio.to_thread(_Recovery(store, backends, report).run)
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


class _Recovery:
    """One pass over all backends. Blocking."""

    def __init__(self, store: Store, backends: Mapping[str, Backend], report: RecoverReport) -> None:
        self._store = store
        self._backends = backends
        self._report = report
        self._owned: dict[str, Sequence[Owned]] = {}

    def run(self) -> None:
        """Everything but Temporal."""
        for name in sorted(self._backends):
            self._each(name, self._look)
        self._settle_what_is_over(self._store.live_attempts(""))
        rules = {found.key: self._remember(found) for found in self._forgotten()}
        for name in sorted(self._owned):
            self._each(name, lambda name: self._end_the_rest(name, rules))
        self._start_the_rest()

    def _each(self, name: str, act: Callable[[str], None]) -> None:
        """Act at one backend; one that does not answer is out of it from then on."""
        try:
            act(name)
        except BackendError as error:
            self._report.unreachable[name] = str(error)
            self._owned.pop(name, None)

    # -- what the ledger knows ------------------------------------------------------------------------------------

    def _look(self, name: str) -> None:
        """List, take in what a known attempt wants, and observe it."""
        self._owned[name] = owned = self._backends[name].list_owned()
        live = self._store.live_attempts(name)
        orders = compare(owned, live, name, _ANY_AGE, 0, 0)
        for one in orders.adopt:
            if self._store.adopt(one.handle.key, name, one.handle.native):
                self._report.adopted.append(one.handle.key)
        self._owned[name] = [one for one in owned if one not in orders.end or one.handle.key not in _keys(live)]
        for one in orders.end:
            if one.handle.key in _keys(live):  # a second object of one launch
                self._backends[name].abort(one.handle)
                self._report.objects_ended[one.handle.key] = TWICE
        self._observe(name, _keys(live))

    def _observe(self, name: str, keys: set[str]) -> None:
        handles = [one.handle for one in self._owned[name] if one.handle.key in keys]
        if handles:
            self._store.observe(name, self._backends[name].observe(handles))

    def _settle_what_is_over(self, live: Sequence[Live]) -> None:
        self._report.stops_forgotten += self._store.after_restore()
        for attempt in live:
            view = self._store.load_attempt(attempt.attempt_id)
            step = None if view is None else next_step(view)
            if isinstance(step, Settle):
                self._store.settle(step.end)
                self._report.settled.append(attempt.attempt_id)

    # -- what it has forgotten ------------------------------------------------------------------------------------

    def _forgotten(self) -> list[Forgotten]:
        """The newest unknown launch of each job (or index), those that have ended first."""
        known = {attempt.attempt_id for attempt in self._store.live_attempts("")}
        parts: dict[str, dict[str, Owned]] = {}
        for name, owned in self._owned.items():
            for one in owned:
                if one.handle.key not in known and _is_ours(one):
                    parts.setdefault(one.handle.key, {})[name] = one
        newest: dict[tuple[object, object], str] = {}
        for key in sorted(parts, key=lambda key: parse_attempt_id(key)[2]):
            job, chunk, _ = parse_attempt_id(key)
            newest[job, chunk] = key
        found = [Forgotten(key, self._parts(parts[key])) for key in newest.values()]
        over = {key: all(one.phase is Phase.ENDED for one in parts[key].values()) for key in newest.values()}
        return sorted(found, key=lambda one: (not over[one.key], one.key))

    def _parts(self, owned: Mapping[str, Owned]) -> dict[str, Part]:
        found = {}
        for name, one in owned.items():
            recalled = self._recalled(name, one.handle)
            found[name] = Part(
                native=one.handle.native,
                placed=recalled.placed if recalled is not None else (),
                begun=one.phase not in {Phase.PREPARED, Phase.ABSENT},
                token_sha256=recalled.token_sha256 if recalled is not None else b"",
            )
        return found

    def _recalled(self, name: str, handle: Handle) -> Recalled | None:
        backend = self._backends[name]
        try:
            return backend.recall(handle) if isinstance(backend, Recalls) else None
        except BackendError as error:
            self._report.unreachable[name] = str(error)
            return None

    def _remember(self, found: Forgotten) -> str:
        rule = self._store.take_in(found)
        if not rule:
            self._report.adopted.append(found.key)
            self._report.remembered.append(found.key)
            for name in found.parts:
                self._each(name, lambda name: self._observe(name, {found.key}))
            self._settle_what_is_over([one for one in self._store.live_attempts("") if one.attempt_id == found.key])
        return rule

    def _end_the_rest(self, name: str, rules: Mapping[str, str]) -> None:
        """What runs and is not wanted, however young: nobody is launching anything now."""
        for one in compare(self._owned[name], self._store.live_attempts(name), name, _ANY_AGE, 0, 0).end:
            if self._report.unreachable and one.handle.key in rules:
                continue  # the rest of it may be where nobody can ask; the next run decides
            self._backends[name].abort(one.handle)
            self._report.objects_ended[one.handle.key] = rules.get(one.handle.key) or OF_NOBODY

    # -- and on it goes -------------------------------------------------------------------------------------------

    def _start_the_rest(self) -> None:
        for attempt in self._store.live_attempts(""):
            if self._is_lost(attempt):
                self._store.end_without_evidence(attempt.attempt_id)
                self._report.settled.append(attempt.attempt_id)
            else:
                self._store.start_again(attempt.attempt_id)
                self._report.restarted.append(attempt.attempt_id)

    def _is_lost(self, attempt: Live) -> bool:
        """Launched once, and no backend where it was placed has anything of it: asked by key, and all answered."""
        if attempt.state is AttemptState.RESERVED:
            return False
        for name in attempt.backends:
            listed = {one.handle.key for one in self._owned.get(name, ())}
            if name not in self._backends or name in self._report.unreachable or attempt.attempt_id in listed:
                return False
            try:
                if self._backends[name].find(attempt.attempt_id) is not None:
                    return False
            except BackendError as error:
                self._report.unreachable[name] = str(error)
                return False
        return bool(attempt.backends)


def _keys(live: Sequence[Live]) -> set[str]:
    return {attempt.attempt_id for attempt in live}


def _is_ours(one: Owned) -> bool:
    """Whether its key is an attempt's: anything else with our tag was made by hand."""
    try:
        parse_attempt_id(one.handle.key)
    except ValueError:
        return False
    return True
