"""An attempt put where a workflow may find it: its row in one of the live states, and the cluster as that state says.

The states come from the table, so that a new one has no place here and is noticed.
"""

from collections.abc import Callable
from typing import Final

from backends.types import Handle
from policies.states import LIVE_ATTEMPT_STATES
from policies.vocabulary import AttemptState, StopCause
from tests.workflows.books import GRACE_S
from tests.workflows.skipping import World

LIVE: Final = sorted(LIVE_ATTEMPT_STATES)


def _reserved(_world: World, _attempt: str) -> None:
    """As it was admitted."""


def _pending(world: World, attempt: str) -> None:
    store = world.books.store
    store.mark(attempt, AttemptState.PENDING)
    for name, backend in world.backends.items():
        store.prepared(attempt, name, backend.prepare(store.launch_request(attempt, name)).native)
    for name, cluster in world.clusters.items():
        cluster.pending = True
        world.backends[name].start(Handle(name, attempt, f"fake/{attempt}"))
        store.started(attempt, name)


def _running(world: World, attempt: str) -> None:
    _pending(world, attempt)
    for cluster in world.clusters.values():
        cluster.run(attempt)
    world.follow()
    world.books.store.mark(attempt, AttemptState.RUNNING)


def _checkpointing(world: World, attempt: str) -> None:
    _running(world, attempt)
    assert world.books.store.mark(attempt, AttemptState.CHECKPOINTING)


def _stopping(world: World, attempt: str) -> None:
    """Told to go for a preemption, with GRACE_S."""
    _running(world, attempt)
    store = world.books.store
    store.ask_stop(attempt, StopCause.PREEMPT, GRACE_S)
    store.stop_sent(attempt, GRACE_S)
    for cluster in world.clusters.values():
        cluster.launches[attempt].stop_confirmed = True


PUT: Final[dict[str, Callable[[World, str], None]]] = {
    AttemptState.RESERVED: _reserved,
    AttemptState.PENDING: _pending,
    AttemptState.RUNNING: _running,
    AttemptState.CHECKPOINTING: _checkpointing,
    AttemptState.STOPPING: _stopping,
}


async def put(world: World, attempt: str, state: str) -> None:
    """There it stands; nobody has a workflow of it."""
    await world.do(lambda: PUT[state](world, attempt))
    found = await world.do(lambda: world.books.store.load_attempt(attempt))
    assert found is not None
    assert found.state == state
