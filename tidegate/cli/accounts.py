"""What a tenant uses, owes and is owed: `usage credits statement`, and `whoami`."""

import typer

from tidegate.cli import output
from tidegate.cli.options import JsonFlag, LimitFlag, TenantFlag, gate, upto


def usage(
    context: typer.Context, *, tenant: TenantFlag = None, limit: LimitFlag = 1000, as_json: JsonFlag = False
) -> None:
    """What is held now and was used so far, per tenant and flavor."""
    with gate(context) as client:
        found = upto(client.usage(tenant=tenant), limit)
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ("TENANT", "FLAVOR", "HELD", "GPU-HOURS", "COST"),
        ((u.tenant, u.flavor, u.held, output.gpu_hours(u.gpu_ms), output.dollars(u.money)) for u in found),
        empty="nothing was used",
    )


def credits_(
    context: typer.Context, *, tenant: TenantFlag = None, limit: LimitFlag = 100, as_json: JsonFlag = False
) -> None:
    """GPU time owed for preemptions, newest first."""
    with gate(context) as client:
        found = upto(client.credits(tenant=tenant), limit)
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ("TENANT", "FLAVOR", "GPU-HOURS", "USED", "FOR ATTEMPT", "AT", "UNTIL"),
        (
            (
                c.tenant,
                c.flavor,
                output.gpu_hours(c.gpu_ms),
                output.gpu_hours(c.burned_gpu_ms),
                c.victim_attempt,
                c.at,
                c.expires_at,
            )
            for c in found
        ),
        empty="no credits",
    )


def statement(
    context: typer.Context, *, tenant: TenantFlag = None, limit: LimitFlag = 100, as_json: JsonFlag = False
) -> None:
    """The ledger's lines on a tenant's accounts, newest first."""
    with gate(context) as client:
        found = upto(client.statement(tenant=tenant), limit)
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ("AT", "KIND", "FLAVOR", "UNIT", "AMOUNT", "CAUSE"),
        (
            (
                line.at,
                line.kind + (" (pending)" if line.pending else ""),
                line.flavor,
                line.unit,
                line.amount,
                line.cause,
            )
            for line in found
        ),
        empty="the ledger has no line for this tenant",
    )


def whoami(context: typer.Context, *, as_json: JsonFlag = False) -> None:
    """Who the token says one is."""
    with gate(context) as client:
        me = client.whoami()
        url = client.url
    if as_json:
        output.print_json({**me.model_dump(mode="json"), "url": url})
        return
    output.print_pairs([("principal", me.principal), ("tenant", me.tenant), ("role", me.role), ("gate", url)])
