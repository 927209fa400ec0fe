"""The steps of an attempt, done. Each re-reads the row first, acts only if that is still the step to do, and answers
with the row as it is then. Every step is safe to repeat: launches by their key, changes of state by their guards.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from temporalio import activity

from backends.errors import BackendError, Misconfigured, NoCapacity, OutcomeUnknown
from backends.port import Backend, Checkpoints
from backends.types import Handle, LaunchRequest, NoticeKind, StopMode
from policies.states import LIVE_ATTEMPT_STATES
from policies.vocabulary import AttemptState, StopCause
from workflows import gang
from workflows.activities.acting import heartbeats, outcome, rest
from workflows.activities.resizing import ResizeActivities
from workflows.decide import next_step
from workflows.messages import AttemptView, Done, EndRequest, Settled
from workflows.steps import AbortAll, Confirm, Launch, Mark, Prepare, SendCheckpoint, SendStop, Start
from workflows.store import Store

log = logging.getLogger(__name__)
UNKNOWN_PAUSES_S: Final = (0.2, 0.5, 1.0)


class AttemptActivities:
    """Bound to one process's store and backends (a live mapping: backends come and go)."""

    def __init__(
        self, store: Store, backends: Mapping[str, Backend], *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._store = store
        self._backends = backends
        self._sleep = sleep

    def all(self) -> list[Callable[..., Any]]:
        """What a worker registers."""
        return [
            self.load,
            self.mark,
            self.launch,
            self.prepare,
            self.start,
            self.send_stop,
            self.send_checkpoint,
            *ResizeActivities(self._store, self._backends).all(),
            self.confirm,
            self.abort_all,
            self.settle,
        ]

    # -- reading and marking (local activities) ---------------------------------------------------------------------

    @activity.defn(name="load_attempt")
    def load(self, attempt_id: str) -> AttemptView | None:
        """The row; None if there is none."""
        return self._store.load_attempt(attempt_id)

    @activity.defn(name="mark_attempt")
    def mark(self, step: Mark) -> Done:
        """A guarded step; when the row was elsewhere already, the answer shows where."""
        at = None if step.at_ms is None else datetime.fromtimestamp(step.at_ms / 1000, UTC)
        self._store.mark(step.attempt_id, AttemptState(step.to), at=at)
        return self._done(step.attempt_id)

    # -- launching --------------------------------------------------------------------------------------------------

    @activity.defn(name="launch")
    def launch(self, step: Launch) -> Done:
        """Prepare and start the only part."""
        with heartbeats():
            view = self._store.load_attempt(step.attempt_id)
            if view is None or next_step(view) != step:
                return _answer(view)
            problem = self._prepare(view, step.backend) or self._start(view, step.backend)
            if problem is not None:
                return problem
            # Not read again: all that can have changed meanwhile comes with a nudge, and one read a life is saved.
            state = AttemptState.PENDING if view.state == AttemptState.RESERVED else view.state
            return Done(view=replace(view, state=state, prepared=[step.backend], started=[step.backend]))

    @activity.defn(name="prepare")
    def prepare(self, step: Prepare) -> Done:
        """Prepare every part; the first refusal ends it."""
        with heartbeats():
            for backend in step.backends:
                view = self._store.load_attempt(step.attempt_id)
                if view is None or not isinstance(next_step(view), Prepare):
                    return _answer(view)
                problem = None if backend in view.prepared else self._prepare(view, backend)
                if problem is not None:
                    return problem
            return self._done(step.attempt_id)

    @activity.defn(name="start")
    def start(self, step: Start) -> Done:
        """Start one prepared part of several."""
        with heartbeats():
            view = self._store.load_attempt(step.attempt_id)
            if view is None or next_step(view) != step:
                return _answer(view)
            return self._start(view, step.backend) or self._done(step.attempt_id)

    def _prepare(self, view: AttemptView, name: str) -> Done | None:
        """None when it is prepared (or had been)."""
        if view.state == AttemptState.RESERVED and not self._store.mark(view.attempt_id, AttemptState.PENDING):
            view = self._store.load_attempt(view.attempt_id) or view
            if view.state != AttemptState.PENDING:
                return _answer(view)
        if name in view.prepared:
            return None
        request = self._store.launch_request(view.attempt_id, name)
        try:
            handle = self._insist(self._backend(name), request)
        except BackendError as error:
            self._rest(error, [group.pool for group in request.groups])
            return outcome(name, error, self._store.load_attempt(view.attempt_id))
        self._store.prepared(view.attempt_id, name, handle.native)
        return None

    def _insist(self, backend: Backend, request: LaunchRequest) -> Handle:
        """prepare(), and after a lost answer the same key again; then a look for what may have been made (SL-08)."""
        for pause_s in UNKNOWN_PAUSES_S:
            try:
                return backend.prepare(request)
            except OutcomeUnknown as error:
                log.info("launch %s at %s: %s", request.key, backend.name, error)
                self._sleep(pause_s)
        found = backend.find(request.key)
        return found if found is not None else backend.prepare(request)

    def _start(self, view: AttemptView, name: str) -> Done | None:
        view = self._store.load_attempt(view.attempt_id) or view
        if view.state not in LIVE_ATTEMPT_STATES or view.stop_cause or view.want_cancel:
            return _answer(view)
        try:
            self._backend(name).start(self._handle(view, name))
        except BackendError as error:
            if view.preemptor and isinstance(error, NoCapacity):
                self._look_again(name)
            self._rest(error, view.pools.get(name, ()))
            return outcome(name, error, self._store.load_attempt(view.attempt_id))
        self._store.started(view.attempt_id, name)
        return None

    # -- telling ------------------------------------------------------------------------------------------------------

    @activity.defn(name="send_stop")
    def send_stop(self, step: SendStop) -> Done:
        """Tell the whole gang. Every part is tried before an error counts: a dark one must not keep the others up."""
        with heartbeats():
            view = self._store.load_attempt(step.attempt_id)
            if view is None or view.state not in LIVE_ATTEMPT_STATES:
                return _answer(view)
            if step.cause and view.stop_cause != step.cause:
                self._store.ask_stop(step.attempt_id, StopCause(step.cause), step.grace_s)
            begun = {part.backend for part in gang.begun_parts(view)} | set(view.started)
            telling = time.monotonic()
            problems = self._each(view, view.backends, lambda name: self._tell(view, name, step, begun=name in begun))
            if problems:
                return outcome(problems[0][0], problems[0][1], self._store.load_attempt(step.attempt_id))
            self._store.stop_sent(step.attempt_id, step.grace_s, time.monotonic() - telling)
            return self._done(step.attempt_id)

    def _tell(self, view: AttemptView, name: str, step: SendStop, *, begun: bool) -> None:
        if begun:
            mode, kind = StopMode(step.mode), NoticeKind(step.kind)
            self._backend(name).stop(self._handle(view, name), mode, step.grace_s, kind)
        else:
            self._backend(name).abort(self._handle(view, name))

    @activity.defn(name="send_checkpoint")
    def send_checkpoint(self, step: SendCheckpoint) -> Done:
        """Ask for one save, where the backend can pass that on; the wish counts as carried out either way."""
        with heartbeats():
            view = self._store.load_attempt(step.attempt_id)
            if view is None or view.state not in LIVE_ATTEMPT_STATES or view.checkpoint_done >= step.number:
                return _answer(view)

            def tell(name: str) -> None:
                backend = self._backend(name)
                if isinstance(backend, Checkpoints) and backend.capabilities.checkpoint_signal:
                    backend.notify(self._handle(view, name), NoticeKind.CHECKPOINT, view.save_timeout_s)

            problems = self._each(view, view.started, tell)
            if problems:
                return Done(view=view, retry_after_s=2.0, problem=str(problems[0][1]))
            self._store.checkpoint_sent(step.attempt_id, step.number)
            return self._done(step.attempt_id)

    # -- ending -------------------------------------------------------------------------------------------------------

    @activity.defn(name="confirm")
    def confirm(self, step: Confirm) -> Done:
        """Absent is a strong word: ask by key; what is there after all is taken in and looked at."""
        with heartbeats():
            view = self._store.load_attempt(step.attempt_id)
            if view is None or view.state not in LIVE_ATTEMPT_STATES:
                return _answer(view)
            try:
                backend = self._backend(step.backend)
                found = backend.find(step.attempt_id)
                if found is not None:
                    self._store.adopt(step.attempt_id, step.backend, found.native)
                    self._store.observe(step.backend, backend.observe([found]))
            except BackendError as error:
                return outcome(step.backend, error, view)
            if found is None:
                return Done(view=self._store.load_attempt(step.attempt_id), absent=step.backend)
            return self._done(step.attempt_id)

    @activity.defn(name="abort_all")
    def abort_all(self, step: AbortAll) -> Done:
        """Nothing may be left anywhere before the lease goes back; then settle."""
        attempt_id = step.end.attempt_id
        with heartbeats():
            view = self._store.load_attempt(attempt_id)
            if view is None or view.state not in LIVE_ATTEMPT_STATES:
                return _answer(view)
            if view.lease_state == "contingent":
                self._store.give_up_placing(attempt_id)  # a dark backend must not keep its victims promised
            problems = self._each(view, view.backends, lambda name: self._backend(name).abort(self._handle(view, name)))
            if problems:
                return Done(view=view, retry_after_s=2.0, problem=str(problems[0][1]))
            for pool in step.rest:
                self._store.rest_pool(pool, step.rest_s, step.rest_reason)
            self._store.settle(step.end)
            return Done(settled=True)

    @activity.defn(name="settle")
    def settle(self, end: EndRequest) -> Settled:
        """One transaction, once per attempt. Local to the workflow's worker, so there is nobody to beat for."""
        return self._store.settle(end)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _backend(self, name: str) -> Backend:
        try:
            return self._backends[name]
        except KeyError:
            raise Misconfigured(f"backend {name} is not configured in this worker; apply its document again") from None

    def _handle(self, view: AttemptView, name: str) -> Handle:
        return Handle(name, view.attempt_id, view.handles.get(name, ""))

    def _each(
        self, view: AttemptView, names: Sequence[str], act: Callable[[str], None]
    ) -> list[tuple[str, BackendError]]:
        problems: list[tuple[str, BackendError]] = []
        for name in names:
            try:
                act(name)
            except BackendError as error:
                log.warning("attempt %s at %s: %s", view.attempt_id, name, error)
                problems.append((name, error))
            except Exception as error:  # a defect of one adapter must not keep the other parts up
                log.exception("attempt %s at %s", view.attempt_id, name)
                problems.append((name, OutcomeUnknown(f"{name}: {type(error).__name__}")))
        return problems

    def _look_again(self, name: str) -> None:
        """Its victims have left and there is no room: whoever took it shows in the newest capacity alone."""
        backend = self._backend(name)
        try:
            self._store.capacity(name, backend.capacity(), backend.capabilities)
        except BackendError as error:
            log.info("capacity of %s: %s", name, error)  # its follower reads it soon anyway

    def _rest(self, error: BackendError, pools: Sequence[str]) -> None:
        resting = rest(error)
        for pool in sorted(set(pools)) if resting else ():
            self._store.rest_pool(pool, resting[0] if resting else 0, resting[1] if resting else "")

    def _done(self, attempt_id: str) -> Done:
        return _answer(self._store.load_attempt(attempt_id))


def _answer(view: AttemptView | None) -> Done:
    return Done(view=view, settled=view is None or view.state not in LIVE_ATTEMPT_STATES)
