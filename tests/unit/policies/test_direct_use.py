"""POLICIES §3, last row: a tenant with max 60 that runs 40 by direct submission on a shared cluster."""

from policies.snapshot import Quota, Resources, Usage
from policies.vocabulary import Resource, Tenure
from tests.builders.policies import (
    FLAVOR,
    P0,
    Answers,
    decide,
    gpus,
    group,
    job,
    live,
    nodes,
    placed,
    pool,
    quota,
    snapshot,
)


def used(tenant: str, held: int, observed: int = 0) -> Usage:
    return Usage(tenant, FLAVOR, Resource.ACCELERATORS, held * 1000, observed * 1000)


def shared(size: int, foreign: int) -> tuple[object, ...]:
    """One big node on which others use so many cards."""
    (node,) = nodes(1, size)
    return (pool((type(node)(node.name, gpus(size), foreign=gpus(foreign)),), tenure=Tenure.SHARED),)


def test_max_60_with_40_by_direct_use_admits_20_more_and_no_21st() -> None:
    fits = decide(
        snapshot(
            pools=shared(100, 40),
            quotas=(quota("a", 0, 60),),
            usages=(used("a", 0, 40),),
            queued=(job("twenty", group(20)),),
        )
    )
    assert list(fits.admits) == ["twenty"]
    beyond = decide(
        snapshot(
            pools=shared(100, 40),
            quotas=(quota("a", 0, 60),),
            usages=(used("a", 0, 40),),
            queued=(job("more", group(21)),),
        )
    )
    assert beyond.token("more") == "TenantLimit"
    numbers = beyond.waits["more"].why.numbers
    assert (numbers["limit"], numbers["used"], numbers["observed"]) == (60_000, 40_000, 40_000)


def test_direct_use_below_a_tenant_counts_at_every_level_above() -> None:
    answers = decide(
        snapshot(
            pools=shared(100, 40),
            quotas=(quota("a", 0, 50), Quota("a/x", FLAVOR, Resource.ACCELERATORS, 0, None, 0)),
            usages=(used("a", 0, 40), used("a/y", 0, 40)),
            queued=(job("wish", group(11), tenant="a/x"),),
        )
    )
    assert answers.token("wish") == "TenantLimit"
    assert answers.waits["wish"].blocker == "a"


def first_of(a_observed: int) -> Answers:
    """Ten free cards, and a job of ten for each of two equal tenants; the one that comes first gets them."""
    return decide(
        snapshot(
            pools=shared(50, 40),
            quotas=(quota("a", 20, 60, 20), quota("b", 20, 60, 20)),
            usages=(used("a", 0, a_observed),),
            queued=(
                job("of-a", group(10), tenant="a", submitted_ms=1),
                job("of-b", group(10), tenant="b", submitted_ms=2),
            ),
        )
    )


def test_direct_use_counts_in_rank() -> None:
    assert list(first_of(0).admits) == ["of-a"]
    assert list(first_of(15).admits) == ["of-b"], "a has 15 of its 20 by direct use, b nothing"


def test_direct_use_is_never_a_victim_and_makes_nobody_elses_work_one() -> None:
    """All of the cluster is in direct use: not even a P0 takes it, nor does an owner below its min reclaim it."""
    answers = decide(
        snapshot(
            pools=shared(40, 40),
            quotas=(quota("a", 0, 60), quota("b", 20, 60)),
            usages=(used("a", 0, 40),),
            queued=(job("urgent", group(8), tenant="b", klass=P0), job("owed", group(8), tenant="b")),
        )
    )
    assert not answers.preempts
    assert not answers.admits


def test_what_a_tenant_borrows_by_direct_use_is_given_back_by_its_own_jobs_alone() -> None:
    """a: min 10, 15 direct and a job of 8. b below its min takes the job's 8 back, and nothing of the 15."""
    running = live("of-a", placed({"n000": 8}), tenant="a")
    answers = decide(
        snapshot(
            pools=shared(40, 15),
            quotas=(quota("a", 10, 60, 10), quota("b", 25, 60, 25)),
            usages=(used("a", 8, 15), used("b", 0)),
            live=(running,),
            queued=(job("owed", group(25), tenant="b"),),
        )
    )
    assert list(answers.preempts) == ["of-a"]
    assert answers.plan.acts[0].admits[0].contingent_on == ("of-a",)


def test_a_pools_other_foreign_load_is_plain_load() -> None:
    answers = decide(
        snapshot(
            pools=shared(100, 40),
            quotas=(quota("a", 0, 60),),
            usages=(used("a", 0),),
            queued=(job("sixty", group(60)),),
        )
    )
    assert list(answers.admits) == ["sixty"]
    assert Resources(accelerators=60_000) == answers.admits["sixty"].placed[0].total
