"""What a backend sees and shows: ours and only ours, foreign load, dark as dark, no secret, nothing run by accident."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from backends.errors import BackendError, Unreachable
from backends.port import Backend
from backends.types import Phase, Secret, StopMode
from policies.snapshot import Resources
from tests.builders.launch import GPU, ONE_GPU, a_group, a_launch
from tests.contract.harness import Harness, Offer, Program, output
from tests.contract.steps import launch, look, running, until

Require = Callable[..., None]
PWNED = Path("/tmp/gw-pwned")
HOSTILE = (
    *("crazy|name", "Big simulation", "two\nlines", "az'", 'x" --uid=0', "--wrap=id", f"$(touch {PWNED})"),
    *(f"`touch {PWNED}`", "名前", "", "n" * 300),
)
SECRET = "s3cr3t-value-nobody-may-see"
TOKEN = "t0ken-nobody-may-see"


@pytest.mark.clause("dark observe raises")
def test_sl_09_a_dark_backend_raises_and_never_says_absent(
    harness: Harness, backend: Backend, require: Require
) -> None:
    require(Offer.DARK)
    handle = running(backend, launch(harness, Program.STAY))
    calls: list[Callable[[], object]] = [
        lambda: backend.observe([handle]),
        lambda: backend.find(handle.key),
        backend.list_owned,
        backend.capacity,
        lambda: next(backend.watch("")),
        lambda: backend.stop(handle, StopMode.KILL, 0),
    ]
    with harness.dark(backend):
        for call in calls:
            with pytest.raises(Unreachable):
                call()
    assert look(backend, handle).phase is Phase.RUNNING, "nothing was concluded from the darkness"


@pytest.mark.clause("list_owned sees ours and only ours after a restart")
def test_a_new_process_sees_ours_and_no_other_gateways(harness: Harness, backend: Backend) -> None:
    prepared = backend.prepare(launch(harness, Program.STAY))
    started = running(backend, launch(harness, Program.STAY))
    theirs = harness.backend("other")
    other = theirs.prepare(launch(harness, Program.STAY, gateway="other"))
    restarted = harness.backend()
    owned = {one.handle: one for one in restarted.list_owned()}
    assert set(owned) == {prepared, started}
    assert owned[started].phase is Phase.RUNNING
    assert owned[started].tenant == "acme/research"
    assert [one.handle.key for one in theirs.list_owned()] == [other.key]


@pytest.mark.clause("foreign load is seen and never touched")
def test_foreign_load_is_counted_and_outlives_us(harness: Harness, backend: Backend, require: Require) -> None:
    require(Offer.FOREIGN)
    before = _foreign(backend, harness.pool)
    ours = running(backend, launch(harness, Program.STAY))
    assert _foreign(backend, harness.pool) == before, "our own launches are never foreign"
    harness.use_foreign(ONE_GPU)
    assert _foreign(backend, harness.pool) == before + ONE_GPU.accelerators
    backend.stop(ours, StopMode.KILL, 0)
    until(backend, ours, Phase.ENDED)
    backend.abort(ours)
    assert harness.foreign_lives()
    assert _foreign(backend, harness.pool) == before + ONE_GPU.accelerators


@pytest.mark.clause("foreign load is seen and never touched")
def test_foreign_load_is_told_by_its_owner_and_our_own_launches_by_nobody(
    harness: Harness, backend: Backend, require: Require
) -> None:
    require(Offer.OWNERS)
    running(backend, launch(harness, Program.STAY))
    assert _by_owner(backend, harness.pool) == {}
    harness.use_foreign(Resources(99 * GPU), "lab-7")
    found = _by_owner(backend, harness.pool)
    assert list(found) == ["lab-7"]
    assert found["lab-7"].accelerators == _foreign(backend, harness.pool), "never more than the nodes' foreign use"


@pytest.mark.clause("capacity never negative, dark is stale and not empty")
def test_capacity_is_never_negative_and_dark_is_not_empty(harness: Harness, backend: Backend, require: Require) -> None:
    require(Offer.FOREIGN, Offer.DARK)
    harness.use_foreign(Resources(99 * GPU, 0, 0))
    nodes = [node for pool in backend.capacity() for node in pool.nodes]
    assert nodes
    for node in nodes:
        assert node.foreign.fits_in(node.capacity), f"{node.name} would have less than nothing"
    with harness.dark(backend), pytest.raises(Unreachable):
        backend.capacity()


@pytest.mark.clause("hostile names and values arrive intact and run nothing")
@pytest.mark.parametrize("group", range(3))
def test_sl_11_names_arrive_intact(harness: Harness, backend: Backend, group: int) -> None:
    PWNED.unlink(missing_ok=True)
    texts = HOSTILE[group::3]
    env = {"LIST": "a,b", "MSG": "it's $HOME", "NL": "l1\nl2", "EQ": "k=v"}
    env |= {f"TEXT{index}": text for index, text in enumerate(texts)}
    command = harness.command(Program.ENV, *env, "PATH")
    request = a_launch(a_group(harness.pool, command), name=texts[0], user=texts[1], env=env)
    handle = backend.prepare(request)
    backend.start(handle)
    assert until(backend, handle, Phase.ENDED).end is not None
    started, *values = output(backend, handle, 0).decode().splitlines()
    assert started == "started"
    *intact, path = [json.loads(value) for value in values]
    assert intact == list(env.values()), "every value arrives byte for byte"
    assert path, "and PATH still works"
    assert handle.key == request.key
    assert [one.handle.key for one in backend.list_owned()] == [request.key]
    assert not PWNED.exists()


@pytest.mark.clause("an array's index reaches the member, and no other job sees one")
@pytest.mark.parametrize("index", [None, 0, 7])
def test_the_index_of_an_array_reaches_every_member(harness: Harness, backend: Backend, index: int | None) -> None:
    request = launch(harness, Program.ENV, "TIDEGATE_ARRAY_INDEX", replicas=2, array_index=index)
    handle = harness.backend().prepare(request)
    backend.start(handle)  # by another process than the one that prepared it
    until(backend, handle, Phase.ENDED)
    for rank in range(2):
        value = json.loads(output(backend, handle, rank).splitlines()[1])
        assert value == (None if index is None else str(index))


@pytest.mark.clause("hostile names and values arrive intact and run nothing")
def test_sl_11_arguments_reach_the_program_as_they_are(harness: Harness, backend: Backend) -> None:
    PWNED.unlink(missing_ok=True)
    texts = [text for text in HOSTILE if text]
    handle = backend.prepare(launch(harness, Program.SAY, *texts))
    backend.start(handle)
    until(backend, handle, Phase.ENDED)
    assert output(backend, handle, 0).decode() == "started\n" + "".join(f"{text}\n" for text in texts)
    assert not PWNED.exists()


@pytest.mark.clause("one tenant cannot read, signal or see another's job")
def test_another_tenants_job_reads_signals_and_sees_nothing(
    harness: Harness, backend: Backend, require: Require
) -> None:
    require("tenant_isolation", Offer.INTRUDE)
    request = launch(harness, Program.STAY, token=Secret(TOKEN), env={"PRIVATE": "1"})
    handle = running(backend, request)
    assert list(harness.intrude(backend, handle)) == []
    assert look(backend, handle).phase is Phase.RUNNING


@pytest.mark.clause("no call outlives its deadline")
def test_a_backend_that_hangs_is_given_up_in_time(harness: Harness, backend: Backend, require: Require) -> None:
    require(Offer.HANG)
    handle = running(backend, launch(harness, Program.STAY))
    with harness.hang(backend, handle):
        calls: list[Callable[[], object]] = [
            lambda: backend.observe([handle]),
            lambda: backend.stop(handle, StopMode.NOTICE, 60),
            lambda: harness.backend().find(handle.key),
        ]
        for call in calls:
            began = time.monotonic()
            with suppress(BackendError):  # Whoever gives up says so in the port's words.
                call()
            assert time.monotonic() - began < harness.deadline_s
    backend.stop(handle, StopMode.KILL, 0)
    until(backend, handle, Phase.ENDED)


@pytest.mark.clause("no secret in any repr, error or log")
def test_no_secret_is_shown_anywhere(harness: Harness, backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = {"API_KEY": Secret(SECRET)}
    request = launch(harness, Program.ENV, "API_KEY", secrets=secrets, token=Secret(TOKEN))
    shown = [repr(request), str(request), f"{request.token}"]
    bad = launch(harness, Program.STAY, secrets={"LD_X": Secret(SECRET)}, token=Secret(TOKEN))
    nul = launch(harness, Program.STAY, secrets={"NUL": Secret(SECRET + "\0")})
    for each in (bad, nul):
        with pytest.raises(BackendError) as caught:
            backend.prepare(each)
        shown.append(repr(caught.value))
        shown.append(str(caught.value))
    handle = backend.prepare(request)
    shown += [repr(handle), repr(backend)]
    backend.start(handle)
    shown += [repr(until(backend, handle, Phase.ENDED)), repr(backend.list_owned()), caplog.text]
    assert json.loads(output(backend, handle, 0).splitlines()[1]) == SECRET, "the job itself does get it"
    for text in shown:
        assert SECRET not in text
        assert TOKEN not in text


def _by_owner(backend: Backend, pool: str) -> Mapping[str, Resources]:
    return next(one for one in backend.capacity() if one.pool == pool).foreign_by_owner


def _foreign(backend: Backend, pool: str) -> int:
    (found,) = [one for one in backend.capacity() if one.pool == pool]
    return sum(node.foreign.accelerators * node.count for node in found.nodes)
