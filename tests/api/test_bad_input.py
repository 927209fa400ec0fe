"""What cannot be accepted: always a problem that names field and remedy, never a 500, and nothing stored."""

import json
from typing import Any

import httpx
from sqlalchemy import Engine

from tests.api.conftest import Client
from tests.api.test_submit import jobs_stored
from tests.harness.federation import GIB, job

JSON = {"Content-Type": "application/json"}


def the_problem(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["Content-Type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["type"].startswith("https://")
    assert problem["title"]
    return problem


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("unknown field", job(nmae="x"), "nmae"),
    ("unknown inner field", job(resources={"gpus": 8}), "resources.gpus"),
    ("empty name", job(""), "name"),
    ("blank name", job("   "), "name"),
    ("long name", job("x" * 201), "name"),
    ("NUL in a name", job("a\x00b"), "name"),
    ("half a surrogate pair", job("a\ud800b"), "name"),
    ("NUL in run", job(run="echo \x00"), "run"),
    ("NUL in the value of a variable", job(env={"A": "b\x00"}), "env.A"),
    ("half a surrogate pair in the name of a variable", job(env={"A\udfff": "b"}), "env.A\\udfff"),
    ("NUL in a command", {"name": "g", "groups": [{"command": ["x", "\x00"]}]}, "groups.0.command.1"),
    ("a model that nobody has", job(resources={"accelerators": "B900:1"}), "resources.accelerators"),
    ("more cards than a node has", job(resources={"accelerators": "H100:9"}), "resources.accelerators"),
    ("more CPUs than a node has", job(resources={"accelerators": "H100:1", "cpus": 65}), "resources.cpus"),
    ("more memory than a node has", job(resources={"accelerators": 1, "memory": "513Gi"}), "resources.memory"),
    ("more nodes than any one pool has", job(num_nodes=5, resources={"accelerators": "H100:8"}), "num_nodes"),
    (
        "groups that fit one by one and not together",
        {
            "name": "g",
            "run": "x",
            "groups": [
                {"name": name, "replicas": 3, "resources": {"accelerators": "H100:8"}} for name in ("a", "b", "c")
            ],
        },
        "groups.2.replicas",
    ),
    (
        "a second group of many small members",
        {
            "name": "g",
            "run": "x",
            "groups": [
                {"name": "a", "resources": {"accelerators": "H100:8"}},
                {"name": "b", "replicas": 300, "resources": {"accelerators": 0, "cpus": 1}},
            ],
        },
        "groups.1.replicas",
    ),
    ("a label that no node has", job(placement={"require": {"rack": "7"}}), "placement.require.rack"),
    ("a price that nobody offers", job(capacity={"max_price": 1}), "capacity.max_price"),
    ("more nodes than there are", job(num_nodes=9, resources={"accelerators": "H100:8"}), "num_nodes"),
    (
        "a group larger than there is",
        {"name": "g", "groups": [{"name": "a", "replicas": 9, "resources": {"accelerators": 8}, "command": ["x"]}]},
        "groups.0.replicas",
    ),
    ("reserved capacity that nobody has", job(capacity={"type": "reserved"}), "capacity.type"),
    ("a pool that is not there", job(placement={"pools": ["nowhere"]}), "placement.pools"),
    ("a checkpoint on the instance's own disk", job(checkpoint={"url": "/tmp/ckpt"}), "checkpoint.url"),
    ("the same as a URL", job(checkpoint={"url": "file:///scratch/x"}), "checkpoint.url"),
    ("outside every storage", job(checkpoint={"url": "s3://elsewhere/x"}), "checkpoint.url"),
    ("beside the storage", job(checkpoint={"url": "s3://ckpt/acme-evil/x"}), "checkpoint.url"),
    ("climbing out of the storage", job(checkpoint={"url": "s3://ckpt/acme/../other/x"}), "checkpoint.url"),
    ("climbing out encoded", job(checkpoint={"url": "s3://ckpt/acme/%2e%2e/other"}), "checkpoint.url"),
    ("credentials in a URL", job(checkpoint={"url": "s3://me:secret@ckpt/acme/x"}), "checkpoint.url"),
    ("a gang without a timeout", job(num_nodes=2, gang_timeout=None), "gang_timeout"),
    ("P1 without an allowance", job(priority="P1"), "priority"),
    ("P0 without an allowance", job(priority="P0"), "priority"),
    ("a reserved environment name", job(env={"SLURM_JOB_ID": "1"}), "env"),
    ("LD_PRELOAD", job(env={"LD_PRELOAD": "x"}), "env"),
    ("a word that is no kind", job(kind="magic"), "kind"),
    ("minus one node", job(num_nodes=-1), "num_nodes"),
    ("a fraction of a node", job(num_nodes=1.5), "num_nodes"),
    ("a boolean for a number", job(num_nodes=True), "num_nodes"),
    ("a bad quantity", job(resources={"memory": "1gi"}), "resources.memory"),
    ("nothing to run", {"name": "idle"}, ""),
    ("a past deadline", job(deadline="2001-01-01T00:00:00Z"), "deadline"),
    ("a deadline that is none", job(deadline="tomorrow"), "deadline"),
    ("a deadline of no time zone", job(deadline="2099-01-31T18:00:00"), "deadline"),
    ("a job to wait for that is not there", job(after={"ok": ["nobody"]}), "after.ok"),
    ("a workdir that was not uploaded", job(workdir="0" * 64), "workdir"),
    (
        "a long spot job that saves nothing",
        job(capacity={"type": "spot"}, max_duration="5h"),
        "checkpoint",
    ),
    ("a spot job without a bound that saves nothing", job(capacity={"type": "spot"}), "checkpoint"),
    *((f"the launcher {word}", job(launcher=word), "launcher") for word in ("torchrun", "mpi", "ray", "deepspeed")),
]


def test_every_bad_wish_is_refused_with_its_field_and_a_remedy(as_: Client, engine: Engine) -> None:
    nlp = as_("nlp")
    for what, body, field in CASES:
        answer = nlp.post("/v1/jobs", content=json.dumps(body), headers=JSON)
        assert answer.status_code in {400, 422}, what
        problem = the_problem(answer)
        assert problem["field"].startswith(field), (what, problem)
        assert problem["remedy"], (what, problem)
        assert problem["detail"], (what, problem)
        assert "secret" not in answer.text, what
    assert jobs_stored(engine) == 0


def test_a_dry_run_refuses_what_a_submit_refuses(as_: Client) -> None:
    nlp = as_("nlp")
    for what, body, field in CASES:
        answer = nlp.post("/v1/jobs?dry_run=true", content=json.dumps(body), headers=JSON)
        assert answer.status_code in {400, 422}, what
        assert the_problem(answer)["field"].startswith(field), what


def test_spot_without_a_bound_is_accepted_with_a_word_or_a_short_bound(as_: Client) -> None:
    nlp = as_("nlp")
    assert nlp.post("/v1/jobs", json=job(capacity={"type": "spot", "accept_loss": True})).status_code == 202
    assert nlp.post("/v1/jobs", json=job(capacity={"type": "spot"}, max_duration="4h")).status_code == 202


def test_a_short_spot_job_does_not_become_long_by_a_change(as_: Client) -> None:
    nlp = as_("nlp")
    short = nlp.post("/v1/jobs", json=job(capacity={"type": "spot"}, max_duration="1h")).json()["id"]
    problem = the_problem(nlp.patch(f"/v1/jobs/{short}", json={"max_duration": 5 * 3600}))
    assert (problem["status"], problem["field"]) == (422, "max_duration")
    assert nlp.patch(f"/v1/jobs/{short}", json={"max_duration": 4 * 3600}).status_code == 200
    steady = nlp.post("/v1/jobs", json=job(max_duration="1h")).json()["id"]
    assert nlp.patch(f"/v1/jobs/{steady}", json={"max_duration": 5 * 3600}).status_code == 200


def test_a_gang_over_two_pools_group_by_group_is_accepted(as_: Client) -> None:
    groups = [{"name": n, "replicas": 4, "resources": {"accelerators": "H100:8"}, "command": ["x"]} for n in ("a", "b")]
    assert as_("nlp").post("/v1/jobs", json={"name": "g", "groups": groups}).status_code == 202


def test_a_size_that_no_pool_holds_is_answered_with_the_largest_that_one_does(as_: Client) -> None:
    problem = the_problem(as_("nlp").post("/v1/jobs", json=job(num_nodes=5, resources={"accelerators": "H100:8"})))
    assert "at most 4" in problem["remedy"]
    assert problem["type"].endswith("/no-matching-flavor")


def test_a_key_that_is_there_twice_is_refused_by_name(as_: Client, engine: Engine) -> None:
    nlp = as_("nlp")
    for body, field in (
        (b'{"name":"a","run":"x","name":"b"}', "name"),
        (b'{"name":"a","run":"x","env":{"A":"1","A":"2"}}', "A"),
    ):
        problem = the_problem(nlp.post("/v1/jobs", content=body, headers=JSON))
        assert (problem["status"], problem["field"]) == (400, field)
        assert "twice" in problem["detail"]
    assert jobs_stored(engine) == 0


def test_an_unknown_field_gets_the_spelling_it_may_have_meant(as_: Client) -> None:
    problem = the_problem(as_("nlp").post("/v1/jobs", json=job(num_node=2)))
    assert problem["type"].endswith("/unknown-field")
    assert "num_nodes" in problem["remedy"]


def test_all_wrong_fields_are_named_at_once(as_: Client) -> None:
    problem = the_problem(as_("nlp").post("/v1/jobs", json=job("", kind="magic", nmae=1)))
    assert {error["field"] for error in problem["errors"]} == {"name", "kind", "nmae"}


RAW: list[tuple[str, bytes, set[int]]] = [
    ("NaN", b'{"name":"x","run":"true","resources":{"accelerators":NaN}}', {400}),
    ("Infinity", b'{"name":"x","run":"true","resources":{"cpus":-Infinity}}', {400}),
    ("1e999", b'{"name":"x","run":"true","resources":{"cpus":1e999}}', {400}),
    ("an integer of 10,000 digits", b'{"name":"x","run":"true","num_nodes":' + b"9" * 10_000 + b"}", {400}),
    ("an integer beyond 64 bits", b'{"name":"x","run":"true","num_nodes":' + b"9" * 30 + b"}", {422}),
    ("20,000 nested arrays", b"[" * 20_000 + b"]" * 20_000, {400}),
    ("20,000 nested objects", b'{"a":' * 20_000 + b"1" + b"}" * 20_000, {400}),
    ("unclosed arrays", b"[" * 20_000, {400}),
    ("brackets in a string are no depth", json.dumps(job("[" * 150)).encode(), {202}),
    ("no JSON", b"name: x", {400}),
    ("two documents", b"{}{}", {400}),
    ("no UTF-8", b'{"name":"\xff"}', {400}),
    ("an empty body", b"", {422}),
    ("an array for an object", b"[]", {422}),
    ("null", b"null", {422}),
    ("a NUL", b'{"name":"a\\u0000b","run":"true"}', {400}),
    ("a text of 300 KiB", json.dumps(job(run="x" * 300 * 1024)).encode(), {422}),
]


def test_hostile_bodies_are_4xx_and_lists_work_afterwards(as_: Client, engine: Engine) -> None:
    nlp = as_("nlp")
    for what, body, expected in RAW:
        answer = nlp.post("/v1/jobs", content=body, headers=JSON)
        assert answer.status_code in expected, (what, answer.status_code, answer.text[:300])
        if answer.status_code != 202:
            the_problem(answer)
    assert [j["name"] for j in nlp.get("/v1/jobs").json()["items"]] == ["[" * 150]


def test_a_body_of_50_megabytes_is_413_whether_or_not_its_length_is_told(as_: Client, engine: Engine) -> None:
    nlp = as_("nlp")

    def endless() -> Any:
        for _ in range(50):
            yield b" " * (1 << 20)

    for content in (b" " * (50 << 20), endless()):
        try:
            answer = nlp.post("/v1/jobs", content=content, headers=JSON)
        except httpx.WriteError:
            continue  # the server answered and closed before all was sent
        assert the_problem(answer)["status"] == 413
    assert nlp.get("/v1/jobs").json()["items"] == []
    assert jobs_stored(engine) == 0


def test_bad_urls_are_4xx(as_: Client) -> None:
    nlp = as_("nlp")
    for url, expected in [
        ("/v1/jobs/nonsense", 422),
        ("/v1/jobs/00000000-0000-0000-0000-000000000000", 404),
        ("/v1/jobs?limit=0", 422),
        ("/v1/jobs?limit=100000", 422),
        ("/v1/jobs?state=DONE", 422),
        ("/v1/jobs?label=novalue", 422),
        ("/v1/jobs?label=a%3D%00", 400),
        ("/v1/tenants/%00", 400),
        ("/v1/jobs?cursor=xyz", 400),
        ("/v1/jobs?tenant=UPPER", 422),
        ("/v1/nothing", 404),
    ]:
        answer = nlp.get(url)
        assert answer.status_code == expected, (url, answer.text)
        assert the_problem(answer)["remedy"] not in {"", "correct the value"}, (url, answer.text)
    assert the_problem(nlp.get("/v1/jobs?limit=0"))["remedy"] == "give at least 1"
    assert the_problem(nlp.post("/v1/jobs", json=job(num_nodes=-1)))["remedy"] == "give at least 1"
    wrong_method = the_problem(nlp.put("/v1/jobs"))
    assert wrong_method["status"] == 405
    assert wrong_method["remedy"]


def test_a_gang_within_a_storage_with_an_allowance_is_accepted(as_: Client) -> None:
    body = job(
        priority="P1",
        num_nodes=4,
        resources={"accelerators": "H100:8", "cpus": 64, "memory": 512 * GIB},
        checkpoint={"url": "S3://CKPT/acme//vision/./run1", "interval": "10m"},
        capacity={"type": "spot"},
        max_duration="5h",
    )
    answer = as_("vision").post("/v1/jobs", json=body)
    assert answer.status_code == 202, answer.text
