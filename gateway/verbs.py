"""The server's verbs on the one CLI: `up demo serve worker migrate check recover`. Heavy imports happen in the verb."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.exits import UNREACHABLE, USAGE, Quit

if TYPE_CHECKING:
    from gateway.settings import Settings
    from workflows.recover import RecoverReport

JsonFlag = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
DataDir = Annotated[Path, typer.Option("--data-dir", help="Folder of the embedded stack.")]
OfStack = Annotated[
    Path | None, typer.Option("--data-dir", help="Of the embedded stack in this folder; else settings from TIDEGATE_*.")
]
HERE = Path(".tidegate")


def register(app: typer.Typer) -> None:
    """Add the verbs to `app`; called through the entry-point group `tidegate.server_verbs`."""
    for verb in (up, demo, serve, worker, migrate, check, recover):
        app.command(name=verb.__name__)(verb)


def up(
    data_dir: DataDir = HERE,
    port: Annotated[int, typer.Option(help="Port of the API.")] = 8080,
    apply: Annotated[Path | None, typer.Option(help="Operators' file to apply once it runs.")] = None,
) -> None:
    """Run the embedded stack in the foreground until Ctrl-C."""
    from gateway.embedded.foreground import run_in_foreground  # noqa: PLC0415

    raise typer.Exit(run_in_foreground(data_dir, port, apply))


def demo(
    data_dir: Annotated[Path | None, typer.Option(help="Keep everything here; a temporary folder otherwise.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw the timeline of attempts as SVG.")] = None,
) -> None:
    """The whole story on this machine: revocation, two preemptions, credits, ledger. Exit 0 only if all of it held."""
    from gateway.demo.run import run_demo  # noqa: PLC0415

    raise typer.Exit(run_demo(data_dir, picture))


def serve() -> None:
    """The HTTP API. Settings from TIDEGATE_* (docs/SETTINGS.md)."""
    from gateway.bootstrap import run_api  # noqa: PLC0415

    _settings()
    run_api()


def worker() -> None:
    """A worker: arbiter, relay, followers and the workflows of attempts. Settings from TIDEGATE_*."""
    from gateway.bootstrap import run_worker  # noqa: PLC0415

    _settings()
    with _temporal_answers():
        run_worker()


def migrate(
    operator_token_file: Annotated[
        Path | None, typer.Option(help="File with the first operator's token, to be stored as a digest.")
    ] = None,
) -> None:
    """Bring the ledger's schema up to date."""
    from gateway.ledger.migrate import migrate as bring_up_to_date  # noqa: PLC0415
    from gateway.operators.first import first_operator  # noqa: PLC0415

    url = _settings().database_url.get_secret_value()
    bring_up_to_date(url)
    if operator_token_file:
        first_operator(url, operator_token_file.read_text().strip())
    typer.echo("the ledger's schema is up to date")


def check(*, data_dir: OfStack = None, as_json: JsonFlag = False) -> None:
    """Recompute every balance from the entries and compare; exit 1 when anything disagrees, 69 without a database."""
    from dataclasses import asdict  # noqa: PLC0415

    from gateway.ledger.check import check as find_violations  # noqa: PLC0415
    from gateway.ledger.engine import make_engine  # noqa: PLC0415
    from gateway.ledger.reach import UnreachableDatabaseError, answering  # noqa: PLC0415

    engine = make_engine(_settings(data_dir).database_url.get_secret_value())
    try:
        with answering():
            violations = find_violations(engine)
    except UnreachableDatabaseError as error:
        raise Quit(UNREACHABLE, str(error)) from error
    finally:
        engine.dispose()
    if as_json:
        typer.echo(json.dumps([asdict(violation) for violation in violations]))
    else:
        typer.echo("\n".join(map(str, violations)) or "the ledger balances: every balance equals its entries")
    raise typer.Exit(1 if violations else 0)


