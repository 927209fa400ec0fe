"""First launches of attempts that are due together, before their workflows begin (DESIGN §4.3).

An offer and no promise: what is not plain, fails, or does not fit into the time is left to the attempt's own workflow,
which finds the launch by its key and takes over from any state. Decides nothing; a launch here is the same prepare and
start with the same key, each after a fresh look at the wishes.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from backends.errors import BackendError, Misconfigured, Refused
from backends.port import Backend
from backends.types import Handle
from workflows.store import Due, Launched, Store

log = logging.getLogger(__name__)
_T = TypeVar("_T", Due, Handle)
AT_ONCE: Final = 8
BUDGET_S: Final = 2.0  # for a batch; a backend that needs longer has the workflows' own threads
REST_S: Final = 30.0  # for a backend that did not keep to it, or did not answer


class BulkLauncher:
    """Bound to one process's store and backends. Safe from several threads."""

    def __init__(
        self, store: Store, backends: Mapping[str, Backend], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._backends = backends
        self._clock = clock
        self._rests: dict[str, float] = {}
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="bulk")

    def launch(self, attempts: Sequence[str]) -> int:
        """Launch those that can be; how many were. Raises nothing: the workflows do what is left."""
        try:
            return self._launch(attempts)
        except Exception:
            log.exception("%d attempts could not be launched together; their workflows launch them", len(attempts))
            return 0

    def _launch(self, attempts: Sequence[str]) -> int:
        until = self._clock() + BUDGET_S
        resting = [name for name, over in self._rests.items() if over > self._clock()]
        if resting and set(self._backends) <= set(resting):
            return 0
        due = [one for one in self._store.begin_launches(attempts) if one.backend not in resting]
        prepared = self._each(due, self._prepare, until)
        if not prepared:
            return 0
        wanted = self._store.still_wanted([handle.key for handle in prepared])
        started = self._each([handle for handle in prepared if handle.key in wanted], self._start, until)
        if started:
            self._store.launched([Launched(handle.key, handle.backend, handle.native) for handle in started])
        return len(started)

    def _each(self, items: Sequence[_T], act: Callable[[_T], Handle], until: float) -> list[Handle]:
        """The handles of those that went well before the time was over."""

        def one(item: _T) -> Handle | None:
            if self._clock() > until or self._rests.get(item.backend, 0.0) > self._clock():
                return None
            try:
                handle = act(item)
            except (Refused, Misconfigured) as error:
                log.info("not launched in bulk at %s: %s", item.backend, error)
                return None
            except BackendError as error:
                log.info("no launch in bulk at %s for %.0f s: %s", item.backend, REST_S, error)
                self._rests[item.backend] = self._clock() + REST_S
                return None
            except Exception:  # a defect of one adapter, or of one request, must not keep the others waiting
                log.exception("not launched in bulk at %s", item.backend)
                return None
            if self._clock() > until:
                self._rests[item.backend] = self._clock() + REST_S
            return handle

        if len(items) == 1:
            return _found([one(items[0])])
        return _found(self._pool.map(one, items))

    def _prepare(self, due: Due) -> Handle:
        return self._backends[due.backend].prepare(due.request)

    def _start(self, handle: Handle) -> Handle:
        self._backends[handle.backend].start(handle)
        return handle


def _found(handles: Iterable[Handle | None]) -> list[Handle]:
    return [handle for handle in handles if handle is not None]
