"""Job files, keys and code folders."""

import gzip
from pathlib import Path

import pytest

from tests.fakes.gate import FakeGate
from tests.unit.cli.conftest import HELLO, Cli
from tidegate.cli.keys import default_key
from tidegate.wire.spec import JobSpec

SPEC = JobSpec(name="n", run="true")
GITHUB = {"GITHUB_RUN_ID": "1", "GITHUB_RUN_ATTEMPT": "1", "GITHUB_JOB": "train", "GITHUB_ACTION": "__run"}


def test_every_submit_is_a_job_of_its_own_unless_a_key_says_otherwise(gate: FakeGate, cli: Cli, hello: str) -> None:
    assert cli("submit", hello).out != cli("submit", hello).out
    first, second = cli("submit", hello, "--key", "k", "--json"), cli("submit", hello, "--key", "k", "--json")
    assert first.json["id"] == second.json["id"]
    assert (first.json["replayed"], second.json["replayed"]) == (False, True)


def test_rs_01_a_pipeline_step_that_starts_again_finds_its_job() -> None:
    assert default_key([SPEC], GITHUB) == default_key([SPEC], dict(GITHUB))
    for name in GITHUB:
        assert default_key([SPEC], GITHUB) != default_key([SPEC], GITHUB | {name: "other"}), name
    assert default_key([SPEC], GITHUB) != default_key([SPEC.model_copy(update={"workdir": "0" * 64})], GITHUB)
    assert default_key([SPEC], GITHUB) != default_key([SPEC, SPEC], GITHUB)
    assert default_key([SPEC], {"CI_JOB_ID": "7"}) == default_key([SPEC], {"CI_JOB_ID": "7"})
    assert default_key([SPEC], {}) != default_key([SPEC], {})


def test_the_code_folder_is_relative_to_the_job_file_and_sent_before_the_job(
    gate: FakeGate, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("x")
    (tmp_path / "project" / "job.yaml").write_text(HELLO + "workdir: .\n")
    assert cli("submit", "project/job.yaml").code == 0
    (job,) = gate.jobs.values()
    assert b"train.py" in gzip.decompress(gate.archives[job.body["workdir"]])
    assert [seen.method for seen in gate.seen] == ["PUT", "POST"]


def test_a_digest_stays_a_digest(gate: FakeGate, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(HELLO + f"workdir: sha256:{'a' * 64}\n")
    cli("submit", "job.yaml")
    (job,) = gate.jobs.values()
    assert job.body["workdir"] == f"sha256:{'a' * 64}"


def test_a_code_folder_with_a_link_exits_65_and_names_it(gate: FakeGate, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to("/etc")
    (tmp_path / "job.yaml").write_text(HELLO + "workdir: .\n")
    done = cli("submit", "job.yaml")
    assert done.code == 65
    assert "'data' is a symbolic link" in done.err
    assert not gate.jobs


def test_several_documents_are_one_batch(gate: FakeGate, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text("\n---\n".join(f"name: j{n}\nrun: 'true'" for n in range(3)))
    done = cli("submit", "jobs.yaml")
    assert len(done.out.split()) == 3
    assert [seen.path for seen in gate.seen] == ["/v1/jobs:batch"]
    assert cli("run", "jobs.yaml").code == 65


def test_flags_change_what_the_file_says(gate: FakeGate, cli: Cli, hello: str) -> None:
    cli("submit", hello, "--tenant", "acme/nlp", "--name", "other", "--env", "A=b=c", "--label", "team=x")
    (job,) = gate.jobs.values()
    assert job.body == {
        "name": "other",
        "run": "echo hello",
        "tenant": "acme/nlp",
        "env": {"A": "b=c"},
        "labels": {"team": "x"},
    }
    assert cli("submit", hello, "--env", "nothing").code == 64


def test_dry_run_and_print_store_nothing(gate: FakeGate, cli: Cli, hello: str) -> None:
    assert "WaitingForQuota" in cli("submit", hello, "--dry-run").out
    assert cli("submit", hello, "--dry-run", "--json").json["decision"] == "Wait"
    assert cli("submit", hello, "--print").json == {"name": "hello", "run": "echo hello"}
    assert not gate.jobs


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: x\nname: y\nrun: a\n", "'name' stands twice"),
        ("name: x\nrun: a\nretri: 3\n", "retri: there is no such field"),
        ("name: x\nrun: a\nmax_duration: 4 hours\n", "max_duration"),
        ("name: x\n", "run"),
        ("a: &a [x]\nb: *a\n", "aliases"),
        ("name: !!python/object/apply:os.system ['true']\n", "could not determine a constructor"),
        ("name: [\n", "job.yaml:2:1"),
        ("", "there is no job in it"),
        ("- a\n- b\n", "job.yaml"),
        ("name: x\nrun: a\nenv: {SLURM_X: y}\n", "reserved"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_place_and_remedy(
    gate: FakeGate, cli: Cli, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "job.yaml").write_text(text)
    done = cli("submit", "job.yaml")
    assert done.code == 65
    assert words in done.err
    assert not gate.seen


def test_a_file_that_is_not_there_is_a_usage_error(cli: Cli) -> None:
    assert cli("submit", "none.yaml").code == 64
