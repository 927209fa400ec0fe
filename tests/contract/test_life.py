"""A launch's life: phases, ends, stops, evictions, what is told and what is heard."""

from collections.abc import Callable

import pytest

from backends.errors import OutcomeUnknown
from backends.port import Backend, Checkpoints
from backends.types import Handle, NoticeKind, Phase, StopMode
from policies.reasons import verdict
from policies.vocabulary import AttemptState, Reason
from tests.contract.harness import Harness, Offer, Program, output
from tests.contract.steps import launch, look, running, until
from tests.harness.waiting import eventually

Require = Callable[..., None]
ORDER = [Phase.PREPARED, Phase.PENDING, Phase.RUNNING, Phase.ENDED]


@pytest.mark.clause("Pending -> Running -> Ended, never backwards")
def test_phases_and_sequences_never_go_backwards(harness: Harness, backend: Backend) -> None:
    handle = backend.prepare(launch(harness, Program.EXIT, "0", replicas=2))
    seen = [look(backend, handle)]
    backend.start(handle)

    def ended() -> bool:
        seen.append(look(backend, handle))
        return seen[-1].phase is Phase.ENDED

    eventually(ended)
    places = [ORDER.index(one.phase) for one in seen]
    assert places == sorted(places)
    assert [one.sequence for one in seen] == sorted(one.sequence for one in seen)
    assert {one.restarts for one in seen} == {0}


@pytest.mark.clause("Ended is sticky and carries cause and exit code")
@pytest.mark.parametrize(
    ("code", "cause"), [(0, Reason.COMPLETED), (3, Reason.NON_ZERO_EXIT), (75, Reason.SAVED_AND_EXITED)]
)
def test_an_end_keeps_its_cause_and_code_for_every_process(
    harness: Harness, backend: Backend, code: int, cause: Reason
) -> None:
    handle = backend.prepare(launch(harness, Program.EXIT, str(code)))
    backend.start(handle)
    first = until(backend, handle, Phase.ENDED)
    assert first.end is not None
    assert (first.end.cause, first.end.exit_code, dict(first.end.codes)) == (cause, code, {0: code})
    assert first.started_at is not None
    assert first.ended_at is not None
    assert first.started_at <= first.ended_at
    backend.stop(handle, StopMode.KILL, 0)
    backend.start(handle)
    again = look(harness.backend(), handle)
    assert (again.phase, again.end, again.ended_at) == (first.phase, first.end, first.ended_at)


@pytest.mark.clause("Ended is sticky and carries cause and exit code")
def test_the_first_failing_member_gives_the_code_and_the_gang_ends_as_one(
    harness: Harness, backend: Backend, require: Require
) -> None:
    require("gang")
    handle = backend.prepare(launch(harness, Program.FAIL_RANK, "1", "7", replicas=3))
    backend.start(handle)
    end = until(backend, handle, Phase.ENDED).end
    assert end is not None
    assert (end.cause, end.exit_code, end.failed_rank) == (Reason.NON_ZERO_EXIT, 7, 1)
    assert sorted(end.codes) == [0, 1, 2], "the others were stopped, and are known to be"


@pytest.mark.clause("stop works in every state, twice, and after a lost launch")
def test_a_prepared_launch_is_stopped_and_never_starts(harness: Harness, backend: Backend) -> None:
    handle = backend.prepare(launch(harness, Program.STAY))
    backend.stop(handle, StopMode.NOTICE, 5)
    backend.stop(handle, StopMode.NOTICE, 5)
    until(backend, handle, Phase.ENDED)
    backend.start(handle)
    assert look(backend, handle).phase is Phase.ENDED


@pytest.mark.clause("stop works in every state, twice, and after a lost launch")
@pytest.mark.parametrize(("mode", "grace_s"), [(StopMode.NOTICE, 2), (StopMode.KILL, 0)])
def test_a_running_launch_is_stopped_twice(harness: Harness, backend: Backend, mode: StopMode, grace_s: int) -> None:
    handle = running(backend, launch(harness, Program.STAY, replicas=2))
    backend.stop(handle, mode, grace_s)
    backend.stop(handle, mode, grace_s)
    observation = until(backend, handle, Phase.ENDED)
    assert observation.stop_confirmed
    assert observation.end is not None
    assert observation.end.exit_code != 0
    backend.stop(handle, mode, grace_s)
    assert look(backend, handle).phase is Phase.ENDED


