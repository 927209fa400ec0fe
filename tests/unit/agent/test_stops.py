"""Notices and stops: file first, then the signal, grace, SIGTERM before its end, SIGKILL at its end."""

import json
import sys
import time
from pathlib import Path

from tests.harness.agents import Agent, gone
from tests.harness.waiting import eventually

LISTENER = """
import json, os, signal, sys, time
def heard(number, frame):
    print(signal.Signals(number).name, open(os.environ["TIDEGATE_NOTICE_FILE"]).read().replace("\\n", ""), flush=True)
    if leave == signal.Signals(number).name:
        sys.exit(75)
leave = sys.argv[1] if len(sys.argv) > 1 else ""
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, heard)
print("listening", flush=True)
while True:
    time.sleep(0.05)
"""


def listener(agent: Agent, launch: str, rank: int = 0, leave: str = "", **fields: object) -> int:
    agent.start(launch, rank, argv=[sys.executable, "-c", LISTENER, leave], **fields)
    agent.says("listening", launch, rank)
    return int(agent.reaches("running", launch, rank)["pid"])


def test_a_notice_is_a_file_and_then_the_chosen_signal_and_stops_nothing(agent: Agent) -> None:
    listener(agent, "tg-1", notice_signal="USR2")
    began = time.time()
    _, answer = agent.call("POST", "/notice", {"launch": "tg-1", "kind": "checkpoint", "grace_s": 60})
    assert answer == {"told": [0]}
    agent.says("SIGUSR2", "tg-1")
    told = json.loads(agent.log("tg-1").splitlines()[1].partition(" ")[2])
    assert (told["kind"], told["grace_s"]) == ("checkpoint", 60)
    assert 59 < told["deadline"] - began < 62
    eventually(lambda: agent.member("tg-1")["notice"])  # written after the signal, which is the more urgent
    member = agent.member("tg-1")
    assert (member["state"], member["notice"]["kind"], member["stop"]) == ("running", "checkpoint", None)


def test_a_checkpoint_request_reaches_every_member_and_only_this_launch(agent: Agent) -> None:
    for rank in (0, 1):
        listener(agent, "tg-1", rank)
    listener(agent, "tg-2")
    assert agent.call("POST", "/notice", {"launch": "tg-1", "kind": "checkpoint"})[1] == {"told": [0, 1]}
    for rank in (0, 1):
        agent.says("SIGUSR1", "tg-1", rank)
    assert agent.log("tg-2") == "listening\n"
    assert agent.call("POST", "/notice", {"launch": "tg-9", "kind": "checkpoint"})[1] == {"told": []}


def test_a_notice_does_not_kill_a_job_that_has_no_handler_for_the_signal(agent: Agent) -> None:
    agent.start("tg-1", script="sleep 600; true")
    agent.start("tg-2", script=f"{sys.executable} -c '{LISTENER}'; true")  # a shell in front of the listener
    agent.says("listening", "tg-2")
    agent.reaches("running", "tg-1")
    for launch in ("tg-1", "tg-2"):
        agent.call("POST", "/notice", {"launch": launch, "kind": "checkpoint"})
    agent.says("SIGUSR1", "tg-2")
    assert agent.member("tg-1")["state"] == "running"
    assert agent.member("tg-2")["state"] == "running"
    assert json.loads(Path(agent.folder, "members/tg-1/0/job/notice.json").read_text())["kind"] == "checkpoint"


def test_a_process_that_begins_to_listen_during_the_grace_is_still_told(agent: Agent) -> None:
    agent.start("tg-1", argv=[sys.executable, "-c", f"import time; time.sleep(0.6)\n{LISTENER}", "SIGUSR1"])
    agent.reaches("running", "tg-1")
    agent.stop("tg-1", grace_s=30)
    assert agent.reaches("ended", "tg-1")["exit_code"] == 75


