"""What there is: flavors, backends, pools, their nodes; and what tenants may use of it: quotas and grants."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger
from sqlmodel import Field, SQLModel

from gateway.ledger.tables.columns import Big, Instant, Json, Number


class Flavor(SQLModel, table=True):
    """A kind of capacity. `price` in micro-dollars per GPU-hour; members that take no card cost nothing.

    Where the flavor has no accelerator it is per CPU-hour.
    """

    __tablename__ = "flavors"
    name: str = Field(primary_key=True, max_length=63)
    accelerator: str = ""
    accelerator_memory: int = Big()
    capacity_type: str = "on_demand"
    zone: str = ""
    price: int = Big()
    labels: dict[str, str] = Json()
    version: int = 1


class BackendRow(SQLModel, table=True):
    """One instance of a kind, as operators configured it. `dark_since` set: it does not answer.

    `misconfigured`: why its documents could not be built, so that nothing new is placed there.
    """

    __tablename__ = "backends"
    name: str = Field(primary_key=True, max_length=63)
    kind: str
    config: dict[str, Any] = Json()
    draining: bool = False
    dark_since: datetime | None = Instant(nullable=True)
    seen_at: datetime | None = Instant(nullable=True)
    problem: str = ""
    misconfigured: str = ""
    version: int = 1


class Pool(SQLModel, table=True):
    """Capacity of one flavor at one backend."""

    __tablename__ = "pools"
    name: str = Field(primary_key=True, max_length=63)
    backend: str = Field(foreign_key="backends.name", index=True)
    flavor: str = Field(foreign_key="flavors.name", index=True)
    tenure: str = "exclusive"
    places_nodes: bool = False
    resizes: bool = False  # its backend changes a running launch's number of members
    place_first: bool = False
    config: dict[str, Any] = Json()
    rested_until: datetime | None = Instant(nullable=True)
    rest_reason: str = ""
    no_preemption_until: datetime | None = Instant(nullable=True)
    as_of: datetime | None = Instant(nullable=True)
    misconfigured: str = ""  # why its backend was built without it
    version: int = 1


class NodeRow(SQLModel, table=True):
    """One node (or `count` anonymous equal ones) of a pool, as last reported. Amounts per node, in policies' units."""

    __tablename__ = "nodes"
    pool: str = Field(foreign_key="pools.name", primary_key=True)
    name: str = Field(primary_key=True)
    count: int = 1
    accelerators: int = Big()
    cpus: int = Big()
    memory: int = Big()
    disk: int = Big()
    foreign_accelerators: int = Big()
    foreign_cpus: int = Big()
    foreign_memory: int = Big()
    foreign_disk: int = Big()
    schedulable: bool = True
    labels: dict[str, str] = Json()


class ForeignUseRow(SQLModel, table=True):
    """What one owner (in the backend's own words) uses of a pool without us, as last reported. Part of the nodes' own
    foreign use, not beside it.
    """

    __tablename__ = "foreign_use"
    pool: str = Field(foreign_key="pools.name", primary_key=True)
    owner: str = Field(primary_key=True, max_length=255)
    accelerators: int = Big()
    cpus: int = Big()
    memory: int = Big()


class OwnerRow(SQLModel, table=True):
    """The operators' map: direct use of this owner at this backend is this tenant's."""

    __tablename__ = "owners"
    backend: str = Field(foreign_key="backends.name", primary_key=True)
    owner: str = Field(primary_key=True, max_length=255)
    tenant_id: int = Field(foreign_key="tenants.id", index=True)
    version: int = 1


class QuotaRow(SQLModel, table=True):
    """Base quota; `max=None` is no ceiling at this level. Effective quota = base + grants at `now`."""

    __tablename__ = "quotas"
    tenant_id: int = Field(foreign_key="tenants.id", primary_key=True)
    flavor: str = Field(foreign_key="flavors.name", primary_key=True)
    resource: str = Field(primary_key=True)
    min: int = Big()
    max: int | None = Field(default=None, sa_type=BigInteger)
    lendable: int = Big()
    version: int = 1


class GrantRow(SQLModel, table=True):
    """The one record that changes quota over time: windows, bookings, temporary quota, overrides, redeemed credits."""

    __tablename__ = "grants"
    id: int | None = Number(big=False)
    tenant_id: int = Field(foreign_key="tenants.id", index=True)
    flavor: str = Field(foreign_key="flavors.name")
    resource: str = "accelerators"
    delta_min: int = Big()
    delta_max: int = Big()
    reclaimable: bool = True
    starts_at: datetime = Instant()
    ends_at: datetime | None = Instant(nullable=True)
    recurrence: dict[str, Any] | None = Json(nullable=True)  # {"days": [0..6], "from": "HH:MM", "until": "HH:MM"}, UTC
    cause: str = ""
    approver: str = ""
    created_at: datetime = Instant(default_now=True)
    revoked_at: datetime | None = Instant(nullable=True)