@pytest.mark.clause("stop works in every state, twice, and after a lost launch")
def test_a_launch_whose_start_was_never_answered_can_be_stopped_at_once(
    harness: Harness, backend: Backend, require: Require
) -> None:
    require(Offer.LOSE_ANSWER)
    request = launch(harness, Program.STAY)
    harness.lose_answer(backend, "prepare")
    with pytest.raises(OutcomeUnknown):
        backend.prepare(request)
    backend.stop(Handle(backend.name, request.key), StopMode.NOTICE, 1)
    until(backend, Handle(backend.name, request.key), Phase.ENDED)
    lost = backend.prepare(launch(harness, Program.STAY))
    harness.lose_answer(backend, "start")
    with pytest.raises(OutcomeUnknown):
        backend.start(lost)
    backend.stop(lost, StopMode.KILL, 0)
    until(backend, lost, Phase.ENDED)


@pytest.mark.clause("stop works in every state, twice, and after a lost launch")
def test_a_member_that_saves_within_its_grace_leaves_with_its_own_code(
    harness: Harness, backend: Backend, require: Require
) -> None:
    require("checkpoint_signal")
    handle = running(backend, launch(harness, Program.SAVE, replicas=2))
    backend.stop(handle, StopMode.NOTICE, 8, NoticeKind.PREEMPT)
    end = until(backend, handle, Phase.ENDED).end
    assert end is not None
    assert (end.cause, end.exit_code) == (Reason.SAVED_AND_EXITED, 75)


@pytest.mark.clause("eviction is not failure")
def test_capacity_that_is_taken_away_is_a_revocation(harness: Harness, backend: Backend, require: Require) -> None:
    require(Offer.EVICT)
    handle = running(backend, launch(harness, Program.STAY, replicas=2))
    harness.evict(backend, handle)
    end = until(backend, handle, Phase.ENDED).end
    assert end is not None
    assert verdict(end.cause).attempt is AttemptState.REVOKED
    assert end.exit_code is None, "nobody exited by itself"


@pytest.mark.clause("a checkpoint request reaches every member")
def test_a_checkpoint_request_reaches_every_member_and_stops_none(
    harness: Harness, backend: Backend, require: Require
) -> None:
    require("checkpoint_signal")
    assert isinstance(backend, Checkpoints)
    handle = running(backend, launch(harness, Program.HEAR, replicas=3))
    backend.notify(handle, NoticeKind.CHECKPOINT, 30)
    eventually(lambda: list(harness.told(backend, handle)) == [0, 1, 2], what="all three to be told")
    assert look(backend, handle).phase is Phase.RUNNING


@pytest.mark.clause("watch shows every change and beats while quiet")
def test_a_watch_shows_the_end_and_goes_on_from_its_cursor(harness: Harness, backend: Backend) -> None:
    stream = backend.watch("")
    cursor, quiet = next(stream)
    assert quiet is None, "nothing has changed yet, and the caller can leave"
    handle = backend.prepare(launch(harness, Program.EXIT, "4"))
    backend.start(handle)
    ended = False
    while not ended or quiet is not None:
        last, quiet = next(stream)
        ended = ended or (quiet is not None and quiet.handle == handle and quiet.phase is Phase.ENDED)
    missed = (change for _, change in harness.backend().watch(cursor))
    assert any(
        change is not None and change.handle == handle and change.phase is Phase.ENDED
        for _, change in zip(range(8), missed, strict=False)
    ), "another process that goes on from before hears of it too"
    assert next(harness.backend().watch(last))[1] is None, "and one that goes on from behind does not"


@pytest.mark.clause("watch shows every change and beats while quiet")
def test_a_watch_shows_that_a_launch_runs_while_it_does(harness: Harness, backend: Backend) -> None:
    cursor, _ = next(backend.watch(""))
    handle = running(backend, launch(harness, Program.STAY))
    seen = (change for _, change in backend.watch(cursor) if change is not None and change.handle == handle)
    runs = next(change for change in seen if change.phase is Phase.RUNNING)
    assert look(backend, handle).sequence >= runs.sequence, "observations of both kinds count in one order"


@pytest.mark.clause("logs from an offset, to the end of the member")
def test_logs_go_on_from_an_offset_and_end_with_the_member(
    harness: Harness, backend: Backend, require: Require
) -> None:
    require("logs")
    handle = backend.prepare(launch(harness, Program.SAY, "one", "two"))
    backend.start(handle)
    chunks = list(backend.logs(handle, 0, follow=True))
    assert b"".join(chunk.data for chunk in chunks) == b"started\none\ntwo\n"
    assert chunks[-1].offset == 16
    assert b"".join(chunk.data for chunk in backend.logs(handle, 0, 8)) == b"one\ntwo\n"
    assert output(harness.backend(), handle, 7) == b"", "a rank that does not exist has said nothing"
