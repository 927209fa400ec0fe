"""Starting members and reading how they ended, against a real agent process."""

import hashlib
import json
import os
import signal
import sys
import tarfile
import time
from pathlib import Path

import pytest

from tests.harness.agents import IS_ROOT, Agent, gone
from tests.harness.waiting import eventually

NOBODY = 65534
PRINT_ENV = 'import json, os, sys; print(json.dumps({"env": dict(os.environ), "argv": sys.argv[1:]}))'


def test_a_member_runs_and_its_end_is_on_disk(agent: Agent) -> None:
    agent.start("tg-1", script="echo out; echo err >&2; exit 3", group="workers", gpus=[0, 2])
    member = agent.reaches("ended", "tg-1")
    assert (member["exit_code"], member["signal"], member["cause"]) == (3, None, "NonZeroExit")
    assert member["started_at"] <= member["ended_at"]
    assert agent.log("tg-1") == "out\nerr\n"
    assert json.loads(Path(member["folder"], "status.json").read_text()) == member


def test_a_start_is_idempotent_and_another_spec_is_a_conflict(agent: Agent) -> None:
    body = {"launch": "tg-1", "rank": 0, "script": "echo once", "token": "first"}
    assert agent.call("POST", "/members", body)[0] == 201
    agent.reaches("ended", "tg-1")
    status, again = agent.call("POST", "/members", {**body, "token": "second"})
    assert (status, again["state"]) == (200, "ended")
    assert agent.log("tg-1") == "once\n"
    status, answer = agent.call("POST", "/members", {**body, "script": "echo twice"})
    assert (status, answer["error"]["code"]) == (409, "conflict")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"launch": "../../etc"}, "launch"),
        ({"rank": -1}, "rank"),
        ({"argv": ["x"]}, "argv"),
        ({"script": None}, "argv"),
        ({"env": {"A=B": "x"}}, "env"),
        ({"env": {"A": "x\0y"}}, "env.A"),
        ({"cwd": "relative"}, "cwd"),
        ({"notice_signal": "KILL"}, "notice_signal"),
        ({"gpus": [True]}, "gpus"),
        ({"grace_s": -1}, "grace_s"),
        ({"gang": {"size": 2, "coordinator": "nowhere"}}, "gang.coordinator"),
    ],
)
def test_a_wrong_field_is_named(agent: Agent, change: dict[str, object], field: str) -> None:
    status, answer = agent.call("POST", "/members", {"launch": "tg-1", "rank": 0, "script": "true", **change})
    assert (status, answer["error"]["code"], answer["error"]["field"]) == (400, "invalid", field)
    assert agent.call("GET", "/members")[1]["members"] == []


def test_sl_11_arguments_and_environment_arrive_byte_for_byte_and_run_nothing(agent: Agent, tmp_path: Path) -> None:
    pwned = tmp_path / "pwned"
    names = ["crazy|name", "Big simulation", "two\nlines", "az'", 'x" --uid=0', "--wrap=id", f"$(touch {pwned})"]
    names += [f"`touch {pwned}`", "名前", "", "n" * 300, "bytes \udcff\udc80"]
    env = {"LIST": "a,b", "MSG": "it's $HOME", "NL": "l1\nl2", "EQ": "k=v", "BYTES": "\udcff"}
    agent.start("tg-1", argv=[sys.executable, "-c", PRINT_ENV, *names], env=env)
    assert agent.reaches("ended", "tg-1")["exit_code"] == 0
    seen = json.loads(agent.log("tg-1"))
    assert seen["argv"] == names
    assert {name: seen["env"][name] for name in env} == env
    assert seen["env"]["PATH"]
    assert not pwned.exists()


def test_sl_11_a_script_is_data_whatever_it_holds(agent: Agent) -> None:
    script = "#SBATCH --uid=0\ncat <<'EOF'\nEOF inside\nit's \"$HOME\" `id`\nEOF\n"
    agent.start("tg-1", script=script)
    assert agent.reaches("ended", "tg-1")["exit_code"] == 0
    assert agent.log("tg-1") == 'EOF inside\nit\'s "$HOME" `id`\n'


