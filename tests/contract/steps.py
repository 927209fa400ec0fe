"""Steps that many clauses share."""

from backends.port import Backend
from backends.types import Handle, LaunchRequest, Observation, Phase
from tests.builders.launch import a_group, a_launch
from tests.contract.harness import Harness, Program, output
from tests.harness.waiting import eventually


def launch(harness: Harness, program: Program, *arguments: str, replicas: int = 1, **changes: object) -> LaunchRequest:
    """A request whose members do this."""
    return a_launch(a_group(harness.pool, harness.command(program, *arguments), replicas=replicas), **changes)


def running(backend: Backend, request: LaunchRequest) -> Handle:
    """Prepared, started, and every member has said so."""
    handle = backend.prepare(request)
    backend.start(handle)
    until(backend, handle, Phase.RUNNING)
    ranks = [group.first_rank + index for group in request.groups for index in range(group.replicas)]
    eventually(
        lambda: all(b"started" in output(backend, handle, rank) for rank in ranks), what="all ranks to say `started`"
    )
    return handle


def look(backend: Backend, handle: Handle) -> Observation:
    (observation,) = backend.observe([handle])
    return observation


def until(backend: Backend, handle: Handle, phase: Phase, timeout_s: float = 15) -> Observation:
    """The first observation in this phase."""

    def reached() -> Observation | None:
        observation = look(backend, handle)
        assert observation.phase is phase, f"{handle.key} is {observation.phase}, not yet {phase}: {observation.end}"
        return observation

    found = eventually(reached, timeout_s=timeout_s)
    assert found is not None
    return found
