"""The embedded server: started, adopted, started again after a kill, stopped."""

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from gateway.embedded import postgres
from tests.harness.waiting import eventually


@pytest.fixture
def server(tmp_path: Path) -> Iterator[postgres.EmbeddedPostgres]:
    # pytest's own folders are 0700, so as root this takes the road over /var/lib/tidegate as well.
    started = postgres.start(tmp_path / "pg", durable=False)
    yield started
    postgres.start(tmp_path / "pg", durable=False).stop()
    clean(started)


def clean(stopped: postgres.EmbeddedPostgres) -> None:
    """What lies outside pytest's folder."""
    for folder in {stopped.data_dir, stopped.socket_dir}:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_second_start_adopts_the_first(server: postgres.EmbeddedPostgres, tmp_path: Path) -> None:
    again = postgres.start(tmp_path / "pg", durable=False)
    assert again.adopted
    assert again.pid == server.pid
    assert again.url() == server.url()


def test_data_survives_kill_9_and_a_stale_pid_file(server: postgres.EmbeddedPostgres, tmp_path: Path) -> None:
    with server.connect() as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("CHECKPOINT")
    os.kill(server.pid, signal.SIGKILL)
    again = postgres.start(tmp_path / "pg", durable=False)
    assert not again.adopted
    with again.connect() as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def test_a_pid_file_that_names_somebody_else_is_taken_away(server: postgres.EmbeddedPostgres, tmp_path: Path) -> None:
    server.stop()
    (server.data_dir / "postmaster.pid").write_text(f"{os.getpid()}\n{server.data_dir}\n")
    again = postgres.start(tmp_path / "pg", durable=False)
    assert again.pid != os.getpid()


def test_stop_is_clean_and_may_be_repeated(server: postgres.EmbeddedPostgres) -> None:
    server.stop()
    server.stop()
    eventually(lambda: not (server.data_dir / "postmaster.pid").exists())
    assert "database system is shut down" in (server.data_dir / "server.log").read_text()


def test_it_listens_nowhere_and_wants_the_password(server: postgres.EmbeddedPostgres) -> None:
    with server.connect() as connection:
        assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(host=str(server.socket_dir), user=postgres.USER, password="wrong", dbname="tidegate")
    assert server.password not in repr(server)


def test_a_path_too_long_for_a_socket_still_works(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    started = postgres.start(folder, durable=False)
    try:
        assert len(str(started.socket_dir)) < 100
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(started.socket_dir / ".s.PGSQL.5432"))
    finally:
        started.stop()
        clean(started)


def test_the_password_file_is_for_its_owner_only(server: postgres.EmbeddedPostgres, tmp_path: Path) -> None:
    assert (tmp_path / "pg" / "password").stat().st_mode & 0o777 == 0o600