def test_a_script_ends_at_its_first_failing_command(agent: Agent) -> None:
    agent.start("tg-1", script="false\necho not reached")
    assert agent.reaches("ended", "tg-1")["exit_code"] == 1
    assert agent.log("tg-1") == ""


def test_the_member_sees_its_cards_and_its_files(agent: Agent) -> None:
    agent.start("tg-1", argv=[sys.executable, "-c", PRINT_ENV], gpus=[1, 3], token="s3cret", notice_signal="USR2")
    agent.start("tg-2", argv=[sys.executable, "-c", PRINT_ENV], gpus=[])
    member = agent.reaches("ended", "tg-1")
    env = json.loads(agent.log("tg-1"))["env"]
    assert env["CUDA_VISIBLE_DEVICES"] == env["TIDEGATE_VISIBLE_GPUS"] == "1,3"
    assert env["TIDEGATE_CHECKPOINT_SIGNAL"] == "USR2"
    token = Path(env["TIDEGATE_TOKEN_FILE"])
    assert token.read_text() == "s3cret"
    assert token.stat().st_mode & 0o777 == 0o600
    assert "s3cret" not in json.dumps(env) + json.dumps(member) + Path(member["folder"], "spec.json").read_text()
    agent.reaches("ended", "tg-2")
    env = json.loads(agent.log("tg-2"))["env"]
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert "TIDEGATE_TOKEN_FILE" not in env


def test_what_cannot_be_started_is_told_apart_from_a_programs_own_code(agent: Agent) -> None:
    agent.start("tg-1", argv=["no-such-program-here"])
    member = agent.reaches("ended", "tg-1")
    assert (member["cause"], member["exit_code"]) == ("LaunchFailed", None)
    assert "no-such-program-here" in member["detail"]
    agent.start("tg-2", script="exit 127")
    assert agent.reaches("ended", "tg-2")["exit_code"] == 127
    agent.start("tg-3", script="true", setup="echo preparing; exit 9")
    member = agent.reaches("ended", "tg-3")
    assert (member["cause"], member["detail"]) == ("LaunchFailed", "setup: ended with code 9")
    assert agent.log("tg-3") == "preparing\n"


def test_set_up_runs_before_the_command_in_the_same_place(agent: Agent) -> None:
    agent.start("tg-1", setup='echo "$WORD" > made', script="cat made; pwd", env={"WORD": "ready"})
    agent.reaches("ended", "tg-1")
    assert agent.log("tg-1") == f"ready\n{agent.folder}/members/tg-1/0/job/work\n"


def archive(folder: Path) -> tuple[str, str]:
    (folder / "code").mkdir()
    (folder / "code" / "hello.py").write_text("print('from the archive')\n")
    path = folder / "code.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder / "code" / "hello.py", "hello.py")
    path.chmod(0o600)  # the job's user could not read it
    return str(path), hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_workdir_is_unpacked_before_the_set_up(agent: Agent, tmp_path: Path) -> None:
    path, digest = archive(tmp_path)
    workdir = {"archive": path, "sha256": digest}
    agent.start("tg-1", workdir=workdir, setup="test -f hello.py", argv=[sys.executable, "hello.py"])
    assert agent.reaches("ended", "tg-1")["cause"] == "Completed"
    assert agent.log("tg-1") == "from the archive\n"
    agent.start("tg-2", workdir={"archive": path, "sha256": "0" * 64}, script="echo ran")
    member = agent.reaches("ended", "tg-2")
    assert member["cause"] == "LaunchFailed"
    assert "another sha256" in member["detail"]
    assert agent.log("tg-2") == ""


