"""What operators say about money and direct use: budgets, and whose the accounts of a backend are."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import AfterValidator, Field, StringConstraints

from tidegate.wire.base import Loose, Wire
from tidegate.wire.enums import BudgetUnit
from tidegate.wire.job import Page
from tidegate.wire.spec import Slug, TenantPath, is_text
from tidegate.wire.units import Seconds

BudgetAmount = int | float | str
"""GPU-hours with up to three, dollars with up to six decimals."""


class OwnerDoc(Wire):
    """Whose the direct use of a backend's own account or namespace is: it counts for that tenant's max and rank.

    `owner` is the backend's word: a Slurm account, a Kubernetes namespace. Owners in no document are plain load.
    """

    kind: Literal["owner"] = "owner"
    backend: Slug
    owner: Annotated[str, StringConstraints(max_length=255, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@:+-]*$")]
    tenant: TenantPath


class BudgetDoc(Wire):
    """What a tenant and all below it may spend in each period, on all flavors together. Direct use is not billed."""

    kind: Literal["budget"] = "budget"
    tenant: TenantPath
    unit: BudgetUnit = BudgetUnit.GPU_HOURS
    amount: BudgetAmount
    period: Annotated[Seconds, Field(ge=60)] = 2_592_000


class BudgetView(Loose):
    """A budget and what this period has cost so far. `held`: taken ahead by leases that run; `left`: for new ones."""

    tenant: str
    unit: BudgetUnit
    amount: str
    period: Seconds
    spent: str
    held: str
    left: str
    period_started_at: datetime
    period_ends_at: datetime
    etag: str


class WebhookSecret(Loose):
    """What signs the webhooks of a tenant's jobs."""

    tenant: str
    secret: str = Field(repr=False)


class OverrideRequest(Wire):
    """An operator's word about one attempt: `force` takes what would spare it out of the way, `forbid` keeps it.

    Either its id, or that of a job with one live attempt.
    """

    attempt: Annotated[str, StringConstraints(max_length=63)] | None = None
    job: UUID | None = None
    preemption: Literal["force", "forbid"]
    reason: Annotated[
        str, StringConstraints(min_length=1, max_length=500, strip_whitespace=True), AfterValidator(is_text)
    ]
    expires_in: Annotated[Seconds, Field(ge=60, le=2_592_000)]


class OverrideView(Loose):
    """A word that stands, or stood until `expires_at`."""

    id: int
    tenant: str
    job: str
    attempt: str
    preemption: Literal["force", "forbid"]
    reason: str
    by: str
    created_at: datetime
    expires_at: datetime


class OverridePage(Page):
    """Words about attempts of a subtree."""

    items: tuple[OverrideView, ...]


class OwnerPage(Page):
    """Whose direct use counts for whom."""

    items: tuple[OwnerDoc, ...]


class BudgetPage(Page):
    """Budgets of a subtree."""

    items: tuple[BudgetView, ...]
