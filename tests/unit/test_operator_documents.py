"""Differences between operators' documents and what must hold between them. Pure, no database."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.operators import amounts, checks, urls
from gateway.operators.diff import difference, index
from tidegate.wire.enums import Resource, Tenure
from tidegate.wire.operator import BackendDoc, FlavorDoc, OperatorDoc, PoolDoc, QuotaDoc, StorageDoc, TenantDoc

BASE: tuple[OperatorDoc, ...] = (
    TenantDoc(path="acme"),
    TenantDoc(path="acme/nlp"),
    TenantDoc(path="acme/vision"),
    FlavorDoc(name="h100", accelerator="H100"),
    BackendDoc(name="cluster", type="fake"),
    PoolDoc(name="steady", backend="cluster", flavor="h100"),
)


def wrong(*docs: OperatorDoc, capacity: int | None = 32_000) -> list[str]:
    found = checks.problems(index([*BASE, *docs]), {("h100", Resource.ACCELERATORS): capacity})
    assert all(problem.remedy for problem in found)
    return [problem.field for problem in found]


def quota(tenant: str, least: object = 0, most: object = None, lendable: object = 0) -> QuotaDoc:
    return QuotaDoc.model_validate(
        {"tenant": tenant, "flavor": "h100", "min": least, "max": most, "lendable": lendable}
    )


def test_the_same_documents_differ_in_nothing() -> None:
    docs = index([*BASE, quota("acme", 8, "16", 4.0)])
    assert difference(docs, index([*BASE, quota("acme", "8", 16, "4000m")])) == ()


def test_parents_come_first_and_go_last() -> None:
    docs = index([*reversed(BASE), quota("acme", 8)])
    made = [(c.kind, c.name) for c in difference({}, docs)]
    assert made.index(("tenant", "acme")) < made.index(("tenant", "acme/nlp"))
    assert (
        made.index(("flavor", "h100"))
        < made.index(("pool", "steady"))
        < made.index(("quota", "acme h100 accelerators"))
    )
    gone = [(c.kind, c.name) for c in difference(docs, {}, prune=True)]
    assert gone == list(reversed(made))


def test_nothing_is_deleted_without_being_asked() -> None:
    assert difference(index(BASE), {}) == ()


def test_an_update_shows_both_sides() -> None:
    (change,) = difference(index(BASE), index([TenantDoc(path="acme", contact="us")]))
    assert change.before is not None
    assert change.after is not None
    assert (change.action, change.before["contact"], change.after["contact"]) == ("update", "", "us")


def test_two_documents_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        index([TenantDoc(path="acme"), TenantDoc(path="acme", contact="us")])


def test_what_is_right_is_not_refused() -> None:
    assert wrong(quota("acme", 32, 32), quota("acme/nlp", 16, 32, 16), quota("acme/vision", 16, 32)) == []


def test_children_may_not_be_guaranteed_more_than_their_parent() -> None:
    assert wrong(quota("acme", 16), quota("acme/nlp", 8), quota("acme/vision", 9)) == [
        "quota.acme h100 accelerators.min"
    ]
    assert wrong(quota("acme/nlp", 1)) == ["quota.acme h100 accelerators.min"]


def test_a_childs_max_may_not_be_above_its_parents() -> None:
    assert wrong(quota("acme", 0, 8), quota("acme/nlp", 0, 9)) == ["quota.acme/nlp h100 accelerators.max"]


def test_the_nearest_ancestor_with_a_quota_bounds_a_max_over_parents_without_one() -> None:
    top, deep = quota("acme", 0, 8), TenantDoc(path="acme/nlp/east")
    assert wrong(deep, top, quota("acme/nlp/east", 0, 9)) == ["quota.acme/nlp/east h100 accelerators.max"]
    assert wrong(deep, top, quota("acme/nlp/east", 0, 8)) == []
    # The nearer one counts, and it alone is wrong where it is itself above its ancestor.
    assert wrong(deep, top, quota("acme/nlp", 0, 4), quota("acme/nlp/east", 0, 5)) == [
        "quota.acme/nlp/east h100 accelerators.max"
    ]
    assert wrong(deep, top, quota("acme/nlp", 0, 9), quota("acme/nlp/east", 0, 9)) == [
        "quota.acme/nlp h100 accelerators.max"
    ]


def test_no_max_below_an_ancestors_max_is_above_it() -> None:
    deep = TenantDoc(path="acme/nlp/east")
    assert wrong(quota("acme", 0, 8), quota("acme/nlp", 0)) == ["quota.acme/nlp h100 accelerators.max"]
    assert wrong(deep, quota("acme", 0, 8), quota("acme/nlp/east", 0)) == ["quota.acme/nlp/east h100 accelerators.max"]
    assert wrong(deep, quota("acme", 0), quota("acme/nlp/east", 0)) == []


def test_roots_may_not_be_guaranteed_more_than_exclusive_pools_hold() -> None:
    assert wrong(quota("acme", 33)) == ["quota.h100 accelerators.min"]
    assert wrong(quota("acme", 33), capacity=None) == []  # a pool is yet unheard: nothing is proved


def test_max_below_min_and_lending_more_than_guaranteed_are_refused() -> None:
    assert wrong(quota("acme", 8, 4)) == ["quota.acme h100 accelerators.max"]
    assert wrong(quota("acme", 8, None, 9)) == ["quota.acme h100 accelerators.lendable"]


def test_what_is_named_must_be_there() -> None:
    assert wrong(TenantDoc(path="ghost/team")) == ["tenant.ghost/team.path"]
    assert wrong(PoolDoc(name="p", backend="nowhere", flavor="none")) == ["pool.p.backend", "pool.p.flavor"]
    assert wrong(StorageDoc(tenant="ghost", name="s", prefix="s3://b")) == ["storage.ghost s.tenant"]


def test_shared_pools_guarantee_nothing_and_silent_ones_prove_nothing() -> None:
    shared = PoolDoc(name="people", backend="cluster", flavor="h100", tenure=Tenure.SHARED)
    key = Resource.ACCELERATORS
    reported = {("steady", key): 8, ("people", key): 100}
    reported |= {(pool, r): 0 for pool in ("steady", "people") for r in (Resource.CPUS, Resource.MEMORY)}
    assert checks.capacities_of(index([*BASE, shared]), reported, set())["h100", key] == 8
    assert checks.capacities_of(index([*BASE, shared]), reported, {"steady"})["h100", key] is None


@given(st.integers(0, 2**40), st.sampled_from([Resource.ACCELERATORS, Resource.CPUS, Resource.MEMORY]))
def test_an_amount_shown_is_read_back_exactly(amount: int, resource: Resource) -> None:
    assert amounts.parse(amounts.show(amount, resource), resource) == amount


def test_half_a_job_is_refused() -> None:
    with pytest.raises(ValueError, match="whole number"):
        amounts.parse("1.5", Resource.JOBS)


@pytest.mark.parametrize(
    ("raw", "normal"),
    [
        ("s3://Bucket/a//b/./c/", "s3://bucket/a/b/c"),
        ("S3://bucket", "s3://bucket"),
        ("s3://bucket/a/../../b", "s3://bucket/b"),
        ("/scratch/x", "file:///scratch/x"),
        ("file:///data/../etc", "file:///etc"),
        ("s3://bucket/a%20b", "s3://bucket/a%20b"),
    ],
)
def test_a_place_has_one_spelling(raw: str, normal: str) -> None:
    assert urls.normalise(raw) == normal
    assert urls.normalise(normal) == normal


@pytest.mark.parametrize(
    "raw",
    [
        *("", "bucket/x", "s3:bucket", "../x", "s3://u:p@b/x", "s3://b:notaport/x", "s3://b/x?y=1", "s3://b/x#y"),
        *("s3://b/a%2fb", "s3://b/%2E%2e/x", "s3://b/%5c", "s3://b/a\\b", "s3://b/a b", "s3://b/\n"),
    ],
)
def test_what_is_no_plain_place_is_refused(raw: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        urls.normalise(raw)


def test_a_prefix_ends_at_a_slash() -> None:
    assert urls.under("s3://b/acme/x", ["s3://b/acme"])
    assert urls.under("s3://b/acme", ["s3://b/acme"])
    assert not urls.under("s3://b/acme-evil/x", ["s3://b/acme"])
