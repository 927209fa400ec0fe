"""SP-08: one instance of a gang is gone and the others notice, whatever the head says."""

import time
from typing import Any

from tests.harness.agents import Agent, agents
from tests.harness.ports import free_port


def gang(size: int, timeout_s: float = 1.0) -> dict[str, Any]:
    return {
        "size": size,
        "coordinator": f"127.0.0.1:{free_port()}",
        "interval_s": timeout_s / 10,
        "timeout_s": timeout_s,
        "secret": "of the attempt",
    }


def lost(agent: Agent, rank: int) -> dict[str, Any]:
    return agent.reaches("ended", "tg-1", rank)


def test_sp_08_the_gang_fails_within_its_time_out_when_an_instance_vanishes() -> None:
    with agents(4) as found:
        meeting = gang(4)
        for rank, agent in enumerate(found):
            agent.start("tg-1", rank, script="sleep 600", gang=meeting)
            agent.reaches("running", "tg-1", rank)
        found[3].end(kill=True)
        vanished_at = time.time()
        for rank, agent in enumerate(found[:3]):
            member = lost(agent, rank)
            assert (member["cause"], member["exit_code"]) == ("NodeLost", None)
            assert "rank 3" in member["detail"]
            assert member["ended_at"] - vanished_at < 5


def test_sp_08_an_instance_that_vanishes_during_set_up_is_no_failed_set_up() -> None:
    with agents(3) as found:
        meeting = gang(3)
        for rank, agent in enumerate(found):
            agent.start("tg-1", rank, setup="echo begun; sleep 600", script="true", gang=meeting)
            agent.says("begun", "tg-1", rank)
        found[2].end(kill=True)
        assert [lost(agent, rank)["cause"] for rank, agent in enumerate(found[:2])] == ["NodeLost", "NodeLost"]


def test_sp_08_the_loss_of_rank_0_is_noticed_by_all_others() -> None:
    with agents(3) as found:
        meeting = gang(3)
        for rank, agent in enumerate(found):
            agent.start("tg-1", rank, script="sleep 600", gang=meeting)
            agent.reaches("running", "tg-1", rank)
        found[0].end(kill=True)
        assert [lost(agent, rank)["cause"] for rank, agent in enumerate(found) if rank] == ["NodeLost", "NodeLost"]


def test_a_rank_that_never_comes_is_missed_too() -> None:
    with agents(1) as found:
        found[0].start("tg-1", 0, script="sleep 600", gang=gang(2, timeout_s=0.3))
        assert "rank 1" in lost(found[0], 0)["detail"]


def test_ranks_that_end_regularly_are_not_missed() -> None:
    with agents(2) as found:
        meeting = gang(2, timeout_s=0.3)
        found[0].start("tg-1", 0, script="exit 0", gang=meeting)
        found[1].start("tg-1", 1, script="sleep 1.5", gang=meeting)
        assert lost(found[0], 0)["cause"] == "Completed"
        assert lost(found[1], 1)["cause"] == "Completed"


def test_several_ranks_of_one_agent_share_its_beats() -> None:
    with agents(2) as found:
        meeting = gang(4, timeout_s=0.5)
        for rank in range(4):
            found[rank // 2].start("tg-1", rank, script="sleep 1.5", gang=meeting)
        assert {lost(found[rank // 2], rank)["cause"] for rank in range(4)} == {"Completed"}


def test_a_beat_with_another_secret_is_not_heard() -> None:
    with agents(2) as found:
        meeting = gang(2, timeout_s=0.4)
        found[0].start("tg-1", 0, script="sleep 600", gang=meeting)
        found[1].start("tg-1", 1, script="sleep 600", gang={**meeting, "secret": "a guess"})
        assert lost(found[0], 0)["cause"] == "NodeLost"
