"""The calls about what operators keep and what tenants account for."""

from collections.abc import Sequence

from tidegate.client.calls import Call, Listing, get, given, model, nothing, segment, send, tenant_path, with_tag
from tidegate.wire.enums import BudgetUnit
from tidegate.wire.governance import BudgetDoc, BudgetView, OverrideRequest, OverrideView, OwnerDoc, WebhookSecret
from tidegate.wire.operator import (
    AllowanceDoc,
    ApplyRequest,
    ApplyResult,
    AuditView,
    BackendDoc,
    BackendView,
    CreditView,
    FlavorDoc,
    ForgetRequest,
    ForgetResult,
    Grant,
    GrantView,
    Me,
    OperatorDoc,
    PoolDoc,
    PoolView,
    QuotaDoc,
    QuotaView,
    StatementLine,
    StorageDoc,
    TenantDoc,
    TokenRequest,
    TokenView,
    UsageView,
)


def whoami() -> Call[Me]:
    """Who the token says one is."""
    return get("/v1/me", Me)


def webhook_secret(*, tenant: str | None = None) -> Call[WebhookSecret]:
    """What the webhooks of a tenant's jobs are signed with; `tidegate.webhook.verify` takes it."""
    return get("/v1/webhooks/secret", WebhookSecret, {"tenant": tenant})


def usage(*, tenant: str | None = None) -> Listing[UsageView]:
    """Held now and used so far per tenant and flavor, of a tenant and below it."""
    return Listing("/v1/usage", UsageView, {"tenant": tenant})


def credits(*, tenant: str | None = None) -> Listing[CreditView]:  # noqa: A001  (the word of the API)
    """GPU time owed to preempted tenants."""
    return Listing("/v1/credits", CreditView, {"tenant": tenant})


def statement(*, tenant: str | None = None) -> Listing[StatementLine]:
    """Ledger lines of one tenant, newest first."""
    return Listing("/v1/statement", StatementLine, {"tenant": tenant})


def quotas(*, tenant: str | None = None) -> Listing[QuotaView]:
    """Quotas of a tenant and below it, each with the `etag` that guards a change."""
    return Listing("/v1/quotas", QuotaView, {"tenant": tenant})


def set_quota(quota: QuotaDoc, *, etag: str | None = None) -> Call[QuotaView]:
    """Set one quota. With the `etag` it was read with: 412 when somebody has changed it since."""
    params = {"flavor": quota.flavor, "resource": quota.resource.value}
    return with_tag(
        send("PUT", f"/v1/quotas/{tenant_path(quota.tenant)}", model(QuotaView), quota, params=params), etag
    )


def budgets(*, tenant: str | None = None) -> Listing[BudgetView]:
    """Budgets of a tenant and below it, each with what is left and the `etag` that guards a change."""
    return Listing("/v1/budgets", BudgetView, {"tenant": tenant})


def set_budget(budget: BudgetDoc, *, etag: str | None = None) -> Call[BudgetView]:
    """Set one budget. With the `etag` it was read with: 412 when somebody has changed it since."""
    path = f"/v1/budgets/{tenant_path(budget.tenant)}"
    return with_tag(send("PUT", path, model(BudgetView), budget, params={"unit": budget.unit.value}), etag)


def delete_budget(tenant: str, unit: BudgetUnit = BudgetUnit.GPU_HOURS) -> Call[None]:
    """Take one budget away."""
    return send("DELETE", f"/v1/budgets/{tenant_path(tenant)}", nothing, params={"unit": unit.value})


def owners(*, tenant: str | None = None) -> Listing[OwnerDoc]:
    """Backends' accounts and namespaces whose direct use counts for a tenant."""
    return Listing("/v1/owners", OwnerDoc, {"tenant": tenant})


def overrides(*, tenant: str | None = None) -> Listing[OverrideView]:
    """Operators' words about attempts, those that are over included."""
    return Listing("/v1/overrides", OverrideView, {"tenant": tenant})


def make_override(override: OverrideRequest) -> Call[OverrideView]:
    """Force or forbid one preemption for a while. Not repeated after a lost answer: it would stand there twice."""
    return send("POST", "/v1/overrides", model(OverrideView), override, repeatable=False)


def end_override(override: int) -> Call[OverrideView]:
    """End one now."""
    return send("DELETE", f"/v1/overrides/{override}", model(OverrideView))


def tenants() -> Listing[TenantDoc]:
    """Tenants that the token may see."""
    return Listing("/v1/tenants", TenantDoc)


