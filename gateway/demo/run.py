"""`tidegate demo`: brings the embedded stack up, tells the story, prints the last page, takes everything down."""

import shutil
import sys
import tempfile
import time
from pathlib import Path

import yaml
from rich.console import Console

from gateway.demo import pages, story
from gateway.demo.desk import DemoFailedError, Desk
from gateway.directory import BackendDirectory
from gateway.embedded.processes import ProcessFailedError
from gateway.embedded.stack import Stack, running
from gateway.ledger.engine import make_engine
from tidegate.client import Client
from tidegate.wire.operator import OPERATOR_DOC, TokenRequest

ROOT = Path(__file__).parents[2]
BACKEND = "here"
SETTINGS = {"TIDEGATE_RECOVERY_S": "10", "TIDEGATE_DEFAULT_RESTART_S": "5", "TIDEGATE_CAPACITY_EVERY_S": "0.5"}


def run_demo(data_dir: Path | None) -> int:
    """Exit code 0 only if every chapter came true and the ledger balances."""
    console = Console(soft_wrap=True)
    folder = data_dir or Path(tempfile.mkdtemp(prefix="tidegate-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    began = time.monotonic()
    held = False
    try:
        console.print(
            "[bold]Tidegate demo[/]: real PostgreSQL, Temporal, gateway, worker and instances on this machine"
        )
        with running(folder, settings=SETTINGS) as stack:
            console.print(f"stack up after {time.monotonic() - began:.1f} s at {stack.url}")
            held = tell(stack, console)
    except (DemoFailedError, ProcessFailedError) as error:
        console.print(f"[red]the demo failed:[/] {error}", markup=True)
        console.print(f"logs are kept in {folder}/logs")
        return 1
    console.print(
        f"[{'green' if held else 'red'}]{'all of it held' if held else 'it did not hold'}[/], "
        f"{time.monotonic() - began:.1f} s in all"
    )
    if held and data_dir is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if held else 1


def tell(stack: Stack, console: Console) -> bool:
    """The chapters in order, then the last page."""
    engine = make_engine(stack.database_url)
    directory = BackendDirectory(engine, "tidegate", stack.data_dir)
    try:
        with Client(stack.url, token=stack.token) as operator:
            apply(operator, stack.data_dir)
            desk = Desk(operator, console)
            with _team(operator, stack, "acme/research") as research, _team(operator, stack, "acme/product") as product:
                workdir = research.upload_workdir(ROOT / "examples" / "train")
                prefix = story.checkpoint_prefix(stack.data_dir)
                train, quick = story.job_makers(workdir, prefix.as_uri(), sys.executable)

                def interrupt(attempt_id: str, rank: int) -> None:
                    directory[BACKEND].interrupt(attempt_id, rank)  # type: ignore[attr-defined]

                cast = story.Cast(desk, research, product, interrupt, train, quick)
                console.rule("1. a spot instance is taken in mid-epoch")
                first, _ = story.revocation(cast)
                console.rule("2. P1 preempts P2 with grace")
                second, _ = story.preemption(cast, "P1", "with-grace")
                console.rule("3. P0 preempts P2 at once")
                third, _ = story.preemption(cast, "P0", "without-grace")
                console.rule("what happened")
                console.print(pages.timeline(desk, [*first, *second, *third]))
                return pages.ledger(console, engine)
    finally:
        directory.close()
        engine.dispose()


def apply(operator: Client, data_dir: Path) -> None:
    """The operators' files of examples/demo, and the place where checkpoints may go."""
    documents = list(yaml.safe_load_all((ROOT / "examples" / "demo" / "operators.yaml").read_text()))
    prefix = story.checkpoint_prefix(data_dir).as_uri()
    documents.append({"kind": "storage", "tenant": "acme", "name": "checkpoints", "prefix": prefix})
    operator.apply([OPERATOR_DOC.validate_python(document) for document in documents])


def _team(operator: Client, stack: Stack, tenant: str) -> Client:
    made = operator.make_token(
        TokenRequest.model_validate({"tenant": tenant, "principal": f"{tenant}/ada", "role": "submitter"})
    )
    assert made.secret is not None
    return Client(stack.url, token=made.secret)
