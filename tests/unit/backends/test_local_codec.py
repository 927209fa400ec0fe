"""What lies on disk is the whole request: a field that somebody adds cannot be forgotten."""

import json
from dataclasses import MISSING, Field, fields, replace
from typing import Any

import pytest

from backends.local.codec import decode, encode, encode_secrets
from backends.types import GroupLaunch, LaunchRequest, Secret, Workdir
from policies.snapshot import Resources
from policies.vocabulary import CapacityType, JobKind, Launcher, PriorityClass
from tests.builders.launch import a_key

GROUP = GroupLaunch(
    name="workers",
    pool="spot",
    flavor="v100",
    replicas=2,
    first_rank=3,
    per_member=Resources(1, 2, 3, 4),
    command=("train", "--fast", "it's\n$HOME"),
    capacity_type=CapacityType.SPOT,
    nodes=("spot-0", "spot-1"),
    env={"A": "b,c=d"},
)
FULL = LaunchRequest(
    key=a_key(),
    gateway="gw",
    job="a-job",
    attempt=7,
    tenant="acme/research",
    user="ada",
    name="naïve \udce9 \x1b[0m",
    kind=JobKind.INFERENCE,
    klass=PriorityClass.P1,
    groups=(GROUP, replace(GROUP, name="head", first_rank=0)),
    launcher=next(each for each in Launcher if each is not Launcher.PLAIN),
    setup="set -x",
    env={"E": "f"},
    secrets={"S": Secret("a-secret")},
    token=Secret("a-token"),
    gateway_url="http://gate",
    workdir=Workdir("file:///code.tar", "0" * 64),
    checkpoint_url="file:///ckpt/attempt-7",
    resume_from="file:///ckpt/attempt-6/step-1",
    checkpoint_signal="USR2",
    grace_s=11,
    term_s=12,
    max_duration_s=13,
    num_nodes=14,
    master_addr="10.0.0.1",
    target_replicas=7,
    grad_accum=2,
    lr_scale="3/4",
    array_index=0,
)


def default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


@pytest.mark.parametrize("full", [FULL, GROUP], ids=["request", "group"])
def test_the_example_sets_every_field_to_something_else_than_its_default(full: object) -> None:
    forgotten = [each.name for each in fields(full) if getattr(full, each.name) == default(each)]  # type: ignore[arg-type]
    assert not forgotten, f"set {forgotten} above, so that the round trip is proven for them too"


def test_every_field_comes_back_from_the_disk() -> None:
    public, private = json.loads(json.dumps(encode(FULL))), json.loads(json.dumps(encode_secrets(FULL)))
    back = decode(public, private)
    for each in fields(LaunchRequest):
        assert getattr(back, each.name) == getattr(FULL, each.name), each.name
    assert [type(back.kind), type(back.groups[0].capacity_type)] == [JobKind, CapacityType]
    assert hash(back.groups[0].nodes) == hash(GROUP.nodes), "frozen as it was"


def test_secrets_lie_in_the_private_part_alone_and_may_be_gone() -> None:
    shown = json.dumps(encode(FULL))
    assert "a-secret" not in shown
    assert "a-token" not in shown
    assert decode(encode(FULL), None) == replace(FULL, token=None, secrets={})


def test_a_record_older_than_a_field_with_a_default_is_still_read_and_one_without_its_key_is_not() -> None:
    older = {name: value for name, value in encode(FULL).items() if name != "array_index"}
    assert decode(older, encode_secrets(FULL)) == replace(FULL, array_index=None)
    with pytest.raises(KeyError, match="tenant"):
        decode({name: value for name, value in older.items() if name != "tenant"}, None)
