"""What tenants may have: `quota`, `grant` and `budget`, each a list with verbs to change it."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from tidegate.cli import output
from tidegate.cli.exits import USAGE, Quit
from tidegate.cli.options import JsonFlag, LimitFlag, TenantFlag, gate, seconds, upto
from tidegate.wire.enums import BudgetUnit, Resource
from tidegate.wire.governance import BudgetDoc
from tidegate.wire.operator import Grant, QuotaDoc

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="A tenant's path, for example acme/research.")]
FlavorArgument = Annotated[str, typer.Argument(metavar="FLAVOR")]
ResourceFlag = Annotated[Resource, typer.Option("--resource", help="What is counted.")]
UnitFlag = Annotated[BudgetUnit, typer.Option("--unit", help="What the budget counts.")]

quota = typer.Typer(help="Quotas with what is held of them; `quota set` changes one.")
grant = typer.Typer(no_args_is_help=True, help="Dated changes of quota: create, list, revoke.")
budget = typer.Typer(help="What tenants may spend in each period; set and delete.")


@quota.callback(invoke_without_command=True)
def show_quotas(
    context: typer.Context, *, tenant: TenantFlag = None, limit: LimitFlag = 1000, as_json: JsonFlag = False
) -> None:
    """Quotas with what is held of them; `quota set` changes one."""
    if context.invoked_subcommand is not None:
        return
    with gate(context) as client:
        found = upto(client.quotas(tenant=tenant), limit)
    if as_json:
        output.print_json(found)
        return
    columns = ("TENANT", "FLAVOR", "RESOURCE", "HELD", "DIRECT", "MIN", "MAX", "LENDABLE", "MIN NOW", "MAX NOW")
    rows = (
        (q.tenant, q.flavor, q.resource, q.held, q.observed, q.min, q.max, q.lendable, q.effective_min, q.effective_max)
        for q in found
    )
    output.print_table(columns, rows, empty="no quotas that you may see")


@quota.command("set")
def set_quota(
    context: typer.Context,
    tenant: TenantArgument,
    flavor: FlavorArgument,
    *,
    resource: ResourceFlag = Resource.ACCELERATORS,
    least: Annotated[str | None, typer.Option("--min", help="Guaranteed.")] = None,
    most: Annotated[str | None, typer.Option("--max", help="Ceiling; `none` takes it away.")] = None,
    lendable: Annotated[str | None, typer.Option("--lendable", help="How much of an idle min others may use.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Change one quota, or make it; what is not named stays as it is. Refused when somebody else was faster."""
    if least is None and most is None and lendable is None:
        raise Quit(USAGE, "nothing to change; give --min, --max or --lendable")
    with gate(context) as client:
        known = next(
            (
                one
                for one in client.quotas(tenant=tenant)
                if (one.tenant, one.flavor, one.resource) == (tenant, flavor, resource)
            ),
            None,
        )
        kept = known.max if known else None
        ceiling = kept if most is None else (None if most == "none" else most)
        wanted = _made(
            QuotaDoc,
            tenant=tenant,
            flavor=flavor,
            resource=resource,
            min=least or (known.min if known else "0"),
            max=ceiling,
            lendable=lendable or (known.lendable if known else "0"),
        )
        found = client.set_quota(wanted, etag=known.etag if known else '"0"')
    if as_json:
        output.print_json(found)
    else:
        most_now = "none" if found.max is None else found.max
        output.show(f"{tenant} {flavor} {resource}: min {found.min}, max {most_now}, lendable {found.lendable}")


@grant.command("list")
def list_grants(
    context: typer.Context, *, tenant: TenantFlag = None, limit: LimitFlag = 1000, as_json: JsonFlag = False
) -> None:
    """Grants of a tenant and below it."""
    with gate(context) as client:
        found = upto(client.grants(tenant=tenant), limit)
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ("ID", "TENANT", "FLAVOR", "RESOURCE", "MIN", "MAX", "FROM", "UNTIL", "WINDOW", "CAUSE", "BY", "REVOKED"),
        (
            (
                *(g.id, g.tenant, g.flavor, g.resource, g.delta_min, g.delta_max, g.starts_at, g.ends_at),
                *(g.recurrence, g.cause, g.approver, g.revoked_at),
            )
            for g in found
        ),
        empty="no grants",
    )


