"""What a local launch tells a gateway that has forgotten it."""

import hashlib
from dataclasses import replace

from backends.local.placing import Seat
from backends.local.recalling import recalled
from backends.local.records import Placement, Record
from backends.types import GroupLaunch, LaunchRequest, Secret
from policies.snapshot import Placed, Resources
from policies.vocabulary import JobKind, PriorityClass

ONE = Resources(accelerators=1000, cpus=1000)


def group(name: str, first_rank: int, replicas: int, nodes: tuple[str, ...] = ()) -> GroupLaunch:
    return GroupLaunch(name, "pool", "flavor", replicas, first_rank, ONE, ("true",), nodes=nodes)


REQUEST = LaunchRequest(
    key="tg-1",
    gateway="gw",
    job="job",
    attempt=1,
    tenant="acme",
    user="ada",
    name="n",
    kind=JobKind.TRAINING,
    klass=PriorityClass.P2,
    groups=(group("head", 0, 1, ("pool-0",)), group("rest", 1, 3)),
    token=Secret("hidden"),
)
PLACEMENT = Placement(
    seats=tuple(Seat(rank, f"pool-{rank // 2}", (0,)) for rank in range(4)),
    instances={},
    master_port=1,
    coord_port=2,
    gang_port=3,
    secret="s",
    at=1.0,
)


def test_groups_are_told_where_they_sit_and_the_token_as_a_digest() -> None:
    told = recalled(Record(REQUEST, 1.0, None, PLACEMENT))
    assert told.placed == (
        Placed("head", "pool", "flavor", 1, ONE, (("pool-0", 1),)),
        Placed("rest", "pool", "flavor", 3, ONE, (("pool-0", 1), ("pool-1", 2))),
    )
    assert told.token_sha256 == hashlib.sha256(b"hidden").digest()


def test_what_was_only_prepared_is_told_where_it_was_to_sit() -> None:
    told = recalled(Record(replace(REQUEST, token=None), 1.0, None))
    assert [part.nodes for part in told.placed] == [(("pool-0", 1),), ()]
    assert told.token_sha256 == b""