def recover(*, data_dir: OfStack = None, as_json: JsonFlag = False) -> None:
    """After a restore from backup: a new epoch, every backend listed, objects adopted or ended, workflows restarted.

    No worker may run meanwhile. The servers of a stopped embedded stack are started for as long as it takes.
    """
    from dataclasses import asdict  # noqa: PLC0415

    from gateway.bootstrap import run_recover  # noqa: PLC0415
    from gateway.ledger.presence import AtWorkError  # noqa: PLC0415
    from gateway.ledger.reach import UnreachableDatabaseError, answering  # noqa: PLC0415

    with ExitStack() as ends:
        if data_dir is not None:
            ends.enter_context(_servers_of(data_dir))
        _settings(data_dir)
        try:
            with _temporal_answers(), answering():
                report = run_recover()
        except AtWorkError as error:
            raise Quit(USAGE, f"{error}; stop every worker (`tidegate worker`, `tidegate up`), then recover") from error
        except UnreachableDatabaseError as error:
            raise Quit(UNREACHABLE, str(error)) from error
    typer.echo(json.dumps(asdict(report), default=str) if as_json else words_of(report))


def words_of(report: "RecoverReport") -> str:
    """What `recover` did, for people: a line each, and the names where something was changed."""
    lines = [f"the arbiter's epoch is {report.epoch}", f"workflows ended: {report.workflows_ended}"]
    for words, names in (
        ("attempts whose objects were found and taken in", report.adopted),
        ("of them unknown to the database", report.remembered),
        ("told to stop since the backup, nobody knows why: they go back to the queue", report.stops_forgotten),
        ("objects that nobody can own, ended", [f"{key}: {why}" for key, why in report.objects_ended.items()]),
        ("attempts that are over, settled", report.settled),
        ("attempts whose workflows start again", report.restarted),
    ):
        lines.append(f"{words}: {len(names)}")
        lines += [f"  {name}" for name in names]
    for name, why in sorted(report.unreachable.items()):
        lines.append(f"backend {name} could not be asked ({why}); run `tidegate recover` again once it answers")
    return "\n".join(lines)


@contextmanager
def _servers_of(data_dir: Path) -> Iterator[None]:
    """PostgreSQL and Temporal of an embedded stack: those that run, or started and stopped again."""
    from gateway.embedded import whereabouts  # noqa: PLC0415
    from gateway.embedded.stack import servers  # noqa: PLC0415

    try:
        whereabouts.read(data_dir)
    except whereabouts.NoStackError as error:
        raise Quit(USAGE, str(error)) from error
    if not (data_dir / "postgres" / "password").exists():
        yield  # nothing to start: whoever asks next is told that nobody answers
        return
    with servers(data_dir):
        yield


@contextmanager
def _temporal_answers() -> Iterator[None]:
    """The same for the workflows' server, which these verbs reach for first."""
    from gateway.bootstrap import UnreachableTemporalError  # noqa: PLC0415

    try:
        yield
    except UnreachableTemporalError as error:
        raise Quit(UNREACHABLE, f"{error}; set TIDEGATE_TEMPORAL_ADDRESS to one that does, or start it") from error


def _settings(data_dir: Path | None = None) -> "Settings":
    """Settings whose database answers; else one line with the remedy and exit 69, whichever verb it is."""
    from gateway.bootstrap import read_settings  # noqa: PLC0415
    from gateway.embedded import whereabouts  # noqa: PLC0415
    from gateway.ledger.reach import UnreachableDatabaseError, probe  # noqa: PLC0415

    remedy = "set TIDEGATE_DATABASE_URL to one that does, or start it"
    if data_dir is not None:
        remedy = f"start it with `tidegate up --data-dir {data_dir}`"
        try:
            os.environ.update(whereabouts.read(data_dir))
        except whereabouts.NoStackError as error:
            raise Quit(USAGE, str(error)) from error
    settings = read_settings()
    try:
        probe(settings.database_url.get_secret_value())
    except UnreachableDatabaseError as error:
        raise Quit(UNREACHABLE, f"{error}; {remedy}") from error
    return settings
