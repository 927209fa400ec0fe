"""What agents and instances say, read as ends, notices and advice: the closed table of the local backend."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from backends.local.placing import Seat
from backends.local.read import conclude, departures, observation, stop_rest
from backends.local.records import InstanceView, Placement, Record, Stop, ended_from_json, ended_to_json
from backends.types import End, Handle, NoticeKind, Phase
from policies.vocabulary import Reason
from tests.builders.launch import a_group, a_launch

T0 = 1_800_000_000.0


def record(size: int = 2, *, stop: Stop | None = None, **changes: Any) -> Record:
    seats = tuple(Seat(rank, f"p-{rank}", ()) for rank in range(size))
    placement = Placement(
        seats, {f"p-{rank}": f"i-{rank}" for rank in range(size)}, 1, 2, 3, "secret", T0, started=True
    )
    request = a_launch(a_group("p", ("x",), replicas=size), **changes)
    return Record(request, T0, None, placement, stop, changed_us=int(T0 * 1e6))


def view(rank: int, *, alive: bool = True, told: bool = False, ended_at: float | None = None) -> InstanceView:
    return InstanceView(
        f"i-{rank}",
        f"p-{rank}",
        alive=alive,
        state="interrupted" if told else "running",
        socket="",
        folder="",
        interrupted_at=T0 + 5 if told else None,
        deadline=T0 + 8 if told else None,
        ended_at=ended_at,
    )


def runs(**changes: Any) -> dict[str, Any]:
    return {"state": "running", "started_at": T0, "stop": None, "final": False, **changes}


def left(code: int | None, at: float = 10, cause: str | None = None, **changes: Any) -> dict[str, Any]:
    words = {0: "Completed", 75: "SavedAndExited"}
    named = cause or words.get(code if code is not None else -1, "NonZeroExit")
    return runs(state="ended", exit_code=code, ended_at=T0 + at, cause=named, **changes)


def stopped(kind: str, deadline: float = 100) -> dict[str, Any]:
    return {"kind": kind, "deadline": T0 + deadline, "at": T0 + 1}


def end_of(
    launch: Record, statuses: Mapping[int, Mapping[str, Any]], views: Mapping[str, InstanceView] | None = None
) -> End | None:
    seen = views or {f"i-{rank}": view(rank) for rank in range(9)}
    assert launch.placement is not None
    now = T0 + 60
    ended = conclude(launch, departures(launch.placement, statuses, seen, now), statuses, seen, now)
    return None if ended is None else ended.end


@pytest.mark.parametrize(
    ("statuses", "cause", "code", "rank"),
    [
        ({0: left(0), 1: left(0)}, Reason.COMPLETED, 0, None),
        ({0: left(0, 1), 1: left(3, 2)}, Reason.NON_ZERO_EXIT, 3, 1),
        ({0: left(9, 2), 1: left(3, 1)}, Reason.NON_ZERO_EXIT, 3, 1),
        ({0: left(9, 1), 1: left(3, 1)}, Reason.NON_ZERO_EXIT, 9, 0),
        ({0: left(75, 1), 1: left(137, 2)}, Reason.SAVED_AND_EXITED, 75, 0),
        ({0: left(None, 1, "LaunchFailed"), 1: left(143, 2)}, Reason.LAUNCH_FAILED, 143, 0),
        ({0: left(None, 1, "NodeLost"), 1: left(137, 2)}, Reason.NODE_LOST, None, 0),
        ({0: left(1, 1, "SomethingNew"), 1: left(0, 2)}, Reason.NON_ZERO_EXIT, 1, 0),
    ],
    ids=["all-well", "one-fails", "earlier-wins", "tie-lowest-rank", "saved", "launch-failed", "peer-lost", "new-word"],
)
def test_the_first_that_fails_names_the_end(
    statuses: dict[int, dict[str, Any]], cause: Reason, code: int | None, rank: int | None
) -> None:
    end = end_of(record(), statuses)
    assert end is not None
    assert (end.cause, end.exit_code, end.failed_rank) == (cause, code, rank)


def test_nothing_ends_while_one_member_lives() -> None:
    assert end_of(record(), {0: left(0), 1: runs()}) is None
    assert end_of(record(), {0: left(1), 1: runs()}) is None


@pytest.mark.parametrize(("told", "cause"), [(False, Reason.NODE_LOST), (True, Reason.SPOT_REVOKED)])
def test_sp_08_a_vanished_instance_is_revoked_if_told_and_lost_if_not(told: bool, cause: Reason) -> None:  # noqa: FBT001
    views = {"i-0": view(0), "i-1": view(1, alive=False, told=told, ended_at=T0 + 8)}
    statuses = {0: left(137, 9), 1: runs()}
    end = end_of(record(), statuses, views)
    assert end is not None
    assert (end.cause, end.exit_code, end.failed_rank) == (cause, None, 1)
    assert end.bad_nodes == (() if told else ("p-1",)), "a node that was taken back is no bad node"


def test_sp_08_the_rest_of_a_gang_is_killed_when_a_node_is_gone() -> None:
    launch = record(3)
    views = {"i-0": view(0), "i-1": view(1), "i-2": view(2, alive=False)}
    statuses = {0: runs(), 1: runs(), 2: runs()}
    assert launch.placement is not None
    advice = stop_rest(launch, departures(launch.placement, statuses, views, T0 + 60), statuses, T0 + 60)
    assert advice is not None
    assert (advice.ranks, advice.grace_s) == ((0, 1), 0.0), "they hang in a collective and cannot save"


def test_who_was_stopped_because_a_machine_went_is_never_the_first() -> None:
    """The hour of the machine's death is unknown here, so it is the hour at which we look: long after the kill."""
    views = {"i-0": view(0), "i-1": view(1, alive=False)}
    end = end_of(record(), {0: left(137, 10, stop=stopped("stop", 10)), 1: runs()}, views)
    assert end is not None
    assert (end.cause, end.exit_code, end.failed_rank, end.bad_nodes) == (Reason.NODE_LOST, None, 1, ("p-1",))


