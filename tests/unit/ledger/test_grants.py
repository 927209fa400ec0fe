"""Effective quota = base + the grants that are open; windows are sets of times whose share is computed."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ledger.grants import Effective, effective_quota, is_open, next_change, share_of_week
from gateway.ledger.tables.capacity import GrantRow
from tests.builders.ledger import FLAVOR, GPU, World, gpus

MONDAY = datetime(2030, 1, 7, tzinfo=UTC)
OFFICE = {"days": [0, 1, 2, 3], "from": "08:00", "until": "20:00"}


@pytest.mark.parametrize(
    ("window", "percent"),
    [
        (OFFICE, "28.6"),
        ({"days": [0, 1, 2, 3, 4], "from": "00:00", "until": "20:00"}, "59.5"),
        ({"days": [5], "from": "22:00", "until": "02:00"}, "2.4"),
        ({}, "100.0"),
    ],
)
def test_the_share_of_the_week_is_computed(window: dict[str, Any], percent: str) -> None:
    assert f"{float(share_of_week(window) * 100):.1f}" == percent


@pytest.mark.parametrize(
    ("hours", "wanted"), [(7.99, False), (8, True), (19.99, True), (20, False), (24 * 4 + 10, False)]
)
def test_a_window_holds_its_first_minute_and_not_its_last(hours: float, wanted: bool) -> None:  # noqa: FBT001
    assert is_open(OFFICE, MONDAY + timedelta(hours=hours)) is wanted


def test_a_window_over_midnight_and_over_the_end_of_the_week() -> None:
    sunday_night = {"days": [6], "from": "22:00", "until": "02:00"}
    assert is_open(sunday_night, MONDAY + timedelta(hours=1))
    assert not is_open(sunday_night, MONDAY + timedelta(hours=3))
    assert next_change(sunday_night, MONDAY) == MONDAY + timedelta(hours=2)


@given(
    days=st.sets(st.integers(0, 6), min_size=1),
    start=st.integers(0, 1439),
    length=st.integers(1, 1439),
    minute=st.integers(0, 7 * 1440 - 1),
)
def test_the_next_change_is_the_first_minute_that_differs(days: set[int], start: int, length: int, minute: int) -> None:
    end = (start + length) % 1440
    window = {
        "days": sorted(days),
        "from": f"{start // 60:02}:{start % 60:02}",
        "until": f"{end // 60:02}:{end % 60:02}",
    }
    if share_of_week(window) == Fraction(1):
        return
    at = MONDAY + timedelta(minutes=minute)
    change = next_change(window, at)
    assert at < change <= at + timedelta(days=7)


@pytest.mark.parametrize(
    ("window", "message"),
    [({"from": "25:00"}, "recurrence.from"), ({"days": [7]}, "recurrence.days"), ({"until": "8"}, "recurrence.until")],
)
def test_a_bad_window_names_its_field(window: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        share_of_week(window)


def test_open_grants_are_added_and_others_are_not(world: World) -> None:
    tenant = world.tenant("acme", max_gpus=10, min_gpus=4)
    now = MONDAY + timedelta(hours=9)

    def grant(**columns: Any) -> GrantRow:
        columns.setdefault("starts_at", MONDAY)
        return GrantRow(tenant_id=tenant, flavor=FLAVOR, **columns)

    with world.session() as session, session.begin():
        session.add_all(
            [
                grant(delta_min=2 * GPU, delta_max=3 * GPU, recurrence=OFFICE),
                grant(delta_min=1 * GPU, reclaimable=False),
                grant(delta_max=100 * GPU, starts_at=now + timedelta(seconds=1)),
                grant(delta_max=100 * GPU, ends_at=now),
                grant(delta_max=100 * GPU, revoked_at=MONDAY),
                grant(delta_max=-5 * GPU, recurrence={"days": [5]}),
            ]
        )
    with world.session() as session:
        found = effective_quota(session, [tenant], now)
    assert found == {(tenant, FLAVOR, "accelerators"): Effective(7 * GPU, 13 * GPU, 0, GPU)}


def test_a_temporary_grant_lets_a_tenant_pass_its_base_max(world: World) -> None:
    tenant = world.tenant("acme", max_gpus=2)
    with world.session() as session, session.begin():
        now = datetime.now(tz=UTC)
        session.add(GrantRow(tenant_id=tenant, flavor=FLAVOR, delta_max=4 * GPU, starts_at=now - timedelta(hours=1)))
    world.admit(world.job(tenant), gpus(6))


def test_the_order_of_grants_does_not_matter(world: World) -> None:
    """Base + grants is one sum: 4 - 8 + 6 is 2 GPUs, whichever grant came first; below zero is zero."""
    tenants = [world.tenant(name, max_gpus=4, min_gpus=1) for name in ("up", "down", "deep")]
    deltas = [(-8, 6), (6, -8), (-8, 2)]
    with world.session() as session, session.begin():
        for tenant, pair in zip(tenants, deltas, strict=True):
            for delta in pair:
                by = delta * GPU
                row = GrantRow(tenant_id=tenant, flavor=FLAVOR, starts_at=MONDAY, delta_min=by, delta_max=by)
                session.add(row)
                session.flush()
        found = effective_quota(session, tenants, MONDAY)
    assert [(one.min, one.max) for one in found.values()] == [(0, 2 * GPU), (0, 2 * GPU), (0, 0)]
