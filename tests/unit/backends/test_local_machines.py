"""Instances as machines: they outlive us, they vanish whole, they are taken back with notice, they are not shared."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.errors import NoCapacity, OutcomeUnknown, Refused, TenantNotServed
from backends.local.backend import LocalBackend
from backends.local.client import Files
from backends.local.files import Identity, alive, identity, read_json
from backends.local.instance import below
from backends.registry import build
from backends.types import Handle, LaunchRequest, NoticeKind, Phase, StopMode
from policies.vocabulary import Reason
from tests.builders.launch import ONE_GPU, a_group, a_launch
from tests.contract.harness import Program, output
from tests.contract.local_world import LocalWorld
from tests.contract.steps import launch, look, running, until
from tests.harness.waiting import eventually

ROOT = Path(__file__).parents[3]


@pytest.fixture
def world() -> Iterator[LocalWorld]:
    world = LocalWorld()
    yield world
    world.close()


@pytest.fixture
def backend(world: LocalWorld) -> LocalBackend:
    return world.operator


def everybody(backend: LocalBackend, handle: Handle) -> dict[str, Identity]:
    """Supervisors, agents and every process below them, as themselves and not as numbers."""
    record = backend.files.record(handle.key)
    assert record is not None
    assert record.placement is not None
    found: dict[str, Identity] = {}
    for name in record.placement.instances.values():
        state = read_json(backend.machines.root / name / "state.json")
        found[f"{name} supervisor"] = Identity(*state["supervisor"])
        found[f"{name} agent"] = Identity(*state["agent"])
        for pid in below(state["supervisor"][0]):
            who = identity(pid)
            if who is not None:
                found[f"{name} {pid}"] = who
    return found


def two_nodes(world: LocalWorld, program: Program = Program.STAY) -> LaunchRequest:
    group = a_group(world.pool, world.command(program), replicas=2, nodes=("spot-0", "spot-1"))
    return a_launch(group)


@pytest.mark.parametrize("victim", ["agent", "supervisor"])
def test_a_killed_instance_is_a_lost_node_and_everything_in_it_is_dead(
    world: LocalWorld, backend: LocalBackend, victim: str
) -> None:
    handle = running(backend, two_nodes(world))
    record = backend.files.record(handle.key)
    assert record is not None
    assert record.placement is not None
    name = record.placement.instances["spot-1"]
    inside = {role: who for role, who in everybody(backend, handle).items() if role.startswith(name)}
    assert len(inside) >= 4, f"supervisor, agent, keeper and member were expected: {inside}"
    os.kill(inside[f"{name} {victim}"].pid, signal.SIGKILL)
    began = time.monotonic()
    observation = until(backend, handle, Phase.ENDED, timeout_s=5)
    assert time.monotonic() - began < 5
    assert observation.end is not None
    assert (observation.end.cause, observation.end.bad_nodes) == (Reason.NODE_LOST, ("spot-1",))
    eventually(lambda: not any(alive(who) for who in inside.values()), what="all of the instance to be dead")
    again = running(backend, two_nodes(world))
    fresh = backend.files.record(again.key)
    assert fresh is not None
    assert fresh.placement is not None
    assert fresh.placement.instances["spot-1"] != name, "the slot has a new instance"
    assert fresh.placement.instances["spot-0"] == record.placement.instances["spot-0"], "the other one lived on"


def test_an_interruption_gives_notice_waits_and_takes_everything(world: LocalWorld, backend: LocalBackend) -> None:
    handle = running(backend, two_nodes(world, Program.HEAR))
    inside = everybody(backend, handle)
    assert backend.instances_of("tg-nobody-1") == {}
    instances = backend.instances_of(handle.key)
    name = backend.interrupt_rank(handle.key, 1, notice_s=6)
    assert (set(instances), instances[1]) == ({0, 1}, name)
    told = eventually(lambda: look(backend, handle).notice, what="the notice to be seen")
    assert told is not None
    assert (told.kind, told.members, told.detail) == (NoticeKind.REVOKE, (1,), name)
    assert told.deadline is not None
    eventually(lambda: b"told" in output(backend, handle, 1), what="the member to be told by its agent")
    (pool,) = backend.capacity()
    assert {node.name: node.schedulable for node in pool.nodes} == {"spot-0": True, "spot-1": False}
    crowd = backend.prepare(a_launch(a_group(world.pool, world.command(Program.STAY), nodes=("spot-1",))))
    with pytest.raises(NoCapacity):
        backend.start(crowd)
    observation = until(backend, handle, Phase.ENDED)
    assert observation.end is not None
    assert observation.end.cause is Reason.SPOT_REVOKED
    assert observation.end.bad_nodes == ()
    eventually(lambda: not alive(inside[f"{name} supervisor"]), what="the instance to be gone")
    assert not any(alive(who) for role, who in inside.items() if role.startswith(name))
    eventually(lambda: all(node.schedulable for pool in backend.capacity() for node in pool.nodes))
    backend.start(crowd)
    until(backend, crowd, Phase.RUNNING)


def test_a_member_that_saves_at_a_revocation_takes_the_gang_with_it(world: LocalWorld, backend: LocalBackend) -> None:
    handle = running(backend, two_nodes(world, Program.SAVE))
    backend.interrupt_rank(handle.key, 0, notice_s=20)
    end = until(backend, handle, Phase.ENDED).end
    assert end is not None
    assert (end.cause, end.exit_code, dict(end.codes)) == (Reason.SPOT_REVOKED, 75, {0: 75, 1: 75})


def test_advice_to_leave_stops_nobody(world: LocalWorld, backend: LocalBackend) -> None:
    handle = running(backend, launch(world, Program.HEAR))
    backend.advise("spot-0")
    notice = eventually(lambda: look(backend, handle).notice)
    assert notice is not None
    assert (notice.kind, notice.deadline) == (NoticeKind.REBALANCE, None)
    eventually(lambda: b"told" in output(backend, handle, 0))
    assert look(backend, handle).phase is Phase.RUNNING


def test_launches_live_on_when_the_process_that_made_them_is_killed(world: LocalWorld, backend: LocalBackend) -> None:
    request = launch(world, Program.STAY)
    code = (
        "import os, signal\n"
        "from tests.contract.local_world import LocalWorld\n"
        "from tests.contract.steps import launch\n"
        "from tests.contract.harness import Program\n"
        "from backends.registry import build\n"
        "import json, sys, pathlib\n"
        "world = object.__new__(LocalWorld)\n"
        "world.folder = pathlib.Path(sys.argv[1])\n"
        "backend = LocalWorld.backend(world)\n"
        "request = launch(world, Program.STAY, key=sys.argv[2])\n"
        "backend.start(backend.prepare(request))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(world.folder), request.key],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    (owned,) = backend.list_owned()
    assert owned.handle.key == request.key
    until(backend, owned.handle, Phase.RUNNING)
    assert world.begun(backend, owned.handle, 0) == 1
    backend.stop(owned.handle, StopMode.KILL, 0)
    until(backend, owned.handle, Phase.ENDED)


def test_a_start_that_broke_off_in_the_middle_is_finished_by_another_process(
    world: LocalWorld, backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = backend.prepare(two_nodes(world))
    real, calls = backend.machines.call, []

    def once_then_die(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) > 1:
            raise OutcomeUnknown("died here")
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(backend.machines, "call", once_then_die)
    with pytest.raises(OutcomeUnknown):
        backend.start(handle)
    other = world.backend()
    assert look(other, handle).phase is Phase.PENDING
    other.start(handle)
    until(other, handle, Phase.RUNNING)
    eventually(lambda: [world.begun(other, handle, rank) for rank in (0, 1)] == [1, 1])


def test_a_gang_whose_second_machine_does_not_come_leaves_nothing(
    world: LocalWorld, backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = backend.prepare(two_nodes(world))
    real = backend.machines.begin

    def begin(pool: object, node: str) -> str:
        if node == "spot-1":
            raise NoCapacity("no machine for spot-1")
        return real(pool, node)  # type: ignore[arg-type]

    monkeypatch.setattr(backend.machines, "begin", begin)
    with pytest.raises(NoCapacity):
        backend.start(handle)
    assert look(backend, handle).phase is Phase.PREPARED
    assert not [trace for trace in world.traces(handle.key) if trace.startswith("process")]
    monkeypatch.undo()
    backend.start(handle)
    until(backend, handle, Phase.RUNNING)


def test_k8_06_seats_are_free_when_the_members_are_gone_and_not_before(
    world: LocalWorld, backend: LocalBackend
) -> None:
    stubborn = ("/bin/sh", "-c", "trap '' TERM USR1; echo started; while :; do sleep 0.05; done")
    handle = running(backend, a_launch(a_group(world.pool, stubborn, replicas=4)))
    backend.stop(handle, StopMode.NOTICE, 2)
    waiter = backend.prepare(launch(world, Program.STAY, replicas=4))
    refused = 0
    while look(backend, handle).phase is not Phase.ENDED:
        with pytest.raises(NoCapacity):
            backend.start(waiter)
        refused += 1
        time.sleep(0.1)
    assert refused >= 5, "it lived on through its grace"
    backend.start(waiter)
    until(backend, waiter, Phase.RUNNING)


def test_an_idle_instance_ends_and_the_slot_takes_a_new_one(world: LocalWorld) -> None:
    config = {
        "state_dir": str(world.folder / "idle"),
        "pools": [{"name": "spot", "nodes": 1, "accelerators": 1}],
        "idle_timeout_s": 0.5,
    }
    backend = build("idle", "local", config, "gw")
    assert isinstance(backend, LocalBackend)
    handle = backend.prepare(launch(world, Program.EXIT, "0"))
    backend.start(handle)
    until(backend, handle, Phase.ENDED)
    (first,) = backend.instances()
    eventually(lambda: not backend.instances(), what="the idle instance to end")
    assert read_json(Path(first.folder) / "state.json")["why"] == "idle"
    assert look(backend, handle).phase is Phase.ENDED, "what it ran is remembered"
    again = backend.prepare(launch(world, Program.EXIT, "0"))
    backend.start(again)
    until(backend, again, Phase.ENDED)
    backend.end_instances()


def test_an_instance_whose_folder_was_removed_ends_because_nobody_can_find_it(
    world: LocalWorld, backend: LocalBackend
) -> None:
    handle = running(backend, launch(world, Program.STAY))
    inside = everybody(backend, handle)
    (instance,) = backend.instances()
    shutil.rmtree(instance.folder)
    eventually(lambda: not any(alive(who) for who in inside.values()), what="all of the instance to be dead")
    end = until(backend, handle, Phase.ENDED).end
    assert end is not None
    assert end.cause is Reason.NODE_LOST


def test_without_isolation_a_second_tenant_is_refused_unless_they_trust_each_other(world: LocalWorld) -> None:
    pools = [{"name": "spot", "nodes": 1, "accelerators": 1}]
    alone = {"state_dir": str(world.folder / "none"), "pools": pools, "isolation": "none"}
    backend = build("none", "local", alone, "gw")
    assert not backend.capabilities.tenant_isolation
    backend.prepare(launch(world, Program.STAY, tenant="acme/research"))
    rival = launch(world, Program.STAY, tenant="acme/product")
    with pytest.raises(TenantNotServed, match="trust_below") as caught:
        backend.prepare(rival)
    assert "acme" not in str(caught.value), "one tenant does not read another's name"
    assert backend.find(rival.key) is None
    family = build("family", "local", {**alone, "state_dir": str(world.folder / "f"), "trust_below": "acme"}, "gw")
    for tenant in ("acme/research", "acme/product", "acme"):
        family.prepare(launch(world, Program.STAY, tenant=tenant))
    with pytest.raises(TenantNotServed):
        family.prepare(launch(world, Program.STAY, tenant="acmex/lab"))


@pytest.mark.skipif(os.geteuid() != 0, reason="user ids are given to tenants by root only")
def test_a_tenant_keeps_its_user_id_and_no_two_share_one(world: LocalWorld, backend: LocalBackend) -> None:
    backend.capacity()  # makes the folders
    first = {tenant: backend.files.tenant_uid(tenant, isolated=True) for tenant in ("a", "b", "a")}
    again = Files("here", backend.config)
    assert {tenant: again.tenant_uid(tenant, isolated=True) for tenant in ("b", "a")} == first
    assert len(set(first.values())) == 2
    assert all(uid is not None and uid >= 60_000 for uid in first.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="user ids are given to tenants by root only")
def test_a_change_of_isolation_never_lets_a_tenant_run_as_us_beside_others(
    world: LocalWorld, backend: LocalBackend
) -> None:
    backend.capacity()
    assert backend.files.tenant_uid("a", isolated=False) is None
    assert backend.files.tenant_uid("a", isolated=True) is not None
    assert backend.files.tenant_uid("b", isolated=True) is not None
    with pytest.raises(TenantNotServed):
        backend.files.tenant_uid("a", isolated=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="folders are given to tenants by root only")
def test_the_checkpoint_folder_is_the_tenants_and_no_planted_link_is_followed(
    world: LocalWorld, backend: LocalBackend
) -> None:
    store = world.folder / "store"
    store.mkdir()
    store.chmod(0o711)
    script = 'echo saved > "${TIDEGATE_CHECKPOINT_URL#file://}/part" && echo done'
    request = a_launch(
        a_group(world.pool, ("/bin/sh", "-c", script)), checkpoint_url=f"file://{store}/acme/job/attempt-1"
    )
    handle = backend.prepare(request)
    backend.start(handle)
    end = until(backend, handle, Phase.ENDED).end
    assert end is not None
    assert end.cause is Reason.COMPLETED, output(backend, handle, 0)
    folder = store / "acme" / "job" / "attempt-1"
    uid = backend.files.tenant_uid(request.tenant, isolated=True)
    assert [(path.stat().st_uid, path.stat().st_mode & 0o777) for path in (folder, folder.parent)] == [(uid, 0o700)] * 2
    (folder / "trap").symlink_to(world.folder)
    os.lchown(folder / "trap", uid or 0, uid or 0)
    evil = a_launch(a_group(world.pool, ("/bin/true",)), checkpoint_url=f"file://{folder}/trap/x/y")
    handle = backend.prepare(evil)
    with pytest.raises(Exception, match="cannot be made for its tenant"):
        backend.start(handle)
    assert not (world.folder / "x").exists()
    assert look(backend, handle).phase is Phase.PREPARED


def test_old_ends_are_forgotten_and_live_launches_never(world: LocalWorld, backend: LocalBackend) -> None:
    ended = backend.prepare(launch(world, Program.EXIT, "0"))
    backend.start(ended)
    until(backend, ended, Phase.ENDED)
    lives = running(backend, launch(world, Program.STAY))
    backend.keeper.clear_up(time.time() + 1000, at_once=True)
    assert look(backend, ended).phase is Phase.ENDED, "it is younger than keep_ended_s"
    backend.keeper.clear_up(time.time() + backend.config.keep_ended_s + 1000, at_once=True)
    assert look(backend, ended).phase is Phase.ABSENT
    assert look(backend, lives).phase is Phase.RUNNING
    assert [view.node for view in backend.instances()] == ["spot-0"]


def test_what_an_ended_launch_left_in_a_living_instance_is_cleared(world: LocalWorld, backend: LocalBackend) -> None:
    request = launch(world, Program.EXIT, "0", env={"PRIVATE": "kept nowhere"})
    handle = backend.prepare(request)
    backend.start(handle)
    until(backend, handle, Phase.ENDED)
    (instance,) = backend.instances()
    left = Path(instance.folder) / "agent" / "members" / handle.key
    assert left.is_dir()
    backend.keeper.clear_up(time.time() + 120, at_once=True)
    assert not left.exists()
    assert look(backend, handle).phase is Phase.ENDED
    assert output(backend, handle, 0) == b"started\n", "its log is kept"


def test_one_spoilt_record_hides_itself_and_not_the_others(world: LocalWorld, backend: LocalBackend) -> None:
    good = running(backend, launch(world, Program.STAY))
    bad = backend.prepare(launch(world, Program.STAY))
    (backend.files.root / "launches" / bad.key / "placement.json").write_text('{"seats": [')
    other = world.backend()
    assert [one.handle for one in other.observe([bad, good])] == [good]
    assert [one.handle for one in other.list_owned()] == [good]
    third = running(other, a_launch(a_group(world.pool, world.command(Program.STAY), per_member=ONE_GPU)))
    assert look(other, third).phase is Phase.RUNNING


def test_more_than_a_node_has_is_refused_by_name(world: LocalWorld, backend: LocalBackend) -> None:
    large = a_launch(a_group(world.pool, ("x",), per_member=ONE_GPU.times(3)))
    with pytest.raises(Refused, match=r"groups\[workers\].resources"):
        backend.prepare(large)
    with pytest.raises(Refused, match="no node spot-9"):
        backend.prepare(a_launch(a_group(world.pool, ("x",), nodes=("spot-9",))))