def test_a_user_failure_before_the_instance_went_stays_a_user_failure() -> None:
    views = {"i-0": view(0), "i-1": view(1, alive=False, ended_at=T0 + 30)}
    end = end_of(record(), {0: left(2, 10), 1: runs()}, views)
    assert end is not None
    assert (end.cause, end.exit_code, end.failed_rank) == (Reason.NON_ZERO_EXIT, 2, 0)


@pytest.mark.parametrize(
    ("status", "kind", "grace_s"),
    [
        (left(1), NoticeKind.STOP, 1.0),
        (left(75), NoticeKind.STOP, 300.0),
        (left(75, stop=stopped("preempt", 100)), NoticeKind.PREEMPT, 80.0),
        (left(143, stop=stopped("revoke", 5)), NoticeKind.REVOKE, 0.0),
    ],
    ids=["failed", "saved-by-itself", "told-to-leave", "its-time-is-up"],
)
def test_the_others_get_the_time_that_the_one_who_left_had(
    status: dict[str, Any], kind: NoticeKind, grace_s: float
) -> None:
    launch, views = record(grace_s=300), {"i-0": view(0), "i-1": view(1)}
    statuses = {0: status, 1: runs()}
    assert launch.placement is not None
    advice = stop_rest(launch, departures(launch.placement, statuses, views, T0 + 20), statuses, T0 + 20)
    assert advice is not None
    assert (advice.ranks, advice.kind, advice.grace_s) == ((1,), kind, grace_s)


def test_nobody_is_told_twice_and_a_good_exit_stops_nobody() -> None:
    launch, views = record(), {"i-0": view(0), "i-1": view(1)}
    assert launch.placement is not None
    for statuses in ({0: left(0), 1: runs()}, {0: left(1), 1: runs(state="stopping", stop=stopped("stop", 1))}):
        gone = departures(launch.placement, statuses, views, T0 + 20)
        assert stop_rest(launch, gone, statuses, T0 + 20) is None


@pytest.mark.parametrize(
    ("code", "final", "url", "cause"),
    [
        (75, False, "file:///c", Reason.SPOT_REVOKED),
        (0, False, "file:///c", Reason.SPOT_REVOKED),
        (0, True, "file:///c", Reason.COMPLETED),
        (0, False, "", Reason.COMPLETED),
        (143, False, "", Reason.SPOT_REVOKED),
    ],
)
def test_who_leaves_because_its_instance_is_taken_is_revoked_unless_it_was_done(
    code: int,
    final: bool,  # noqa: FBT001
    url: str,
    cause: Reason,
) -> None:
    statuses = {rank: left(code, stop=stopped("revoke"), final=final) for rank in (0, 1)}
    end = end_of(record(checkpoint_url=url), statuses, {"i-0": view(0, told=True), "i-1": view(1)})
    assert end is not None
    assert (end.cause, end.exit_code, end.final) == (cause, code, final)


def test_the_agents_own_limit_is_a_time_limit_and_our_stop_is_not() -> None:
    late = {"kind": "stop", "deadline": T0 + 35, "at": T0 + 30}
    statuses = {0: left(143, 31, stop=late)}
    end = end_of(record(1, max_duration_s=30), statuses)
    assert end is not None
    assert end.cause is Reason.TIME_LIMIT
    ours = end_of(record(1, max_duration_s=30, stop=Stop("stop", T0 + 30, T0 + 35)), statuses)
    assert ours is not None
    assert ours.cause is Reason.NON_ZERO_EXIT


def test_a_told_instance_shows_as_a_notice_with_its_members_and_deadline() -> None:
    views = {"i-0": view(0), "i-1": view(1, told=True)}
    seen = observation(Handle("b", "k"), record(), {0: runs(), 1: runs()}, views, T0 + 6)
    assert seen.phase is Phase.RUNNING
    assert seen.notice is not None
    assert (seen.notice.kind, seen.notice.members) == (NoticeKind.REVOKE, (1,))
    assert seen.notice.deadline is not None
    assert seen.notice.deadline.timestamp() == T0 + 8


def test_a_gang_is_running_only_when_every_member_is() -> None:
    views = {"i-0": view(0), "i-1": view(1)}
    half = observation(Handle("b", "k"), record(), {0: runs(), 1: runs(state="starting")}, views, T0)
    assert (half.phase, half.ready) == (Phase.PENDING, 1)
    none = observation(Handle("b", "k"), record(), {0: runs()}, views, T0)
    assert none.phase is Phase.PENDING


def test_an_end_survives_its_file() -> None:
    launch, views = record(), {"i-0": view(0), "i-1": view(1, told=True)}
    statuses = {0: left(3), 1: left(137)}
    assert launch.placement is not None
    ended = conclude(launch, departures(launch.placement, statuses, views, T0), statuses, views, T0)
    assert ended is not None
    again = ended_from_json(json.loads(json.dumps(ended_to_json(ended))))
    assert again is not None
    assert (again.end, again.ended_at, again.started_at) == (ended.end, ended.ended_at, ended.started_at)