@grant.command("create")
def create_grant(
    context: typer.Context,
    tenant: TenantArgument,
    flavor: FlavorArgument,
    *,
    resource: ResourceFlag = Resource.ACCELERATORS,
    delta_min: Annotated[str, typer.Option("--min", help="Added to min; --min=-4 takes away.")] = "0",
    delta_max: Annotated[str, typer.Option("--max", help="Added to max.")] = "0",
    starts: Annotated[datetime | None, typer.Option("--from", help="When it begins (UTC); now.")] = None,
    ends: Annotated[datetime | None, typer.Option("--until", help="When it ends (UTC); never.")] = None,
    days: Annotated[str | None, typer.Option("--days", help="Only on these days, 0 (Monday) to 6: 0,1,2,3.")] = None,
    between: Annotated[str | None, typer.Option("--between", help="Only at this time of day: 08:00-20:00.")] = None,
    protected: Annotated[bool, typer.Option("--protected", help="No ordinary reclaim touches it.")] = False,
    cause: Annotated[str, typer.Option("--cause", help="Why, for the audit.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Change a tenant's quota for a time."""
    wanted = _made(
        Grant,
        tenant=tenant,
        flavor=flavor,
        resource=resource,
        delta_min=delta_min,
        delta_max=delta_max,
        reclaimable=not protected,
        starts_at=_utc(starts) or datetime.now(UTC),
        ends_at=_utc(ends),
        recurrence=_window(days, between),
        cause=cause,
    )
    with gate(context) as client:
        found = client.make_grant(wanted)
    output.print_json(found) if as_json else output.show(str(found.id))


@grant.command("revoke")
def revoke_grant(
    context: typer.Context,
    identifier: Annotated[int, typer.Argument(metavar="ID", min=1)],
    *,
    as_json: JsonFlag = False,
) -> None:
    """End a grant now."""
    with gate(context) as client:
        client.revoke_grant(identifier)
    output.print_json({"id": identifier, "revoked": True}) if as_json else output.show(f"{identifier} revoked")


@budget.callback(invoke_without_command=True)
def show_budgets(
    context: typer.Context, *, tenant: TenantFlag = None, limit: LimitFlag = 1000, as_json: JsonFlag = False
) -> None:
    """What tenants may spend in each period; set and delete."""
    if context.invoked_subcommand is not None:
        return
    with gate(context) as client:
        found = upto(client.budgets(tenant=tenant), limit)
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ("TENANT", "UNIT", "AMOUNT", "SPENT", "HELD", "LEFT", "PERIOD ENDS"),
        ((b.tenant, b.unit, b.amount, b.spent, b.held, b.left, b.period_ends_at) for b in found),
        empty="no budgets that you may see",
    )


@budget.command("set")
def set_budget(
    context: typer.Context,
    tenant: TenantArgument,
    amount: Annotated[str, typer.Argument(metavar="AMOUNT", help="Per period, for example 2500.50.")],
    *,
    unit: UnitFlag = BudgetUnit.GPU_HOURS,
    period: Annotated[str | None, typer.Option("--period", help="For example 7d; 30d for a new one.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Change one budget, or make it. What this period has cost stays. Refused when somebody else was faster."""
    length = None if period is None else seconds(period, "--period")
    with gate(context) as client:
        known = next((one for one in client.budgets(tenant=tenant) if (one.tenant, one.unit) == (tenant, unit)), None)
        if length is None and known is not None:
            length = known.period
        given = {} if length is None else {"period": length}
        wanted = _made(BudgetDoc, tenant=tenant, unit=unit, amount=amount, **given)
        found = client.set_budget(wanted, etag=known.etag if known else '"0"')
    if as_json:
        output.print_json(found)
    else:
        output.show(f"{tenant}: {found.amount} {unit}, {found.left} left until {output.cell(found.period_ends_at)}")


@budget.command("delete")
def delete_budget(
    context: typer.Context,
    tenant: TenantArgument,
    *,
    unit: UnitFlag = BudgetUnit.GPU_HOURS,
    as_json: JsonFlag = False,
) -> None:
    """Take a budget away: only those of the tenants above bound its spending then."""
    with gate(context) as client:
        client.delete_budget(tenant, unit)
    deleted = {"tenant": tenant, "unit": unit.value, "deleted": True}
    output.print_json(deleted) if as_json else output.show(f"{tenant} has no budget in {unit} any more")


def _made(kind: Any, **fields: Any) -> Any:
    try:
        return kind(**fields)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise Quit(USAGE, f"{first['loc'][0]}: {str(first['msg']).removeprefix('Value error, ')}") from error


def _utc(at: datetime | None) -> datetime | None:
    return at if at is None or at.tzinfo else at.replace(tzinfo=UTC)


def _window(days: str | None, between: str | None) -> dict[str, Any] | None:
    if days is None and between is None:
        return None
    numbers = [part.strip() for part in (days or "0,1,2,3,4,5,6").split(",")]
    start, dash, end = (between or "00:00-24:00").partition("-")
    if not dash or not all(number.isdigit() for number in numbers):
        raise Quit(USAGE, "write --days 0,1,2,3 (Monday is 0) and --between 08:00-20:00")
    return {"days": [int(number) for number in numbers], "from": start.strip(), "until": end.strip()}
