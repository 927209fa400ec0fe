"""Launching: once, whole, adopted, or refused without a trace."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from backends.errors import NoCapacity, OutcomeUnknown, Refused, Unreachable
from backends.port import Backend
from backends.types import Handle, Phase, Preemption, StopMode
from policies.snapshot import Resources
from tests.builders.launch import GPU, a_group, a_key, a_launch
from tests.contract.harness import Harness, Offer, Program
from tests.contract.steps import launch, look, running, until

Require = Callable[..., None]


@pytest.mark.clause("launch twice, one object")
def test_four_processes_that_launch_the_same_key_make_one_object(harness: Harness) -> None:
    request = launch(harness, Program.STAY)
    adapters = [harness.backend() for _ in range(4)]

    def go(backend: Backend) -> Handle:
        handle = backend.prepare(request)
        backend.start(handle)
        return handle

    with ThreadPoolExecutor(len(adapters)) as pool:
        handles = set(pool.map(go, adapters))
    assert len(handles) == 1
    (handle,) = handles
    until(adapters[0], handle, Phase.RUNNING)
    adapters[1].start(handle)
    assert adapters[2].prepare(request) == handle
    assert running(adapters[3], request) == handle
    assert harness.begun(adapters[0], handle, 0) == 1
    assert [owned.handle for owned in adapters[0].list_owned()] == [handle]


@pytest.mark.clause("answer lost after the effect, adopted")
def test_sl_08_a_prepare_whose_answer_was_lost_is_found_and_goes_on(
    harness: Harness, backend: Backend, require: Require
) -> None:
    require(Offer.LOSE_ANSWER)
    request = launch(harness, Program.STAY)
    harness.lose_answer(backend, "prepare")
    with pytest.raises(OutcomeUnknown):
        backend.prepare(request)
    found = harness.backend().find(request.key)
    assert found is not None, "it took effect: it must be found by its key alone"
    assert backend.prepare(request) == found
    assert running(backend, request) == found
    assert len(backend.list_owned()) == 1


@pytest.mark.clause("answer lost after the effect, adopted")
def test_sl_08_a_start_whose_answer_was_lost_starts_nothing_twice(
    harness: Harness, backend: Backend, require: Require
) -> None:
    require(Offer.LOSE_ANSWER)
    request = launch(harness, Program.STAY)
    handle = backend.prepare(request)
    harness.lose_answer(backend, "start")
    with pytest.raises(OutcomeUnknown):
        backend.start(handle)
    assert running(harness.backend(), request) == handle
    assert harness.begun(backend, handle, 0) == 1


@pytest.mark.clause("refused leaves nothing")
def test_a_refused_launch_leaves_nothing(harness: Harness, backend: Backend, require: Require) -> None:
    require(Offer.REFUSE)
    request = a_launch(a_group(harness.pool, harness.command(Program.STAY), per_member=harness.refused()))
    with pytest.raises(Refused) as caught:
        backend.prepare(request)
    assert caught.value.reason
    assert backend.find(request.key) is None
    assert list(harness.traces(request.key)) == []


@pytest.mark.clause("refused leaves nothing")
@pytest.mark.parametrize("name", ["TIDEGATE_JOB_ID", "SLURM_JOB_ID", "SBATCH_X", "SRUN_X", "LD_PRELOAD"])
def test_reserved_variables_are_refused_for_good_by_name(harness: Harness, backend: Backend, name: str) -> None:
    request = launch(harness, Program.STAY, env={name: "x"})
    with pytest.raises(Refused, match=f"env.{name}") as caught:
        backend.prepare(request)
    assert caught.value.permanent
    assert list(harness.traces(request.key)) == []


@pytest.mark.clause("dark before or after send told apart")
def test_dark_before_the_call_says_that_nothing_was_asked(harness: Harness, backend: Backend, require: Require) -> None:
    require(Offer.DARK)
    request = launch(harness, Program.STAY)
    with harness.dark(backend), pytest.raises(Unreachable):
        backend.prepare(request)
    assert backend.find(request.key) is None
    assert list(harness.traces(request.key)) == []
    handle = backend.prepare(request)
    with harness.dark(backend), pytest.raises(Unreachable):
        backend.start(handle)
    assert look(backend, handle).phase is Phase.PREPARED


@pytest.mark.clause("gang starts whole or leaves nothing")
def test_a_gang_that_does_not_fit_runs_nowhere_and_stays_prepared(
    harness: Harness, backend: Backend, require: Require
) -> None:
    require("gang", Offer.FOREIGN)
    harness.use_foreign(Resources(2 * GPU))
    request = launch(harness, Program.STAY, replicas=4)
    handle = backend.prepare(request)
    with pytest.raises(NoCapacity):
        backend.start(handle)
    observation = look(backend, handle)
    assert observation.phase is Phase.PREPARED
    assert observation.ready == 0
    small = running(backend, launch(harness, Program.STAY, replicas=2))
    assert len(look(backend, small).nodes) == 2, "what the gang did not get is free for others"


@pytest.mark.clause("a place before an eviction")
def test_a_launch_is_prepared_beside_a_full_pool_and_starts_when_the_others_have_gone(
    harness: Harness, backend: Backend
) -> None:
    if backend.capabilities.preemption is Preemption.NONE:
        pytest.skip(f"{harness.name} declares preemption: none")
    victim = running(backend, launch(harness, Program.STAY, replicas=4))
    waiter = backend.prepare(launch(harness, Program.STAY, replicas=4))
    with pytest.raises(NoCapacity):
        backend.start(waiter)
    assert look(backend, waiter).phase is Phase.PREPARED
    assert look(backend, victim).phase is Phase.RUNNING, "what is prepared takes nothing from anybody"
    backend.stop(victim, StopMode.KILL, 0)
    until(backend, victim, Phase.ENDED)
    backend.start(waiter)
    until(backend, waiter, Phase.RUNNING)


@pytest.mark.clause("gang starts whole or leaves nothing")
def test_a_gang_runs_with_every_rank_or_not_at_all(harness: Harness, backend: Backend, require: Require) -> None:
    require("gang")
    handle = running(backend, launch(harness, Program.STAY, replicas=4))
    observation = look(backend, handle)
    assert observation.ready == 4
    assert sorted(observation.nodes) == [0, 1, 2, 3]


@pytest.mark.clause("gang starts whole or leaves nothing")
def test_an_aborted_launch_leaves_nothing_whatever_its_step(harness: Harness, backend: Backend) -> None:
    prepared = backend.prepare(launch(harness, Program.STAY))
    started = running(backend, launch(harness, Program.STAY, replicas=2))
    for handle in (prepared, started):
        backend.abort(handle)
        backend.abort(handle)
        assert look(backend, handle).phase is Phase.ABSENT
        assert list(harness.traces(handle.key)) == []


@pytest.mark.clause("unknown handle is Absent")
def test_unknown_handles_are_absent_and_may_be_stopped(harness: Harness, backend: Backend) -> None:
    key = a_key()
    unknown = Handle(backend.name, key)
    known = backend.prepare(launch(harness, Program.STAY))
    phases = [one.phase for one in backend.observe([unknown, known])]
    assert phases == [Phase.ABSENT, Phase.PREPARED]
    assert backend.find(key) is None
    backend.stop(unknown, StopMode.NOTICE, 5)
    backend.abort(unknown)
    assert list(harness.traces(key)) == []