def flavors() -> Listing[FlavorDoc]:
    """Kinds of capacity."""
    return Listing("/v1/flavors", FlavorDoc)


def pools() -> Listing[PoolView]:
    """Pools and what they last reported."""
    return Listing("/v1/pools", PoolView)


def backends() -> Listing[BackendView]:
    """Backends and how they do."""
    return Listing("/v1/backends", BackendView)


def storages(*, tenant: str | None = None) -> Listing[StorageDoc]:
    """Places that jobs may name."""
    return Listing("/v1/storages", StorageDoc, {"tenant": tenant})


def allowances(*, tenant: str | None = None) -> Listing[AllowanceDoc]:
    """GPU-hours of P0 and P1."""
    return Listing("/v1/allowances", AllowanceDoc, {"tenant": tenant})


def drain(backend: str, *, draining: bool = True) -> Call[BackendView]:
    """Take a backend out of use for new attempts, or back into it."""
    verb = "drain" if draining else "undrain"
    return send("POST", f"/v1/backends/{segment(backend)}:{verb}", model(BackendView))


def forget_backend(backend: str, reason: str, *, force: bool = False) -> Call[ForgetResult]:
    """Give a dark backend up: what lived there is lost. ProblemError 409 `still-answers` unless `force`."""
    path = f"/v1/backends/{segment(backend)}:forget"
    return send("POST", path, model(ForgetResult), given(ForgetRequest, reason=reason), params={"force": force or None})


def put_document(
    document: TenantDoc | FlavorDoc | PoolDoc | BackendDoc | StorageDoc | AllowanceDoc | OwnerDoc,
) -> Call[None]:
    """Create or replace one operators' object. Quotas: `set_quota`, budgets: `set_budget`."""
    match document:
        case TenantDoc():
            name = tenant_path(document.path)
        case AllowanceDoc():
            name = tenant_path(document.tenant)
        case OwnerDoc():
            name = segment(document.owner)
        case _:
            name = segment(document.name)
    return send("PUT", f"/v1/{document.kind}s/{name}", nothing, document)


def delete_document(kind: str, name: str) -> Call[None]:
    """Delete a tenant, flavor, pool or backend that nothing needs any more."""
    return send("DELETE", f"/v1/{segment(kind)}s/{tenant_path(name)}", nothing)


def apply(documents: Sequence[OperatorDoc], *, prune: bool = False) -> Call[ApplyResult]:
    """Make the gate as the documents say; with `prune`, what is in none of them is deleted."""
    return _apply(documents, prune=prune, dry_run=False)


def diff(documents: Sequence[OperatorDoc], *, prune: bool = False) -> Call[ApplyResult]:
    """What `apply` would change."""
    return _apply(documents, prune=prune, dry_run=True)


def _apply(documents: Sequence[OperatorDoc], *, prune: bool, dry_run: bool) -> Call[ApplyResult]:
    body = ApplyRequest(documents=tuple(documents))
    return send("POST", "/v1/apply", model(ApplyResult), body, params={"dry_run": dry_run, "prune": prune})


def tokens(*, tenant: str | None = None) -> Listing[TokenView]:
    """Tokens, never with their secrets."""
    return Listing("/v1/tokens", TokenView, {"tenant": tenant})


def make_token(request: TokenRequest) -> Call[TokenView]:
    """Make a token; the answer alone holds its secret. Not repeated after a lost answer, so that none is left over."""
    return send("POST", "/v1/tokens", model(TokenView), request, repeatable=False)


def revoke_token(token: str) -> Call[None]:
    """End a token at once."""
    return send("DELETE", f"/v1/tokens/{segment(token)}", nothing)


def grants(*, tenant: str | None = None) -> Listing[GrantView]:
    """Dated changes of quota."""
    return Listing("/v1/grants", GrantView, {"tenant": tenant})


def make_grant(grant: Grant) -> Call[GrantView]:
    """Change a quota for a time. Not repeated after a lost answer: it would count twice."""
    return send("POST", "/v1/grants", model(GrantView), grant, repeatable=False)


def revoke_grant(grant: int) -> Call[None]:
    """End a grant."""
    return send("DELETE", f"/v1/grants/{grant}", nothing)


def audit(*, tenant: str | None = None) -> Listing[AuditView]:
    """Who did what, newest first."""
    return Listing("/v1/audit", AuditView, {"tenant": tenant})