@pytest.mark.skipif(not IS_ROOT, reason="only root can switch users")
def test_a_member_runs_as_its_user_and_cannot_touch_what_is_ours(agent: Agent, tmp_path: Path) -> None:
    path, digest = archive(tmp_path)
    script = (
        "id -u; id -G; ls hello.py; touch made; cat $TIDEGATE_TOKEN_FILE; echo;"
        "cat ../../status.json || echo hidden; ls ../../../.. || echo closed; cat ../../spec.json || echo secret"
    )
    agent.start("tg-1", script=script, uid=NOBODY, gid=NOBODY, token="t0k", workdir={"archive": path, "sha256": digest})
    assert agent.reaches("ended", "tg-1")["exit_code"] == 0
    lines = [line for line in agent.log("tg-1").splitlines() if "denied" not in line]
    assert lines == ["65534", "65534", "hello.py", "t0k", "hidden", "closed", "secret"]
    job = Path(agent.folder, "members/tg-1/0/job")
    assert (job / "work" / "hello.py").stat().st_uid == NOBODY
    assert (job / "token").stat().st_uid == NOBODY
    assert job.stat().st_mode & 0o777 == 0o700


def test_nothing_of_a_member_outlives_its_command(agent: Agent) -> None:
    daemon = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
    daemon += 'print("daemon", os.getpid(), flush=True)\ntime.sleep(600)\n'
    script = f"sleep 600 & echo child $!; {sys.executable} -c '{daemon}'; sleep 0.2"
    agent.start("tg-1", script=script)
    agent.reaches("ended", "tg-1")
    words = agent.log("tg-1").split()
    assert words[0::2] == ["child", "daemon"]
    assert gone(*map(int, words[1::2]))


def test_a_member_that_has_worked_long_enough_is_stopped_by_the_agent_itself(agent: Agent) -> None:
    agent.start("tg-1", script="sleep 600", max_duration_s=0.2, grace_s=0.2, term_s=0.1)
    member = agent.reaches("ended", "tg-1")
    assert member["exit_code"] == 143
    assert member["stop"]["kind"] == "stop"


def test_final_marks_and_saved_exits_are_seen(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "FINAL").write_text("{}")
    agent.start("tg-1", script="exit 75", env={"TIDEGATE_CHECKPOINT_URL": tmp_path.as_uri()})
    agent.start("tg-2", script="true", env={"TIDEGATE_CHECKPOINT_URL": "s3://bucket/x"})
    assert agent.reaches("ended", "tg-1")["final"] is True
    assert agent.reaches("ended", "tg-1")["cause"] == "SavedAndExited"
    assert agent.reaches("ended", "tg-2")["final"] is False


def test_removing_a_launch_leaves_no_trace_and_may_be_repeated(agent: Agent) -> None:
    agent.start("tg-1", 0, script="sleep 600")
    agent.start("tg-1", 1, script="true")
    agent.start("tg-2", 0, script="sleep 600")
    pid = agent.reaches("running", "tg-1")["pid"]
    assert agent.call("DELETE", "/members?launch=tg-1") == (200, {"removed": [0, 1]})
    assert gone(pid)
    assert not (agent.folder / "members" / "tg-1").exists()
    assert agent.call("DELETE", "/members?launch=tg-1") == (200, {"removed": []})
    assert agent.reaches("running", "tg-2")
    agent.start("tg-1", 0, script="echo anew")
    assert agent.reaches("ended", "tg-1")["exit_code"] == 0


def test_a_member_dies_with_its_agent_and_the_next_agent_says_so(agent: Agent) -> None:
    agent.start("tg-1", script="trap '' TERM; sleep 600 & wait")
    agent.start("tg-2", script="exit 4")
    pid = agent.reaches("running", "tg-1")["pid"]
    before = agent.reaches("ended", "tg-2")
    agent.end(kill=True)
    eventually(lambda: gone(pid))
    successor = Agent(agent.folder)
    try:
        member = successor.member("tg-1")
        assert (member["state"], member["cause"], member["exit_code"]) == ("ended", "NodeLost", None)
        assert successor.member("tg-2") == before
        assert successor.start("tg-2", script="exit 4")["state"] == "ended", "the same start is still the same"
    finally:
        successor.end()


