"""Workers and `recover` keep out of each other's way, also over a restart of the database."""

import threading

import psycopg
import pytest

from gateway.ledger import presence
from gateway.ledger.listen import libpq_dsn
from gateway.ledger.presence import AtWorkError, Presence, alone
from tests.harness.waiting import eventually


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(presence, "BACK_S", 0.0)


def not_barred() -> None:
    raise AssertionError("nobody recovers")


def ended(dsn: str) -> None:
    """The worker's connection, as a restart of the database ends it."""
    with psycopg.connect(libpq_dsn(dsn), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'tidegate-worker%' AND datname = current_database()"
        )


def test_a_recovery_refuses_while_workers_are_at_work_and_says_who(database_url: str) -> None:
    first, second = Presence(database_url, barred=not_barred), Presence(database_url, barred=not_barred)
    assert first.enter(lambda: False)
    assert second.enter(lambda: False), "workers do not exclude each other"
    with pytest.raises(AtWorkError, match=r"at work on this database: \S+:\d+, \S+:\d+"), alone(database_url):
        pass
    first.close()
    second.close()
    with alone(database_url):
        pass


def test_a_worker_waits_for_the_end_of_a_recovery_and_a_second_recovery_refuses(database_url: str) -> None:
    worker, entered = Presence(database_url, barred=not_barred), threading.Event()
    with alone(database_url):
        with pytest.raises(AtWorkError), alone(database_url):
            pass

        def enters() -> None:
            if worker.enter(lambda: False):
                entered.set()

        thread = threading.Thread(target=enters)
        thread.start()
        assert not entered.wait(0.3)
    assert entered.wait(10)
    thread.join()
    worker.close()


def test_a_worker_that_leaves_while_it_waits_never_entered(database_url: str) -> None:
    with alone(database_url):
        worker = Presence(database_url, barred=not_barred)
        assert not worker.enter(lambda: True)
        worker.close()


def test_a_worker_is_at_work_again_after_the_database_was_away(database_url: str) -> None:
    worker = Presence(database_url, barred=not_barred)
    assert worker.enter(lambda: False)
    ended(database_url)

    def refused() -> bool:
        try:
            with alone(database_url):
                return False
        except AtWorkError:
            return True

    eventually(refused, what="the lock is held again")
    worker.close()


def test_a_worker_whose_database_came_back_in_a_recovery_is_barred(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    barred = threading.Event()
    worker = Presence(database_url, barred=barred.set)
    assert worker.enter(lambda: False)
    monkeypatch.setattr(Presence, "_hold", lambda self: False)  # as while the lock is a recovery's
    ended(database_url)
    assert barred.wait(10)
    worker.close()
