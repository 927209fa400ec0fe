"""`tidegate demo`: brings the embedded stack up, tells the story, prints the last page, takes everything down."""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol, cast

import yaml
from rich.console import Console
from sqlalchemy import Engine, text

from gateway.demo import pages, story
from gateway.demo.desk import DemoFailedError, Desk
from gateway.directory import BackendDirectory
from gateway.embedded.processes import ProcessFailedError
from gateway.embedded.stack import Stack, running
from gateway.ledger.engine import make_engine
from tidegate.client import Client, TidegateError
from tidegate.wire.operator import OPERATOR_DOC, TokenRequest

ROOT = Path(__file__).parents[2]
BACKEND = "here"
SETTINGS = {"TIDEGATE_RECOVERY_S": "10", "TIDEGATE_DEFAULT_RESTART_S": "5", "TIDEGATE_CAPACITY_EVERY_S": "0.5"}


class Provider(Protocol):
    """What the demo asks of a backend beside the port: to take an instance away, and to end them all."""

    def interrupt_rank(self, key: str, rank: int, notice_s: float | None = None) -> str:
        """Take the instance of one member back."""
        ...

    def instances_of(self, key: str) -> Mapping[int, str]:
        """The instance of each member, by rank."""
        ...

    def end_instances(self, timeout_s: float = 10) -> None:
        """End every instance."""
        ...


def run_demo(data_dir: Path | None, picture: Path | None = None) -> int:
    """Exit code 0 only if every chapter came true and the ledger balances. `picture`: the timeline as SVG."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=pages.PICTURE_WIDTH)  # a log file has room
    folder = data_dir or Path(tempfile.mkdtemp(prefix="tidegate-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    began = time.monotonic()
    try:
        console.print(
            "[bold]Tidegate demo[/]: PostgreSQL, Temporal, gateway, worker and instances, all on this machine"
        )
        with running(folder, settings=SETTINGS) as stack:
            console.print(f"stack up after {time.monotonic() - began:.1f} s at {stack.url}")
            held = tell(stack, console, picture)
    except (DemoFailedError, ProcessFailedError, TidegateError) as error:
        console.print(f"[red]the demo failed:[/] {error}", highlight=False)
        console.print(f"logs are kept in {folder}/logs")
        return 1
    verdict = "[green]all of it held[/]" if held else "[red]the ledger does not balance[/]"
    console.print(f"{verdict}, {time.monotonic() - began:.1f} s in all")
    if held and data_dir is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if held else 1


def tell(stack: Stack, console: Console, picture: Path | None) -> bool:
    """The chapters in order, then the last page; true when the ledger is as it must be."""
    with ExitStack() as ends:
        engine = make_engine(stack.database_url)
        ends.callback(engine.dispose)
        operator = ends.enter_context(Client(stack.url, token=stack.token))
        apply(operator, stack.data_dir)
        backends = BackendDirectory(engine, "tidegate", stack.data_dir)
        ends.callback(backends.close)
        provider = cast("Provider", backends[BACKEND])
        ends.callback(provider.end_instances)
        research = ends.enter_context(team(operator, stack, "acme/research"))
        product = ends.enter_context(team(operator, stack, "acme/product"))
        workdir = research.upload_workdir(ROOT / "examples" / "train")
        train, quick = story.job_makers(workdir, story.checkpoint_prefix(stack.data_dir).as_uri(), sys.executable)
        desk = Desk(operator, console)
        actors = story.Cast(desk, research, product, provider.interrupt_rank, provider.instances_of, train, quick)
        console.rule("1. a spot instance is taken in mid-epoch")
        jobs, _ = story.revocation(actors)
        console.rule("2. P1 preempts P2 with grace")
        jobs += story.preemption(actors, "P1", "with-grace", estimates(engine))[0]
        console.rule("3. P0 preempts P2 at once")
        jobs += story.preemption(actors, "P0", "without-grace", estimates(engine))[0]
        console.rule("what happened")
        pages.show(console, pages.timeline(desk, jobs, console.width), picture)
        return pages.ledger(console, engine)


def estimates(engine: Engine) -> Callable[[str], int]:
    """attempt id -> what a restart of its job costs in ms: measured at it, else the default of this stack."""
    default_ms = int(SETTINGS["TIDEGATE_DEFAULT_RESTART_S"]) * 1000

    def restart_ms(attempt_id: str) -> int:
        with engine.connect() as connection:
            query = text("SELECT restart_ms FROM attempts WHERE id = :id")
            return int(connection.execute(query, {"id": attempt_id}).scalar_one()) or default_ms

    return restart_ms


def apply(operator: Client, data_dir: Path) -> None:
    """The operators' files of examples/demo, and the place where checkpoints may go."""
    documents = list(yaml.safe_load_all((ROOT / "examples" / "demo" / "operators.yaml").read_text()))
    prefix = story.checkpoint_prefix(data_dir).as_uri()
    documents.append({"kind": "storage", "tenant": "acme", "name": "checkpoints", "prefix": prefix})
    operator.apply([OPERATOR_DOC.validate_python(document) for document in documents])


def team(operator: Client, stack: Stack, tenant: str) -> Client:
    """A client of somebody who may submit for `tenant`."""
    request = {"tenant": tenant, "principal": f"{tenant}/ada", "role": "submitter"}
    made = operator.make_token(TokenRequest.model_validate(request))
    assert made.secret is not None
    return Client(stack.url, token=made.secret)
