"""`override`: an operator's word about one preemption, with a reason and an end."""

from typing import Annotated, Literal
from uuid import UUID

import typer
from pydantic import ValidationError

from tidegate.cli import output
from tidegate.cli.exits import USAGE, Quit
from tidegate.cli.options import JsonFlag, LimitFlag, TenantFlag, gate, seconds, upto
from tidegate.wire.governance import OverrideRequest

Target = Annotated[str, typer.Argument(metavar="JOB", help="The id of a job or of one of its attempts.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for the audit.")]
Length = Annotated[str, typer.Option("--for", help="How long it stands, for example 4h.")]

override = typer.Typer(no_args_is_help=True, help="Force or forbid one preemption: force, forbid, list, end.")


@override.command("force")
def force(context: typer.Context, target: Target, *, reason: Reason, length: Length, as_json: JsonFlag = False) -> None:
    """Let nothing spare it: neither min_runtime nor cool-down, the daily limit or a near end."""
    _make(context, target, "force", reason, length, as_json=as_json)


@override.command("forbid")
def forbid(
    context: typer.Context, target: Target, *, reason: Reason, length: Length, as_json: JsonFlag = False
) -> None:
    """Let nobody preempt it."""
    _make(context, target, "forbid", reason, length, as_json=as_json)


def _make(
    context: typer.Context, target: str, word: Literal["force", "forbid"], reason: str, length: str, *, as_json: bool
) -> None:
    try:
        job, attempt = UUID(target), None
    except ValueError:
        job, attempt = None, target
    try:
        wanted = OverrideRequest(
            job=job, attempt=attempt, preemption=word, reason=reason, expires_in=seconds(length, "--for")
        )
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise Quit(USAGE, f"{first['loc'][0]}: {first['msg']}") from error
    with gate(context) as client:
        found = client.make_override(wanted)
    if as_json:
        output.print_json(found)
    else:
        output.show(f"{found.id}: {word} the preemption of {found.attempt} until {output.cell(found.expires_at)}")


@override.command("list")
def list_overrides(
    context: typer.Context, *, tenant: TenantFlag = None, limit: LimitFlag = 1000, as_json: JsonFlag = False
) -> None:
    """Words about attempts of a tenant and below it, those that are over included."""
    with gate(context) as client:
        found = upto(client.overrides(tenant=tenant), limit)
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ("ID", "TENANT", "ATTEMPT", "PREEMPTION", "REASON", "BY", "UNTIL"),
        ((o.id, o.tenant, o.attempt, o.preemption, o.reason, o.by, o.expires_at) for o in found),
        empty="no overrides",
    )


@override.command("end")
def end_override(
    context: typer.Context,
    identifier: Annotated[int, typer.Argument(metavar="ID", min=1)],
    *,
    as_json: JsonFlag = False,
) -> None:
    """End one now."""
    with gate(context) as client:
        found = client.end_override(identifier)
    output.print_json(found) if as_json else output.show(f"{identifier} ended")
