"""What a member is told by its environment, and which names a job may not use."""

from dataclasses import replace

import pytest

from backends.environment import (
    PREAMBLES,
    MemberFiles,
    Rendezvous,
    check,
    launcher_command,
    member_command,
    member_environment,
    members,
)
from backends.errors import Refused
from backends.types import LaunchRequest, Secret
from policies.vocabulary import Launcher
from tests.builders.launch import a_group, a_launch
from tidegate.job import context

MEETING = Rendezvous("10.0.0.7", 29500, 29501, ("10.0.0.7", "10.0.0.8"))


def seen(request: LaunchRequest, rank: int = 0, **more: object) -> dict[str, str]:
    member = next(member for member in members(request) if member.rank == rank)
    files = MemberFiles("/run/notice.json", "/run/token")
    return member_environment(request, member, MEETING, files, **more)  # type: ignore[arg-type]


def test_ranks_run_over_all_groups_and_each_member_knows_its_place() -> None:
    request = a_launch(
        a_group("p", ("run",), replicas=2, name="workers"),
        a_group("p", ("serve",), replicas=1, first_rank=2, name="servers"),
        checkpoint_url="file:///c/attempt-1",
        resume_from="file:///c/attempt-0",
        gateway_url="http://gate",
    )
    assert [member.rank for member in members(request)] == [0, 1, 2]
    last = seen(request, 2)
    assert last["TIDEGATE_NODE_RANK"] == "2"
    assert last["TIDEGATE_NUM_NODES"] == "3"
    assert (last["TIDEGATE_GROUP"], last["TIDEGATE_GROUP_RANK"], last["TIDEGATE_GROUP_REPLICAS"]) == (
        "servers",
        "0",
        "1",
    )
    assert (last["MASTER_ADDR"], last["MASTER_PORT"], last["TIDEGATE_COORD_PORT"]) == ("10.0.0.7", "29500", "29501")
    assert last["TIDEGATE_CHECKPOINT_URL"] == "file:///c/attempt-1"
    assert last["TIDEGATE_RESUME_FROM"] == "file:///c/attempt-0"
    assert last["TIDEGATE_NOTICE_FILE"] == "/run/notice.json"
    assert last["TIDEGATE_TOKEN_FILE"] == "/run/token"
    assert last["TIDEGATE_URL"] == "http://gate"
    assert last["TIDEGATE_HOSTS"] == "10.0.0.7,10.0.0.8"


def test_the_users_values_lie_over_the_base_and_ours_over_all() -> None:
    group = a_group("p", ("run",), env={"MODE": "group", "MASTER_ADDR": "evil"})
    request = a_launch(group, env={"MODE": "job", "NL": "a\nb'$(x)"}, secrets={"KEY": Secret("k")})
    environment = seen(request, base={"PATH": "/bin", "NL": "base"}, gpus=(1, 3))
    assert environment["PATH"] == "/bin"
    assert environment["MODE"] == "group"
    assert environment["NL"] == "a\nb'$(x)"
    assert environment["KEY"] == "k"
    assert environment["MASTER_ADDR"] == "10.0.0.7"
    assert environment["TIDEGATE_VISIBLE_GPUS"] == environment["CUDA_VISIBLE_DEVICES"] == "1,3"


def test_no_gpu_means_an_empty_list_and_none_means_that_the_backend_decides() -> None:
    request = a_launch(a_group("p", ("run",)))
    assert seen(request, gpus=())["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in seen(request)


@pytest.mark.parametrize("prefix", ["SLURM_", "SBATCH_", "SRUN_", "TIDEGATE_", "LD_"])
@pytest.mark.parametrize("place", ["env", "secrets", "group"])
def test_a_reserved_name_is_refused_with_its_field(prefix: str, place: str) -> None:
    name = f"{prefix}X"
    request = {
        "env": lambda: a_launch(a_group("p", ("run",)), env={name: "1"}),
        "secrets": lambda: a_launch(a_group("p", ("run",)), secrets={name: Secret("hush")}),
        "group": lambda: a_launch(a_group("p", ("run",), env={name: "1"})),
    }[place]()
    with pytest.raises(Refused, match=rf"{name} is reserved.*choose another name") as caught:
        check(request)
    assert caught.value.permanent
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "A=B", "A\0B"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="no name for a variable"):
        check(a_launch(a_group("p", ("run",)), env={name: "x"}))


def test_a_value_that_no_process_can_receive_is_refused_without_being_shown() -> None:
    with pytest.raises(Refused, match=r"secrets\.KEY has a value with a NUL byte") as caught:
        check(a_launch(a_group("p", ("run",)), secrets={"KEY": Secret("hush\0")}))
    assert "hush" not in str(caught.value)


def test_a_launch_without_sense_is_refused_by_field() -> None:
    with pytest.raises(Refused, match="groups is empty"):
        check(a_launch())
    with pytest.raises(Refused, match=r"groups\[workers\].command is empty"):
        check(a_launch(a_group("p", ())))
    with pytest.raises(Refused, match=r"groups\[workers\].replicas"):
        check(a_launch(a_group("p", ("run",), replicas=0)))
    with pytest.raises(Refused, match=r"groups\[workers\].nodes"):
        check(a_launch(a_group("p", ("run",), replicas=2, nodes=("a",))))
    with pytest.raises(Refused, match="overlap in their ranks"):
        check(a_launch(a_group("p", ("run",), replicas=2), a_group("p", ("run",), first_rank=1, name="b")))


def test_setup_runs_before_the_command_in_a_shell_that_becomes_it() -> None:
    request = a_launch(a_group("p", ("run", "a b", "$x")), setup="pip list")
    (member,) = members(request)
    command = member_command(request, member)
    assert command[:2] == ("/bin/sh", "-c")
    assert command[-3:] == ("run", "a b", "$x"), "the user's words are arguments, never part of the script"
    assert "pip list" in command[2]
    assert launcher_command(request, member) == ("run", "a b", "$x")
    assert member_command(replace(request, setup=""), member) == ("run", "a b", "$x")


def test_a_launcher_that_is_not_offered_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.environment.PREAMBLES", {Launcher.PLAIN: PREAMBLES[Launcher.PLAIN]})
    request = a_launch(a_group("p", ("run",)), launcher=Launcher.RAY)
    (member,) = members(request)
    with pytest.raises(Refused, match="launcher ray is not offered by this backend; use one of: plain") as caught:
        member_command(request, member)
    assert caught.value.permanent


def test_a_job_at_another_size_is_told_what_that_does_to_its_batch() -> None:
    request = a_launch(a_group("p", ("run",), replicas=6), target_replicas=6, grad_accum=1, lr_scale="3/4")
    told = seen(request)
    names = ("TIDEGATE_TARGET_REPLICAS", "TIDEGATE_GRAD_ACCUM", "TIDEGATE_LR_SCALE")
    assert [told[name] for name in names] == ["6", "1", "3/4"]
    ctx = context(told)
    assert (ctx.target_replicas, ctx.grad_accum, ctx.lr_scale) == (6, 1, 0.75)
    assert not set(names) & set(seen(a_launch(a_group("p", ("run",))))), "a job of one size is told nothing"
