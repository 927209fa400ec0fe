"""What operators write (`tidegate apply -f`) and the API keeps: tenants, flavors, backends, pools, quotas and the rest.

A file holds any number of YAML documents; each names its `kind`. Amounts of accelerators and CPUs are numbers of cards
and CPUs, memory is a quantity.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, TypeAdapter

from tidegate.wire.base import Loose, Wire
from tidegate.wire.enums import CapacityType, PriorityClass, Resource, Role, Tenure
from tidegate.wire.governance import BudgetDoc, OwnerDoc
from tidegate.wire.job import Page
from tidegate.wire.spec import Slug, TenantPath
from tidegate.wire.units import Bytes, Seconds

Price = Annotated[int, Field(ge=0, le=10**12, strict=True)]
Short = Annotated[str, StringConstraints(max_length=255)]
Amount = int | float | str
"""Cards, CPUs or jobs as a number, memory as a quantity; `gateway` reads it by the quota's resource."""


class TenantDoc(Wire):
    """A node of the tree; its parent must exist or stand in the same file.

    queue_limit: how many jobs of it and below it may wait before its P2 submits are turned away; 0: any number, null:
    as the gate's setting says.
    """

    kind: Literal["tenant"] = "tenant"
    path: TenantPath
    active: bool = True
    contact: Short = ""
    queue_limit: Annotated[int, Field(ge=0, le=10**9, strict=True)] | None = None


class FlavorDoc(Wire):
    """A kind of capacity. `price` in micro-dollars per GPU-hour; members that take no card cost nothing.

    Where the flavor has no accelerator it is per CPU-hour.
    """

    kind: Literal["flavor"] = "flavor"
    name: Slug
    accelerator: Annotated[str, StringConstraints(max_length=63)] = ""
    accelerator_memory: Bytes = 0
    capacity_type: CapacityType = CapacityType.ON_DEMAND
    zone: Short = ""
    price: Price = 0
    labels: dict[str, str] = Field(default_factory=dict, max_length=64)


class BackendDoc(Wire):
    """One instance of a kind of backend; `config` is read by that kind's own settings."""

    kind: Literal["backend"] = "backend"
    name: Slug
    type: Slug
    config: dict[str, Any] = Field(default_factory=dict)
    draining: bool = False


class PoolDoc(Wire):
    """Capacity of one flavor at one backend; `config` is read by the backend."""

    kind: Literal["pool"] = "pool"
    name: Slug
    backend: Slug
    flavor: Slug
    tenure: Tenure = Tenure.EXCLUSIVE
    config: dict[str, Any] = Field(default_factory=dict)


class QuotaDoc(Wire):
    """Guarantee, ceiling (null: none) and how much of an idle guarantee others may use."""

    kind: Literal["quota"] = "quota"
    tenant: TenantPath
    flavor: Slug
    resource: Resource = Resource.ACCELERATORS
    min: Amount = 0
    max: Amount | None = None
    lendable: Amount = 0


class AllowanceDoc(Wire):
    """GPU-hours of P0 or P1 that a tenant may use in each period."""

    kind: Literal["allowance"] = "allowance"
    tenant: TenantPath
    priority: PriorityClass
    gpu_hours: Annotated[int, Field(ge=0, le=10**9, strict=True)]
    period: Seconds = 2_592_000


class StorageDoc(Wire):
    """A place that jobs of a tenant (and below it) may name: URLs must normalise to under `prefix`."""

    kind: Literal["storage"] = "storage"
    tenant: TenantPath
    name: Slug
    prefix: Annotated[str, StringConstraints(min_length=1, max_length=2048)]
    credential: Short = ""


OperatorDoc = Annotated[
    TenantDoc | FlavorDoc | BackendDoc | PoolDoc | QuotaDoc | AllowanceDoc | StorageDoc | OwnerDoc | BudgetDoc,
    Field(discriminator="kind"),
]
OPERATOR_DOC: TypeAdapter[OperatorDoc] = TypeAdapter(OperatorDoc)


class ApplyRequest(Wire):
    """Documents in any order; they are applied in the order in which they depend on each other."""

    documents: tuple[OperatorDoc, ...] = Field(max_length=10_000)


class Change(Loose):
    """One difference between the files and the gate. `action`: create, update, delete."""

    action: Literal["create", "update", "delete"]
    kind: str
    name: str
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


class ApplyResult(Loose):
    """What was (or, in a dry run, would be) changed. Empty: everything is as the files say."""

    changes: tuple[Change, ...]
    applied: bool


class Grant(Wire):
    """A dated change of quota. `recurrence`: days 0 (Monday) to 6 with times of day in UTC."""

    tenant: TenantPath
    flavor: Slug
    resource: Resource = Resource.ACCELERATORS
    delta_min: Amount = 0
    delta_max: Amount = 0
    reclaimable: bool = True
    starts_at: datetime
    ends_at: datetime | None = None
    recurrence: dict[str, Any] | None = None
    cause: Short = ""


