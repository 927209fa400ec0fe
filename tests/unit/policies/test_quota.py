"""POLICIES §3 through the plan: guarantee, limit, borrow, lend, reclaim."""

from fractions import Fraction

import pytest

from policies.decisions import Loan
from policies.order.qad import INFINITE, qad
from policies.quota.check import violations
from policies.quota.loans import Lent, debts
from policies.quota.tree import Tree
from policies.settings import DAY_MS, HOUR_MS
from policies.snapshot import Borrowing, Usage
from policies.vocabulary import Resource, StopCause
from tests.builders.policies import (
    FLAVOR,
    NOW_MS,
    P1,
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

A_AND_B = (quota("a", 30, 60, 30), quota("b", 50, 80, 50))


def one_big_node(size: int) -> tuple[object, ...]:
    return (pool(nodes(1, size)),)


def test_idle_guarantee_is_lent_and_the_admission_says_how_much_is_borrowed() -> None:
    answers = decide(
        snapshot(
            pools=one_big_node(100),
            quotas=A_AND_B,
            live=(live("a1", placed({"n000": 10}), tenant="a"), live("b1", placed({"n000": 50}), tenant="b")),
            queued=(job("wish", group(10), tenant="b"),),
        )
    )
    assert answers.admits["wish"].why.numbers["borrowed"] == 10_000


def a_asks_20(size: int) -> Answers:
    b = tuple(live(f"b{n}", placed({"n000": 10}), tenant="b") for n in range(6))
    a = (live("a1", placed({"n000": 10}), tenant="a"),)
    return decide(
        snapshot(pools=one_big_node(size), quotas=A_AND_B, live=(*a, *b), queued=(job("wish", group(20), tenant="a"),))
    )


def test_an_owner_takes_free_capacity_before_anything_is_reclaimed() -> None:
    answers = a_asks_20(100)
    assert not answers.preempts
    assert answers.admits["wish"].contingent_on == ()


def test_with_10_free_of_20_exactly_10_are_reclaimed() -> None:
    answers = a_asks_20(80)
    assert len(answers.preempts) == 1
    (victim,) = answers.preempts.values()
    assert (victim.cause, victim.credit, victim.grace_ms) == (StopCause.RECLAIM, False, 300_000)
    assert answers.admits["wish"].contingent_on == (victim.attempt,)


def owner_at(held: int, asks: int) -> Answers:
    quotas = (quota("a", 30, None, 30), quota("b", 10, None))
    borrowers = tuple(live(f"b{n:02d}", placed({"n000": 1}), tenant="b") for n in range(40 - held))
    owner = live("a1", placed({"n000": held}), tenant="a")
    queued = (job("wish", group(asks), tenant="a"),)
    return decide(snapshot(pools=one_big_node(40), quotas=quotas, live=(owner, *borrowers), queued=queued))


def test_27_of_30_triggers_and_3_are_reclaimed() -> None:
    assert len(owner_at(27, 3).preempts) == 3


def test_29_of_30_is_too_near_to_trigger() -> None:
    answers = owner_at(29, 1)
    assert not answers.preempts
    assert answers.token("wish") == "WaitingForCapacity"


def test_no_guarantee_beyond_the_min_is_ever_reclaimed() -> None:
    assert not owner_at(27, 4).preempts


def test_a_tenant_at_its_max_waits_with_the_limit_and_who_sets_it() -> None:
    answers = decide(
        snapshot(
            pools=one_big_node(200),
            quotas=A_AND_B,
            live=(live("b1", placed({"n000": 80}), tenant="b"),),
            queued=(job("wish", tenant="b/team"),),
        )
    )
    wait = answers.waits["wish"]
    assert (wait.pending, wait.blocker) == ("TenantLimit", "b")
    assert wait.why.numbers["limit"] == 80_000
    assert "who sets its quota" in wait.why.remedy


def test_of_two_borrowers_the_one_with_the_larger_excess_gives_back() -> None:
    quotas = (quota("a", 10, None, 10), quota("b", 2, None), quota("c", 2, None))
    b = tuple(live(f"b{n}", placed({"n000": 1}), tenant="b") for n in range(5))
    c = tuple(live(f"c{n}", placed({"n000": 1}), tenant="c") for n in range(9))
    queued = (job("wish", group(4), tenant="a"),)
    answers = decide(snapshot(pools=one_big_node(14), quotas=quotas, live=(*b, *c), queued=queued))
    assert {name[0] for name in answers.preempts} == {"c"}
    assert len(answers.preempts) == 4


def test_another_flavors_borrowers_are_left_alone() -> None:
    quotas = (quota("a", 4, None, 4), quota("b", 0, None, of="other"))
    stranger = live("b1", placed({"m000": 4}, pool="there", of="other"), tenant="b")
    mine = live("b2", placed({"n000": 4}), tenant="b")
    answers = decide(
        snapshot(
            pools=(pool(nodes(1, 4)), pool(nodes(1, 4, "m"), "there", "other")),
            quotas=quotas,
            live=(stranger, mine),
            queued=(job("wish", group(4), tenant="a"),),
        )
    )
    assert set(answers.preempts) == {"b2"}


@pytest.mark.parametrize(("asks", "admitted"), [(20, True), (21, False)])
def test_direct_use_counts_in_the_max(asks: int, admitted: bool) -> None:  # noqa: FBT001
    answers = decide(
        snapshot(
            pools=one_big_node(100),
            quotas=(quota("a", 0, 60),),
            usages=(Usage("a", FLAVOR, Resource.ACCELERATORS, 0, observed=40_000),),
            queued=(job("wish", group(asks)),),
        )
    )
    assert ("wish" in answers.admits) is admitted


def test_ql_01_five_wishes_of_3_under_a_limit_of_10_admit_exactly_three() -> None:
    queued = tuple(job(f"j{n}", group(3)) for n in range(5))
    answers = decide(snapshot(pools=one_big_node(100), quotas=(quota("a", 0, 10),), queued=queued))
    assert len(answers.admits) == 3
    assert {wait.pending for wait in answers.waits.values()} == {"TenantLimit"}


def test_a_max_of_any_ancestor_holds() -> None:
    quotas = (quota("org", 0, 8), quota("org/x", 0, 8), quota("org/y", 0, 8))
    queued = (job("x", group(6), tenant="org/x/p"), job("y", group(6), tenant="org/y/p"))
    answers = decide(snapshot(pools=one_big_node(100), quotas=quotas, queued=queued))
    assert set(answers.admits) == {"x"}
    assert answers.waits["y"].blocker == "org"


def test_what_is_not_lendable_is_kept_free_for_its_owner() -> None:
    quotas = (quota("a", 6, None, 2), quota("b", 4, None))
    queued = (job("b1", group(6), tenant="b"), job("b2", group(1), tenant="b"))
    answers = decide(snapshot(pools=one_big_node(10), quotas=quotas, queued=queued))
    assert set(answers.admits) == {"b1"}
    assert answers.token("b2") == "WaitingForQuota"


def test_a_departments_teams_lend_each_other_before_anybody_outside() -> None:
    quotas = (
        quota("org", 20, None),
        quota("org/d", 10, None, 10),
        quota("org/d/t1", 5, None, 5),
        quota("org/d/t2", 5, None, 5),
        quota("org/e", 10, None, 10),
    )
    queued = (job("wish", group(12), tenant="org/d/t1"),)
    answers = decide(snapshot(pools=one_big_node(20), quotas=quotas, queued=queued))
    assert answers.admits["wish"].loans == (Loan("org/d/t2", FLAVOR, 5_000), Loan("org/e", FLAVOR, 2_000))


def test_unallocated_capacity_makes_nobody_a_lender() -> None:
    answers = decide(
        snapshot(pools=one_big_node(20), quotas=(quota("a", 5, None, 5),), queued=(job("w", group(15), tenant="b"),))
    )
    assert answers.admits["w"].loans == ()
    assert answers.admits["w"].why.numbers["borrowed"] == 15_000


def test_what_is_lent_already_is_not_lent_again() -> None:
    tree = Tree((quota("a", 10, None, 6), quota("b", 0, None), quota("c", 2, None, 2)), (), 12_000)
    lent = Lent((Borrowing("a", "b", FLAVOR, 5_000, NOW_MS - 1), Borrowing("a", "b", FLAVOR, 9_000, 0, 1)), NOW_MS)
    assert lent.split(tree, "b", FLAVOR, 4_000) == (Loan("c", FLAVOR, 2_000), Loan("a", FLAVOR, 1_000))


def test_debt_fades_by_its_half_life() -> None:
    life = 7 * DAY_MS
    fresh = Borrowing("a", "b", FLAVOR, 1_000, NOW_MS - HOUR_MS)
    old = Borrowing("a", "b", FLAVOR, 1_000, NOW_MS - life - HOUR_MS, NOW_MS - life)
    new_debt = debts((fresh,), NOW_MS, life)["b", FLAVOR]
    assert 0.99 * HOUR_MS * 1_000 < new_debt <= HOUR_MS * 1_000
    assert abs(debts((old,), NOW_MS, life)["b", FLAVOR] * 2 - new_debt) < 0.01 * new_debt
    assert debts((fresh, old), NOW_MS, life)["b", FLAVOR] == new_debt + debts((old,), NOW_MS, life)["b", FLAVOR]


def test_adding_and_giving_back_leaves_a_tree_as_it_was() -> None:
    tree = Tree((quota("o", 9, 20, 3), quota("o/a", 4, None, 1), quota("o/b", 5, None, 5)), (), 20_000)
    before = [(level.path, level.use, level.kept, level.reserved) for level in tree.levels.values()]
    tree.add("o/a", 7_000)
    tree.add("o/b", 2_000)
    assert tree.level("o").use == 9_000
    tree.add("o/a", -7_000)
    tree.add("o/b", -2_000)
    assert [(level.path, level.use, level.kept, level.reserved) for level in tree.levels.values()] == before


@pytest.mark.parametrize(
    ("held", "demand", "guaranteed", "value"),
    [
        (27, 30, 30, Fraction(9, 10)),
        (0, 0, 30, Fraction(1)),
        (0, 5, 0, Fraction(1)),
        (1, 5, 0, INFINITE),
        (40, 50, 30, Fraction(40, 30)),
        (5, 10, 30, Fraction(1, 2)),
    ],
)
def test_qad(held: int, demand: int, guaranteed: int, value: Fraction) -> None:
    assert qad(held, demand, guaranteed) == value


def test_the_tenant_furthest_below_its_guarantee_goes_first() -> None:
    quotas = (quota("a", 10, None), quota("b", 10, None))
    answers = decide(
        snapshot(
            pools=one_big_node(20),
            quotas=quotas,
            live=(live("a1", placed({"n000": 8}), tenant="a"), live("b1", placed({"n000": 6}), tenant="b")),
            queued=(job("of-a", group(6), tenant="a", submitted_ms=1), job("of-b", group(4), tenant="b")),
        )
    )
    assert set(answers.admits) == {"of-b"}


def test_children_may_not_be_guaranteed_more_than_their_parent_nor_roots_more_than_there_is() -> None:
    rows = (quota("o", 10, None), quota("o/a", 6, None), quota("o/x/b", 5, None), quota("p", 8, 7, 9))
    found = violations(rows, {(FLAVOR, Resource.ACCELERATORS): 16_000})
    assert [(one.field, one.tenant, one.value, one.bound) for one in found] == [
        ("max", "p", 7_000, 8_000),
        ("lendable", "p", 9_000, 8_000),
        ("min", "", 18_000, 16_000),
        ("min", "o", 11_000, 10_000),
    ]
    assert all(one.field in one.message for one in found)


def test_quotas_that_add_up_are_not_in_violation() -> None:
    rows = (quota("o", 10, None), quota("o/a", 6, None, 6), quota("o/b", 4, 10))
    assert violations(rows, {(FLAVOR, Resource.ACCELERATORS): 10_000}) == ()
    assert violations(rows) == ()


def test_the_number_of_jobs_is_a_quota_too() -> None:
    from policies.snapshot import Quota

    limit = Quota("a", FLAVOR, Resource.JOBS, 0, 1, 0)
    queued = tuple(job(f"j{n}") for n in range(8))
    answers = decide(snapshot(pools=one_big_node(100), quotas=(limit,), queued=queued))
    assert len(answers.admits) == 1
    assert {wait.pending for wait in answers.waits.values()} == {"TenantLimit"}


def test_a_higher_class_does_not_open_a_limit() -> None:
    victim = live("mine", placed({"n000": 8}), tenant="b")
    answers = decide(
        snapshot(
            pools=one_big_node(8),
            quotas=(quota("a", 0, 4), quota("b", 8, 8)),
            live=(victim,),
            queued=(job("wish", group(8), tenant="a", klass=P1),),
        )
    )
    assert not answers.preempts
    assert answers.token("wish") == "TenantLimit"
    assert gpus(8).accelerators == 8_000