def test_a_keeper_that_is_killed_takes_its_member_along(agent: Agent) -> None:
    agent.start("tg-1", argv=["sleep", "600"])
    pid = agent.reaches("running", "tg-1")["pid"]
    keeper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(keeper, signal.SIGKILL)
    assert agent.reaches("ended", "tg-1")["cause"] == "NodeLost"
    eventually(lambda: gone(pid))


def test_an_agent_that_is_told_to_end_kills_its_members_first(agent: Agent) -> None:
    agent.start("tg-1", script="sleep 600")
    pid = agent.reaches("running", "tg-1")["pid"]
    agent.end()
    assert agent.process.returncode == 0
    assert gone(pid)
    assert not (agent.folder / "agent.sock").exists()


def test_two_agents_never_share_a_folder(agent: Agent) -> None:
    second = Agent(agent.folder)
    assert second.ready == ""
    second.end()
    assert second.process.returncode == 75
    assert agent.call("GET", "/health")[0] == 200


def test_the_socket_is_for_its_owner_alone(agent: Agent) -> None:
    assert (agent.folder / "agent.sock").stat().st_mode & 0o777 == 0o600


def test_a_bad_request_stops_nothing(agent: Agent) -> None:
    assert agent.call("GET", "/nothing")[0] == 404
    assert agent.call("POST", "/stop", {"launch": "tg-1"})[1]["error"]["field"] == "grace_s"
    assert agent.call("POST", "/notice", {"launch": "tg-1", "kind": "shout"})[1]["error"]["field"] == "kind"
    assert agent.call("GET", "/health")[1]["members"] == 0


def test_a_process_runs_within_half_a_second_of_the_call(agent: Agent) -> None:
    began = time.time()
    agent.start("tg-1", script="sleep 600")
    assert agent.reaches("running", "tg-1")["started_at"] - began < 0.5


def test_a_status_that_cannot_be_read_hides_no_other_member(agent: Agent) -> None:
    agent.start("tg-1", script="true")
    agent.start("tg-2", script="true")
    agent.reaches("ended", "tg-2")
    before = agent.reaches("ended", "tg-1")
    Path(before["folder"], "status.json").write_text("{ torn")
    _, answer = agent.call("GET", "/members")
    assert [member["launch"] for member in answer["members"]] == ["tg-1", "tg-2"]
    assert answer["members"][0] == before
    agent.end()
    successor = Agent(agent.folder)
    try:
        assert successor.member("tg-2")["cause"] == "Completed"
    finally:
        successor.end()


def test_a_notice_that_cannot_be_written_is_still_signalled(agent: Agent) -> None:
    script = f"{sys.executable} -c 'import signal; signal.signal(signal.SIGUSR1, print); print(1); signal.pause()'"
    agent.start("tg-1", script=script, env={"PYTHONUNBUFFERED": "1"})
    agent.says("1", "tg-1")
    (agent.folder / "members/tg-1/0/job/notice.json").mkdir()  # in its way
    agent.call("POST", "/notice", {"launch": "tg-1", "kind": "checkpoint"})
    assert agent.reaches("ended", "tg-1")["exit_code"] == 0
    assert "the notice could not be written" in agent.log("tg-1")


def test_one_rank_of_a_launch_is_removed_and_may_be_started_again(agent: Agent) -> None:
    for rank in (0, 1):
        agent.start("tg-1", rank=rank, script="echo $TIDEGATE_NODE_RANK; sleep 600")
    status, answer = agent.call("DELETE", "/members?launch=tg-1&ranks=1")
    assert (status, answer) == (200, {"removed": [1]})
    assert [member["rank"] for member in agent.call("GET", "/members")[1]["members"]] == [0]
    agent.start("tg-1", rank=1, script="exit 3")
    assert agent.reaches("ended", "tg-1", rank=1)["exit_code"] == 3
    status, answer = agent.call("DELETE", "/members?launch=tg-1&ranks=one")
    assert (status, answer["error"]["field"]) == (400, "ranks")
