"""The server's verbs on the same command line. They are looked up only when one is asked for or help is shown, so that
the client's verbs stay quick; where the server is not installed they say what to install.
"""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final

import typer
from typer.core import TyperGroup

from tidegate.cli.exits import UNREACHABLE, Quit

GROUP: Final = "tidegate.server_verbs"
VERBS: Final = ("up", "demo", "serve", "worker", "migrate", "check", "recover")
# What the server's extras bring. Another missing module is a defect and is shown as one.
EXTRAS: Final = frozenset(
    {
        "alembic",
        "anyio",
        "backends",
        "fastapi",
        "fsspec",
        "gateway",
        "numpy",
        "policies",
        "psycopg",
        "pydantic_settings",
        "sqlalchemy",
        "sqlmodel",
        "starlette",
        "temporalio",
        "uvicorn",
        "workflows",
    }
)


class Verbs(TyperGroup):
    """The client's commands, and behind them the server's."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Client's verbs in their order, then the server's."""
        return [*super().list_commands(ctx), *(name for name in _server_commands() if name not in self.commands)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A client's verb if there is one of that name."""
        found = super().get_command(ctx, cmd_name)
        return found if found is not None else _server_commands().get(cmd_name)


def _server_commands() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            register: Callable[[typer.Typer], None] = point.load()
        except ModuleNotFoundError as error:
            if not lacks_extra(error):
                raise
            continue
        app = typer.Typer(add_completion=False)
        register(app)
        found.update(typer.main.get_group(app).commands)
    stand_ins = typer.Typer(add_completion=False)
    for verb in VERBS:
        if verb not in found:
            stand_ins.command(verb, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
                _absent(verb)
            )
    if stand_ins.registered_commands:
        found.update(typer.main.get_group(stand_ins).commands)
    return found


def _absent(verb: str) -> Callable[[], None]:
    def absent() -> None:
        raise Quit(UNREACHABLE, missing(f"`tidegate {verb}`"))

    absent.__doc__ = "Not installed here: needs the server."
    return absent


def missing(what: str) -> str:
    """What to install."""
    return f"{what} needs the server, which is not installed here; run: pip install 'tidegate-server[server,embedded]'"


def lacks_extra(error: ModuleNotFoundError) -> bool:
    """Whether a module is missing because an extra is not installed."""
    return (error.name or "").partition(".")[0] in EXTRAS
