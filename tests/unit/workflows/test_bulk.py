"""The bulk launcher: the same launches as the workflows', and every failure left to them."""

from collections.abc import Callable, Sequence
from typing import cast

import pytest

from tests.builders.launch import a_group, a_launch
from tests.fakes.backend import FakeBackend
from tests.fakes.cluster import FakeCluster, equal_nodes
from tests.fakes.faults import Fault
from workflows.activities.bulk import BUDGET_S, REST_S, BulkLauncher
from workflows.store import Due, Launched, Store


class Rows:
    """The three calls that a bulk launch makes."""

    def __init__(self, count: int) -> None:
        requests = [a_launch(a_group("pool", ("true",))) for _ in range(count)]
        self.due = [Due(request.key, "fake", request) for request in requests]
        self.cancelled: set[str] = set()
        self.done: list[str] = []
        self.broken = False

    @property
    def ids(self) -> list[str]:
        return [one.attempt_id for one in self.due]

    def begin_launches(self, attempts: Sequence[str]) -> Sequence[Due]:
        if self.broken:
            raise ConnectionError("the database went away")
        return [one for one in self.due if one.attempt_id in attempts]

    def still_wanted(self, attempts: Sequence[str]) -> frozenset[str]:
        return frozenset(attempts) - self.cancelled

    def launched(self, done: Sequence[Launched]) -> None:
        self.done += [one.attempt_id for one in done]


def a_launcher(rows: Rows, cluster: FakeCluster, clock: Callable[[], float] = lambda: 0.0) -> BulkLauncher:
    return BulkLauncher(cast("Store", rows), {"fake": FakeBackend(cluster)}, clock=clock)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster({"pool": equal_nodes("pool", 4)})


def test_all_that_are_due_are_started_once_and_recorded(cluster: FakeCluster) -> None:
    rows = Rows(5)
    assert a_launcher(rows, cluster).launch(rows.ids) == 5
    assert sorted(rows.done) == sorted(rows.ids)
    assert all(launch.starts == 1 for launch in cluster.launches.values())


def test_what_was_cancelled_after_its_prepare_is_not_started(cluster: FakeCluster) -> None:
    rows = Rows(3)
    rows.cancelled = {rows.ids[1]}
    a_launcher(rows, cluster).launch(rows.ids)
    assert cluster.launches[rows.ids[1]].starts == 0
    assert rows.ids[1] not in rows.done


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.NO_CAPACITY, Fault.MISCONFIGURED, Fault.BROKEN])
def test_one_refused_launch_keeps_no_other_back(cluster: FakeCluster, fault: Fault) -> None:
    rows = Rows(4)
    cluster.faults.inject("start", fault)
    assert a_launcher(rows, cluster).launch(rows.ids) == 3
    assert len(rows.done) == 3


@pytest.mark.parametrize("fault", [Fault.DARK, Fault.LOST_ANSWER, Fault.THROTTLED])
def test_a_backend_that_does_not_answer_is_left_to_the_workflows_for_a_while(
    cluster: FakeCluster, fault: Fault
) -> None:
    now = 0.0
    rows = Rows(1)
    launcher = a_launcher(rows, cluster, lambda: now)
    cluster.faults.inject("prepare", fault)
    assert launcher.launch(rows.ids) == 0
    assert launcher.launch(rows.ids) == 0, "it rests"
    now = REST_S + 1
    assert launcher.launch(rows.ids) == 1
    assert cluster.launches[rows.ids[0]].starts == 1


def test_a_slow_backend_gets_no_more_of_the_batch(cluster: FakeCluster) -> None:
    rows = Rows(1)
    ticks = iter([0.0, 0.0, 0.0, *[BUDGET_S + 1] * 20])
    assert a_launcher(rows, cluster, lambda: next(ticks)).launch(rows.ids) == 0
    assert all(launch.starts == 0 for launch in cluster.launches.values())
    assert rows.done == []


def test_without_a_database_nothing_is_launched_and_nothing_raised(cluster: FakeCluster) -> None:
    rows = Rows(2)
    rows.broken = True
    assert a_launcher(rows, cluster).launch(rows.ids) == 0
    assert cluster.launches == {}
