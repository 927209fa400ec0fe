"""Temporal's data lost, and the database restored to a backup while jobs ran on: `tidegate recover` brings all home."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.parts import until
from tests.e2e.gates import Site, site

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
HOUR_OLD = """
    UPDATE attempts SET created_at = created_at - interval '1 h', pending_at = pending_at - interval '1 h',
        started_at = started_at - interval '1 h',
        progress = CASE WHEN progress ? 'at_ms'
            THEN jsonb_set(progress, '{at_ms}', to_jsonb((progress->>'at_ms')::bigint - 3600000)) ELSE progress END;
    UPDATE outbox SET due_at = due_at - interval '1 h', created_at = created_at - interval '1 h';
    UPDATE arbiter SET beat = beat - interval '1 h';
    UPDATE backends SET dark_since = now() - interval '1 h'
"""
WHOLE_NODE = {"cpus": 6, "memory": "64Mi"}
ONE_CPU = {"cpus": 1, "memory": "64Mi"}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path) as found:
        yield found


def test_workflows_that_temporal_has_lost_start_again_from_their_rows(here: Site) -> None:
    gate = here.gate
    running = here.submit("runs")
    gang = here.train("gang", num_nodes=2, gang_timeout="2m")
    ends_alone = here.submit("ends-while-nobody-looks")
    waits = [here.submit(f"wide-{n}", resources=WHOLE_NODE) for n in range(3)]
    here.has_started(running, "r0#1")
    here.has_started(gang, "r0#1", "r1#1")
    here.has_started(ends_alone, "r0#1")

    refused = here.recover()
    assert refused.returncode == 64, refused
    assert "at work on this database" in refused.stderr
    assert "stop every worker" in refused.stderr

    gate.unsupervised()
    gate.worker.kill()
    gate.temporal.kill()
    gate.temporal.forget()
    here.tell("ends-while-nobody-looks", code=7)
    gate.temporal.start()
    report = here.recovered()
    assert report["unreachable"] == {}
    assert report["objects_ended"] == {}
    gate.worker.start()
    gate.supervise()

    assert here.is_in(ends_alone, "FAILED").exit_code == 7
    for name in ("runs", "gang", "wide-0", "wide-1", "wide-2"):
        here.tell(name)
    for job in (running, gang, *waits):
        assert here.is_in(job, "SUCCEEDED").attempts == 1
        assert set(here.starts(job).values()) == {1}
    here.holds()

    gate.down()
    assert here.recovered()["restarted"] == [], "of a stopped stack it starts the servers itself"
    assert not gate.postgres.alive(), "and stops them again"


def at_the_backup(here: Site) -> dict[str, str]:
    """kept and ending run, flaky is in its first try, victim runs, dropped runs, the array is at its first index,
    behind waits.
    """
    jobs = {
        "kept": here.train("kept", resources=ONE_CPU, stall={"timeout": "60s"}),
        "ending": here.submit("ending", resources=WHOLE_NODE),
        "flaky": here.submit("flaky", retry={"max": 2}),
        "victim": here.train("victim", num_nodes=2, gang_timeout="2m"),
    }
    for name in ("kept", "ending", "flaky"):
        here.has_started(jobs[name], "r0#1")
    here.has_started(jobs["victim"], "r0#1", "r1#1")
    jobs["array"] = here.submit(
        "array", resources={"cpus": 3, "memory": "64Mi"}, array={"indexes": 3, "parallelism": 1}
    )
    jobs["dropped"] = here.submit("dropped")
    here.has_started(jobs["array"], "i0#1")
    here.has_started(jobs["dropped"], "r0#1")
    jobs["behind"] = here.submit("behind", resources=WHOLE_NODE)
    reported = "SELECT count(*) FROM attempts WHERE progress ? 'at_ms' AND ended_at IS NULL"
    assert until(lambda: here.rows(reported)[0][0] == 2, 60), "kept and victim have reported"
    return jobs


def after_the_backup(here: Site, jobs: dict[str, str]) -> None:
    """Each of them goes on, and two new jobs come."""
    here.tell("ending")
    here.has_started(jobs["behind"], "r0#1")
    here.tell("flaky", code=3)
    here.has_started(jobs["flaky"], "r0#2")
    jobs["urgent"] = here.train("urgent", tenant="acme/product", priority="P1", num_nodes=2, gang_timeout="2m")
    here.has_started(jobs["urgent"], "r0#1", "r1#1")
    here.client.cancel(jobs["dropped"])
    here.is_in(jobs["dropped"], "CANCELLED")
    for index in (0, 1):
        here.tell("array", f"i{index}")
        here.has_started(jobs["array"], f"i{index + 1}#1")
    jobs["late"] = here.submit("late")
    here.has_started(jobs["late"], "r0#1")


def test_a_database_from_before_the_backup_takes_in_what_ran_on(here: Site, tmp_path: Path) -> None:
    jobs = at_the_backup(here)
    here.dump(tmp_path / "backup")
    after_the_backup(here, jobs)
    gate = here.gate
    gate.unsupervised()
    gate.worker.kill()
    gate.serve.kill()
    here.restore(tmp_path / "backup")
    with gate.postgres.server.connect() as connection:
        connection.execute(HOUR_OLD.encode())
    report = here.recovered()
    gate.serve.start()
    gate.worker.start()
    gate.supervise()
    assert until(gate.serves, 60)

    keys = {name: f"tg-{job.replace('-', '')}" for name, job in jobs.items()}
    young = {f"{keys['behind']}-1", f"{keys['flaky']}-2", f"{keys['array']}-c1-1", f"{keys['array']}-c2-1"}
    assert set(report["remembered"]) == young
    assert set(report["objects_ended"]) == {f"{keys['urgent']}-1", f"{keys['late']}-1"}
    assert all("submitted after the backup" in why for why in report["objects_ended"].values())
    assert set(report["stops_forgotten"]) == {f"{keys['victim']}-1", f"{keys['dropped']}-1"}
    assert report["unreachable"] == {}
    assert here.unknown(jobs["urgent"])
    assert here.unknown(jobs["late"])

    assert here.is_in(jobs["ending"], "SUCCEEDED").attempts == 1
    here.has_started(jobs["victim"], "r0#2", "r1#2")  # its preemption is forgotten: back to the queue, on from its save
    here.has_started(jobs["dropped"], "r0#2")  # so is the cancel, which has to be asked for again
    here.client.cancel(jobs["dropped"])
    here.is_in(jobs["dropped"], "CANCELLED")
    jobs["again"] = here.submit("late")
    assert jobs["again"] != jobs["late"], "the key's row is younger than the backup: the same key makes a new job"
    here.has_started(jobs["again"], "r0#1")
    for name, which in (("kept", 1), ("behind", 1), ("flaky", 2), ("victim", 2), ("array", "i2"), ("late", 1)):
        here.tell(name, which)
    wanted = {name: ["r0#1"] for name in ("kept", "behind", "ending", "again")}
    wanted |= {"flaky": ["r0#1", "r0#2"], "array": ["i0#1", "i1#1", "i2#1"]}
    wanted["victim"] = ["r0#1", "r1#1", "r0#2", "r1#2"]
    for name, members in wanted.items():
        here.is_in(jobs[name], "SUCCEEDED")
        assert here.starts(jobs[name]) == dict.fromkeys(members, 1), name
    here.holds()