def test_a_job_that_saves_and_leaves_ends_before_its_grace(agent: Agent) -> None:
    listener(agent, "tg-1", leave="SIGUSR1")
    began = time.monotonic()
    assert agent.stop("tg-1", grace_s=60) == {"stopping": [0], "ended": []}
    member = agent.reaches("ended", "tg-1")
    assert time.monotonic() - began < 30
    assert (member["exit_code"], member["cause"], member["stop"]["kind"]) == (75, "SavedAndExited", "preempt")
    assert agent.stop("tg-1", grace_s=60) == {"stopping": [], "ended": [0]}


def test_a_stop_signals_terminates_and_kills_in_that_order_and_in_time(agent: Agent) -> None:
    pid = listener(agent, "tg-1")
    agent.stop("tg-1", grace_s=1.2, term_s=0.5)
    member = agent.reaches("ended", "tg-1")
    assert gone(pid)
    assert [line.split()[0] for line in agent.log("tg-1").splitlines()] == ["listening", "SIGUSR1", "SIGTERM"]
    assert (member["exit_code"], member["signal"]) == (137, 9)
    assert 1.1 < member["ended_at"] - member["stop"]["at"] < 3


def test_without_grace_nothing_is_said_and_all_descendants_are_killed(agent: Agent) -> None:
    script = f"{sys.executable} -c '{LISTENER}' & echo pid $!; trap '' TERM; wait"
    agent.start("tg-1", script=script)
    agent.says("listening", "tg-1")
    pid = int(agent.log("tg-1").split()[1])
    agent.stop("tg-1", grace_s=0)
    assert agent.reaches("ended", "tg-1")["exit_code"] == 137
    assert gone(pid)
    assert "SIG" not in agent.log("tg-1")


def test_a_second_stop_may_only_shorten(agent: Agent) -> None:
    listener(agent, "tg-1")
    agent.stop("tg-1", grace_s=50)
    first = agent.reaches("stopping", "tg-1")["stop"]
    agent.stop("tg-1", grace_s=500)
    agent.stop("tg-1", grace_s=40, kind="stop")
    second = eventually(lambda: agent.member("tg-1")["stop"]["deadline"] != first["deadline"] and agent.member("tg-1"))
    assert isinstance(second, dict)
    assert 5 < first["deadline"] - second["stop"]["deadline"] < 15
    assert second["stop"]["kind"] == "preempt"
    agent.stop("tg-1", grace_s=0)
    assert agent.reaches("ended", "tg-1")["signal"] == 9


def test_a_stop_of_some_ranks_leaves_the_others(agent: Agent) -> None:
    for rank in (0, 1, 2):
        agent.start("tg-1", rank, script="sleep 600")
        agent.reaches("running", "tg-1", rank)
    assert agent.stop("tg-1", grace_s=0, ranks=[1])["stopping"] == [1]
    agent.reaches("ended", "tg-1", 1)
    assert [agent.member("tg-1", rank)["state"] for rank in (0, 2)] == ["running", "running"]
    assert agent.stop("tg-9", grace_s=5) == {"stopping": [], "ended": []}


def test_a_stop_during_set_up_is_no_failure_of_the_set_up(agent: Agent) -> None:
    agent.start("tg-1", setup="echo begun; sleep 600", script="echo never")
    agent.says("begun", "tg-1")
    agent.stop("tg-1", grace_s=300, kind="revoke")
    member = agent.reaches("ended", "tg-1")
    assert (member["cause"], member["stop"]["kind"]) == ("Stopped", "revoke")
    assert agent.log("tg-1") == "begun\n"


def test_a_stop_right_after_the_start_wins(agent: Agent) -> None:
    for number in range(5):
        agent.start(f"tg-{number}", script="sleep 600")
        agent.stop(f"tg-{number}", grace_s=0)
        assert agent.reaches("ended", f"tg-{number}")["cause"] in {"Stopped", "NonZeroExit"}
