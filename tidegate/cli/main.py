"""The entry of the command line: the table of verbs, and every error's words and exit code."""

import io
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

import tidegate
from tidegate.archive.tar import ArchiveError
from tidegate.cli import accounts, allotments, jobs, operators, output, overrides, submit
from tidegate.cli.exits import CANCELLED, UNREACHABLE, USAGE, Quit, code_of_error
from tidegate.cli.options import JsonFlag, State
from tidegate.cli.server_verbs import Verbs, lacks_extra, missing
from tidegate.client.errors import TidegateError

_CLICK_USAGE = 2


def build() -> typer.Typer:
    """The application with all client's verbs."""
    app = typer.Typer(
        cls=Verbs,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help="One gate over Slurm, Kubernetes and cloud GPU pools.\n\n"
        "The token comes from TIDEGATE_TOKEN, TIDEGATE_TOKEN_FILE or ~/.config/tidegate/config.yaml (0600).",
    )
    app.callback()(_globals)
    table: dict[str, Callable[..., None]] = {
        "submit": submit.submit,
        "run": submit.run,
        "list": jobs.list_,
        "show": jobs.show,
        "explain": jobs.explain,
        "events": jobs.events,
        "logs": jobs.logs,
        "cancel": jobs.cancel,
        "resize": jobs.resize,
        "checkpoint": jobs.checkpoint,
        "hold": jobs.hold,
        "unhold": jobs.unhold,
        "update": jobs.update,
        "requeue": jobs.requeue,
        "usage": accounts.usage,
        "credits": accounts.credits_,
        "statement": accounts.statement,
        "apply": operators.apply,
        "diff": operators.diff,
        "drain": operators.drain,
        "audit": operators.audit,
        "whoami": accounts.whoami,
        "version": _version,
    }
    for name, verb in table.items():
        app.command(name)(verb)
    app.add_typer(allotments.quota, name="quota")
    app.add_typer(allotments.grant, name="grant")
    app.add_typer(allotments.budget, name="budget")
    app.add_typer(overrides.override, name="override")
    app.add_typer(operators.backends, name="backends")
    app.add_typer(operators.token, name="token")
    return app


def _globals(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option("--url", help="URL of the gate; else TIDEGATE_URL, the file, or http://127.0.0.1:8080."),
    ] = None,
) -> None:
    state = State()
    state.url = url
    context.obj = state


def _version(*, as_json: JsonFlag = False) -> None:
    """Version of this client and of the server's package, where installed."""
    try:
        server = version("tidegate-server")
    except PackageNotFoundError:
        server = None
    if as_json:
        output.print_json({"client": tidegate.__version__, "server": server})
    else:
        output.show(f"tidegate {tidegate.__version__}" + (f", server {server}" if server else ""))


def run(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code. Usage errors are 64, so that a job's own 2 stays its own."""
    given = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in given
    try:
        typer.main.get_command(build()).main(args=given, prog_name="tidegate")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return USAGE if code == _CLICK_USAGE else code
    except KeyboardInterrupt:
        return CANCELLED
    except Quit as end:
        if end.message:
            output.print_error(end, as_json=as_json)
        return end.code
    except (TidegateError, ArchiveError) as error:
        output.print_error(error, as_json=as_json)
        return code_of_error(error)
    except ModuleNotFoundError as error:
        if not lacks_extra(error):
            raise
        output.say(f"tidegate: {missing('this verb')}")
        return UNREACHABLE
    return 0


def main() -> None:
    """The program `tidegate`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a letter shows a mark; it never ends the program.
            stream.reconfigure(errors="replace")
    sys.exit(run())