class GrantView(Loose):
    """A grant as stored."""

    id: int
    tenant: str
    flavor: str
    resource: Resource
    delta_min: str
    delta_max: str
    reclaimable: bool
    starts_at: datetime
    ends_at: datetime | None = None
    recurrence: dict[str, Any] | None = None
    cause: str = ""
    approver: str = ""
    revoked_at: datetime | None = None


class QuotaView(Loose):
    """Quota and what is held of it now. Amounts in cards, CPUs, jobs or bytes as texts; `etag` guards a change.

    observed: direct use, which counts against max beside what is held.
    """

    tenant: str
    flavor: str
    resource: Resource
    min: str
    max: str | None
    lendable: str
    held: str
    observed: str = "0"
    effective_min: str
    effective_max: str | None
    etag: str


class TokenRequest(Wire):
    """A token to be made."""

    tenant: TenantPath
    principal: Annotated[str, StringConstraints(min_length=1, max_length=255)]
    role: Role
    expires_in: Seconds | None = None
    note: Short = ""


class TokenView(Loose):
    """A token; `secret` is there once, in the answer that made it."""

    id: str
    tenant: str
    principal: str
    role: Role
    note: str = ""
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    secret: str | None = Field(default=None, repr=False)


class Me(Loose):
    """Who the token says one is."""

    principal: str
    tenant: str
    role: Role


class AuditView(Loose):
    """One audited act."""

    id: int
    at: datetime
    principal: str
    tenant: str | None
    action: str
    target: str
    reason: str = ""
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


class UsageView(Loose):
    """What a tenant used and holds, per flavor."""

    tenant: str
    flavor: str
    held: dict[str, str]
    gpu_ms: int
    money: int


class CreditView(Loose):
    """One credit: what a preemption earned."""

    tenant: str
    flavor: str
    victim_attempt: str
    preemption: str
    gpu_ms: int
    burned_gpu_ms: int = 0
    terms: dict[str, Any] = Field(default_factory=dict)
    at: datetime
    expires_at: datetime | None = None


class StatementLine(Loose):
    """One ledger transaction as a tenant sees it."""

    at: datetime
    kind: str
    cause: str
    unit: str
    flavor: str = ""
    amount: int
    pending: bool = False


class BackendView(Loose):
    """A backend and how it does. `config` is shown to operators alone."""

    name: str
    type: str
    draining: bool
    dark_since: datetime | None = None
    seen_at: datetime | None = None
    problem: str = ""
    config: dict[str, Any] | None = None


class ForgetRequest(Wire):
    """Why a backend is given up, for the audit."""

    reason: Annotated[str, StringConstraints(min_length=1, max_length=500, strip_whitespace=True)]


class ForgetResult(Loose):
    """What giving a backend up did, by attempt. `settled`: over; `stopped`: their parts elsewhere end now; `left`:
    not settled yet, send the same again. `pools`: those whose capacity is gone.
    """

    backend: str
    settled: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()


class PoolView(Loose):
    """A pool and what it last reported. Amounts as texts: cards, CPUs, bytes. `config` and `problem` (why nothing is
    placed there) are shown to operators alone.
    """

    name: str
    backend: str
    flavor: str
    tenure: Tenure
    nodes: int = 0
    capacity: dict[str, str] = Field(default_factory=dict)
    rested_until: datetime | None = None
    rest_reason: str = ""
    as_of: datetime | None = None
    problem: str = ""
    config: dict[str, Any] | None = None


class TenantPage(Page):
    """A page of tenants."""

    items: tuple[TenantDoc, ...]


class FlavorPage(Page):
    """All flavors."""

    items: tuple[FlavorDoc, ...]


class BackendPage(Page):
    """All backends."""

    items: tuple[BackendView, ...]


class PoolPage(Page):
    """All pools."""

    items: tuple[PoolView, ...]


class QuotaPage(Page):
    """Quotas of a subtree."""

    items: tuple[QuotaView, ...]


class GrantPage(Page):
    """A page of grants."""

    items: tuple[GrantView, ...]


class StoragePage(Page):
    """Storages that a subtree may name."""

    items: tuple[StorageDoc, ...]


class AllowancePage(Page):
    """Class allowances of a subtree."""

    items: tuple[AllowanceDoc, ...]


class TokenPage(Page):
    """A page of tokens, never with a secret."""

    items: tuple[TokenView, ...]


class AuditPage(Page):
    """A page of audited acts, newest first."""

    items: tuple[AuditView, ...]


class UsagePage(Page):
    """Use per tenant and flavor."""

    items: tuple[UsageView, ...]


class CreditPage(Page):
    """A page of credits, newest first."""

    items: tuple[CreditView, ...]


class Statement(Page):
    """A page of ledger lines, newest first."""

    items: tuple[StatementLine, ...]
