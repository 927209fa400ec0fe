"""What operators do: `apply diff token backends drain audit`."""

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from tidegate.cli import output
from tidegate.cli.exits import CANNOT_WRITE, DEFECT, REJECTED, USAGE, Quit
from tidegate.cli.files import read_operator_documents
from tidegate.cli.options import JsonFlag, LimitFlag, TenantFlag, gate, seconds, upto
from tidegate.wire.enums import Role
from tidegate.wire.operator import ApplyResult, OperatorDoc, TokenRequest

DIFFERENT: Final = 1
Files = Annotated[
    list[Path], typer.Option("--file", "-f", help="YAML file or folder of them; may stand several times.")
]
Prune = Annotated[bool, typer.Option("--prune", help="Delete what the files do not name.")]
_SIGNS: Final = {"create": "+", "update": "~", "delete": "-"}


def apply(
    context: typer.Context,
    *,
    file: Files,
    prune: Prune = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before deleting.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Make the gate as the files say, all or nothing. A second apply of the same files changes nothing."""
    documents = _documents(file)
    with gate(context) as client:
        if prune and not yes:
            _confirm(client.diff(documents, prune=True))
        done = client.apply(documents, prune=prune)
    _print_changes(done, as_json=as_json)


def diff(context: typer.Context, *, file: Files, prune: Prune = False, as_json: JsonFlag = False) -> None:
    """What `apply` would change. Exit 1 when there is a difference, as diff(1) does."""
    documents = _documents(file)
    with gate(context) as client:
        found = client.diff(documents, prune=prune)
    _print_changes(found, as_json=as_json)
    if found.changes:
        raise Quit(DIFFERENT)


def _documents(files: list[Path]) -> list[OperatorDoc]:
    documents = read_operator_documents(files)
    if not documents:
        raise Quit(REJECTED, "there is no document in these files; an empty apply is never meant")
    return documents


def _confirm(planned: ApplyResult) -> None:
    doomed = [change for change in planned.changes if change.action == "delete"]
    if not doomed:
        return
    for change in doomed:
        output.say(f"- {change.kind} {change.name}")
    if not os.isatty(0):
        raise Quit(USAGE, f"{len(doomed)} objects would be deleted; add --yes if that is meant")
    if not typer.confirm(f"Delete {len(doomed)} objects?", err=True):
        raise Quit(USAGE, "nothing was changed")


def _print_changes(result: ApplyResult, *, as_json: bool) -> None:
    if as_json:
        output.print_json(result)
        return
    for change in result.changes:
        before, after = change.before or {}, change.after or {}
        fields = [
            f"{name}: {output.cell(before.get(name))} → {output.cell(after.get(name))}"
            for name in sorted({*before, *after})
            if change.action == "update" and before.get(name) != after.get(name)
        ]
        output.show(
            f"{_SIGNS[change.action]} {change.kind} {change.name}" + (f"  ({', '.join(fields)})" if fields else "")
        )
    if not result.changes:
        output.say("everything is as the files say")


token = typer.Typer(no_args_is_help=True, help="API tokens: create, list, revoke.")


@token.command("create")
def create_token(
    context: typer.Context,
    *,
    tenant: Annotated[str, typer.Option("--tenant", help="Tenant's path.")],
    principal: Annotated[str, typer.Option("--principal", help="Whose token it is, for example ci@research.")],
    role: Annotated[Role, typer.Option("--role", help="What it may do.")] = Role.SUBMITTER,
    expires_in: Annotated[str | None, typer.Option("--expires-in", help="For example 90d; never otherwise.")] = None,
    note: Annotated[str, typer.Option("--note", help="What it is for.")] = "",
    out: Annotated[Path | None, typer.Option("--out", help="Write the secret to this new file (0600).")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a token. Its secret is shown this once; with --out it goes to a file and nowhere else."""
    lifetime = seconds(expires_in, "--expires-in") if expires_in is not None else None
    try:
        request = TokenRequest(tenant=tenant, principal=principal, role=role, expires_in=lifetime, note=note)
    except ValueError as error:
        raise Quit(USAGE, str(error)) from error
    # The file is opened first: a secret that cannot be kept is not asked for.
    target = _new_file(out) if out is not None else None
    with gate(context) as client:
        try:
            made = client.make_token(request)
        except BaseException:
            if target is not None and out is not None:
                os.close(target)
                out.unlink()
            raise
    if target is not None:
        with os.fdopen(target, "w", encoding="utf-8") as file:
            file.write(f"{made.secret}\n")
    secret = made.secret if target is None else None
    if as_json:
        output.print_json({**made.model_dump(mode="json", exclude={"secret"}), "secret": secret})
    else:
        output.show(secret or made.id)


def _new_file(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Quit(CANNOT_WRITE, f"{path}: {error.strerror}; name a file that does not exist") from error


@token.command("list")
def list_tokens(
    context: typer.Context, *, tenant: TenantFlag = None, limit: LimitFlag = 1000, as_json: JsonFlag = False
) -> None:
    """Tokens of a tenant and below it, without their secrets."""
    with gate(context) as client:
        found = upto(client.tokens(tenant=tenant), limit)
    if as_json:
        output.print_json([one.model_dump(mode="json", exclude={"secret"}) for one in found])
        return
    output.print_table(
        ("ID", "TENANT", "PRINCIPAL", "ROLE", "NOTE", "CREATED", "EXPIRES", "REVOKED"),
        ((t.id, t.tenant, t.principal, t.role, t.note, t.created_at, t.expires_at, t.revoked_at) for t in found),
        empty="no tokens",
    )


@token.command("revoke")
def revoke_token(
    context: typer.Context, identifier: Annotated[str, typer.Argument(metavar="ID")], *, as_json: JsonFlag = False
) -> None:
    """End a token at once."""
    with gate(context) as client:
        client.revoke_token(identifier)
    output.print_json({"id": identifier, "revoked": True}) if as_json else output.show(f"{identifier} revoked")


backends = typer.Typer(help="Backends and how they do, with their pools; forget one that is gone for good.")


@backends.callback(invoke_without_command=True)
def show_backends(context: typer.Context, *, as_json: JsonFlag = False) -> None:
    """Backends and how they do, with their pools; forget one that is gone for good."""
    if context.invoked_subcommand is not None:
        return
    with gate(context) as client:
        found, pools = list(client.backends()), list(client.pools())
    if as_json:
        output.print_json({"backends": output.to_json(found), "pools": output.to_json(pools)})
        return
    output.print_table(
        ("BACKEND", "TYPE", "DRAINING", "SEEN", "DARK SINCE", "PROBLEM"),
        ((b.name, b.type, b.draining, b.seen_at, b.dark_since, b.problem) for b in found),
        empty="no backends; `tidegate apply` makes them",
    )
    if pools:
        output.show("")
        output.print_table(
            ("POOL", "BACKEND", "FLAVOR", "TENURE", "NODES", "CAPACITY", "RESTED UNTIL", "AS OF"),
            ((p.name, p.backend, p.flavor, p.tenure, p.nodes, p.capacity, p.rested_until, p.as_of) for p in pools),
            empty="",
        )


@backends.command("forget")
def forget_backend(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="BACKEND")],
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the audit.")],
    force: Annotated[bool, typer.Option("--force", help="Although it answers; it is drained then.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Give a dark backend up: what lived there is lost, its leases go back. There is no way to take that back."""
    if not yes:
        if not os.isatty(0):
            raise Quit(USAGE, f"all that lives at {name} would be given up as lost; add --yes if that is meant")
        if not typer.confirm(f"Give up all that lives at {name} as lost?", err=True):
            raise Quit(USAGE, "nothing was changed")
    with gate(context) as client:
        done = client.forget_backend(name, reason, force=force)
    if as_json:
        output.print_json(done)
    else:
        over, told = len(done.settled), len(done.stopped)
        output.show(f"{name} is forgotten: {over} attempts over, {told} told to stop elsewhere")
    if done.left:
        raise Quit(DEFECT, f"{len(done.left)} attempts could not be settled yet; run the same again")


def drain(
    context: typer.Context,
    backend: Annotated[str, typer.Argument(metavar="BACKEND")],
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Take it into use again.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Place nothing new at a backend."""
    with gate(context) as client:
        found = client.drain(backend, draining=not undo)
    if as_json:
        output.print_json(found)
    else:
        output.show(f"{found.name} {'is draining' if found.draining else 'is in use'}")


def audit(
    context: typer.Context, *, tenant: TenantFlag = None, limit: LimitFlag = 100, as_json: JsonFlag = False
) -> None:
    """Who did what, newest first."""
    with gate(context) as client:
        found = upto(client.audit(tenant=tenant), limit)
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ("AT", "PRINCIPAL", "ACTION", "TARGET", "REASON"),
        ((one.at, one.principal, one.action, one.target, one.reason) for one in found),
        empty="no acts that you may see",
    )
