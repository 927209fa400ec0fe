"""A resize inside a living launch, asked of its backend and ended: at the asked size, or at the old one."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from temporalio import activity

from backends.errors import BackendError, Misconfigured, Refused
from backends.port import Backend, Resizes
from backends.types import Handle
from policies.states import LIVE_ATTEMPT_STATES
from workflows.activities.acting import heartbeats, outcome
from workflows.messages import AttemptView, Done
from workflows.steps import FinishResize, SendResize
from workflows.store import Store

log = logging.getLogger(__name__)


class ResizeActivities:
    """Bound to one process's store and backends (a live mapping)."""

    def __init__(self, store: Store, backends: Mapping[str, Backend]) -> None:
        self._store = store
        self._backends = backends

    def all(self) -> list[Callable[..., Any]]:
        """What a worker registers."""
        return [self.send, self.finish]

    @activity.defn(name="send_resize")
    def send(self, step: SendResize) -> Done:
        """Ask once. A refusal ends it at the old size, and is no end of the attempt."""
        with heartbeats():
            view = self._store.load_attempt(step.attempt_id)
            if view is None or view.resize is None or view.resize.sent or view.resize.replicas != step.replicas:
                return _answer(view)
            try:
                self._resize(view, step.backend, step.group, step.replicas, tuple(step.nodes))
            except (Refused, Misconfigured) as error:
                self._store.resized(step.attempt_id, reached=False, message=str(error))
                return _answer(self._store.load_attempt(step.attempt_id))
            except BackendError as error:
                return outcome(step.backend, error, view)
            self._store.resize_sent(step.attempt_id)
            return _answer(self._store.load_attempt(step.attempt_id))

    @activity.defn(name="finish_resize")
    def finish(self, step: FinishResize) -> Done:
        """It is there; or it did not come in time, and the backend is asked back before the lease is changed back."""
        with heartbeats():
            view = self._store.load_attempt(step.attempt_id)
            if view is None or view.resize is None:
                return _answer(view)
            if not step.reached:
                try:
                    self._resize(view, step.backend, step.group, step.before, ())
                except (Refused, Misconfigured) as error:
                    log.warning("attempt %s could not be asked back to its size: %s", step.attempt_id, error)
                except BackendError as error:
                    return outcome(step.backend, error, view)
            message = "" if step.reached else "it did not come to that size in time"
            self._store.resized(step.attempt_id, reached=step.reached, message=message)
            return _answer(self._store.load_attempt(step.attempt_id))

    def _resize(self, view: AttemptView, name: str, group: str, replicas: int, nodes: tuple[str, ...]) -> None:
        backend = self._backends.get(name)
        if backend is None:
            raise Misconfigured(f"backend {name} is not configured in this worker; apply its document again")
        if not isinstance(backend, Resizes) or not backend.capabilities.resize:
            raise Refused(f"{name} changes no running launch's size", reason="NotOffered")
        handle = Handle(name, view.attempt_id, view.handles.get(name, ""))
        backend.resize(handle, group, replicas, nodes)


def _answer(view: AttemptView | None) -> Done:
    return Done(view=view, settled=view is None or view.state not in LIVE_ATTEMPT_STATES)
