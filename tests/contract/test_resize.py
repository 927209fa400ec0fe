"""Another number of members under a running launch: at the asked size or the old one; who stays is not touched."""

from collections.abc import Callable

import pytest

from backends.errors import NoCapacity, Refused, Throttled
from backends.port import Backend, Resizes
from backends.types import Handle, Phase, StopMode
from policies.vocabulary import JobKind
from tests.contract.harness import Harness, Program, output
from tests.contract.steps import launch, look, running, until
from tests.harness.waiting import eventually

Require = Callable[..., None]
CLAUSE = "resize ends at the asked size or at the old one"


@pytest.fixture
def service(harness: Harness, backend: Backend, require: Require) -> Handle:
    """Three members that stay."""
    require("resize")
    return running(backend, launch(harness, Program.STAY, replicas=3, kind=JobKind.INFERENCE, grace_s=1, term_s=0))


def resized(backend: Backend, handle: Handle, replicas: int) -> None:
    """Asked until it is taken: members that are still leaving may hold their places."""
    assert isinstance(backend, Resizes)

    def asked() -> bool:
        try:
            backend.resize(handle, "workers", replicas)
        except Throttled:
            return False
        return True

    eventually(asked, what=f"a resize to {replicas} to be taken")
    eventually(lambda: look(backend, handle).ready == replicas, what=f"{replicas} members")
    assert look(backend, handle).phase is Phase.RUNNING


@pytest.mark.clause(CLAUSE)
def test_a_launch_shrinks_and_grows_and_who_stays_is_never_restarted(
    harness: Harness, backend: Backend, service: Handle
) -> None:
    resized(backend, service, 2)
    assert sorted(look(backend, service).nodes) == [0, 1], "the last member goes"
    resized(backend, service, 4)
    assert sorted(look(backend, service).nodes) == [0, 1, 2, 3]
    eventually(lambda: output(backend, service, 3) == b"started\n", what="the new member")
    assert [harness.begun(backend, service, rank) for rank in (0, 1)] == [1, 1]


@pytest.mark.clause(CLAUSE)
def test_one_that_has_no_room_changes_nothing(harness: Harness, backend: Backend, service: Handle) -> None:
    assert isinstance(backend, Resizes)
    with pytest.raises(NoCapacity):
        backend.resize(service, "workers", 64)
    seen = look(backend, service)
    assert (seen.phase, seen.ready, sorted(seen.nodes)) == (Phase.RUNNING, 3, [0, 1, 2])
    resized(backend, service, 4)


@pytest.mark.clause(CLAUSE)
def test_asked_twice_and_by_another_process_it_is_done_once(
    harness: Harness, backend: Backend, service: Handle
) -> None:
    other = harness.backend()
    assert isinstance(backend, Resizes)
    assert isinstance(other, Resizes)
    for each in (backend, other):
        each.resize(service, "workers", 4)
    eventually(lambda: look(other, service).ready == 4, what="four members")
    assert [harness.begun(backend, service, rank) for rank in range(3)] == [1, 1, 1]
    for each in (other, backend):
        each.resize(service, "workers", 1)
    eventually(lambda: look(backend, service).ready == 1, what="one member")


@pytest.mark.clause(CLAUSE)
def test_what_shrinking_frees_can_be_used_and_only_then(harness: Harness, backend: Backend, require: Require) -> None:
    require("resize")
    full = running(backend, launch(harness, Program.STAY, replicas=4, kind=JobKind.INFERENCE, grace_s=1, term_s=0))
    next_one = backend.prepare(launch(harness, Program.STAY))
    with pytest.raises(NoCapacity):
        backend.start(next_one)
    resized(backend, full, 3)
    backend.start(next_one)
    until(backend, next_one, Phase.RUNNING)
    assert look(backend, full).ready == 3


@pytest.mark.clause(CLAUSE)
def test_a_resized_launch_stops_whole_and_leaves_nothing(harness: Harness, backend: Backend, service: Handle) -> None:
    resized(backend, service, 4)
    backend.stop(service, StopMode.KILL, 0)
    until(backend, service, Phase.ENDED)
    assert isinstance(backend, Resizes)
    backend.resize(service, "workers", 2)
    assert look(backend, service).phase is Phase.ENDED, "what has ended is not begun again"
    backend.abort(service)
    eventually(lambda: harness.traces(service.key) == [], what="nothing to be left")
    with pytest.raises(Refused):
        backend.resize(service, "workers", 2)
