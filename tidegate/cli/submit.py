"""`submit` and `run`: a job file becomes a job, its code folder an archive."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tidegate.cli import output, watching
from tidegate.cli.exits import REJECTED, USAGE, Quit
from tidegate.cli.files import read_jobs
from tidegate.cli.keys import default_key
from tidegate.cli.options import JobFile, JsonFlag, KeyFlag, TenantFlag, gate, pairs, seconds
from tidegate.client import Client
from tidegate.wire.job import Submitted
from tidegate.wire.spec import JobSpec

BATCH: Final = 1000
_DIGEST: Final = re.compile(r"(sha256:)?[0-9a-f]{64}")
NameFlag = Annotated[str | None, typer.Option("--name", help="Instead of the file's name.")]
EnvFlag = Annotated[list[str] | None, typer.Option("--env", help="KEY=VALUE for the job; may stand several times.")]
LabelFlag = Annotated[list[str] | None, typer.Option("--label", help="KEY=VALUE; may stand several times.")]


def submit(
    context: typer.Context,
    file: JobFile,
    *,
    key: KeyFlag = None,
    tenant: TenantFlag = None,
    name: NameFlag = None,
    env: EnvFlag = None,
    label: LabelFlag = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done now; store nothing.")] = False,
    print_spec: Annotated[
        bool, typer.Option("--print", help="Show the job as it would be sent; send nothing.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Submit the job of a file, or all jobs of a file with several documents.

    Prints the job's id. Several jobs are taken all or none, in batches of 1,000.
    """
    specs = [_changed(spec, tenant, name, env, label) for spec in read_jobs(file)]
    if not specs:
        raise Quit(REJECTED, f"{file}: there is no job in it; write at least `name` and `run`")
    if print_spec:
        for spec in specs:
            output.print_json(spec.model_dump(mode="json", exclude_unset=True))
        return
    with gate(context) as client:
        specs = with_code(client, specs, file)
        if dry_run:
            for spec in specs:
                _show_plan(client.dry_run(spec), as_json=as_json)
            return
        made = _submit_all(client, specs, key)
    for job in made:
        if as_json:
            output.print_json(job)
        else:
            output.show(job.id)
            if job.replayed:
                output.say(f"this key had made job {job.id} before; it is {job.state}")


def _submit_all(client: Client, specs: list[JobSpec], key: str | None) -> list[Submitted]:
    if len(specs) == 1:
        return [client.submit(specs[0], key=key or default_key(specs, os.environ))]
    made: list[Submitted] = []
    for start in range(0, len(specs), BATCH):
        part = specs[start : start + BATCH]
        part_key = f"{key}/{start}" if key else default_key(part, os.environ)
        made.extend(client.submit_batch(part, key=part_key).jobs)
    return made


def _show_plan(plan: Any, *, as_json: bool) -> None:
    if as_json:
        output.print_json(plan)
        return
    output.print_pairs(
        [
            ("decision", plan.decision),
            ("token", plan.why.token),
            ("numbers", plan.why.numbers),
            ("remedy", plan.why.remedy),
            ("starts", plan.why.starts_at),
            ("placed", " ".join(f"{p.group}:{p.replicas}@{p.pool}" for p in plan.placed)),
            ("preempts", " ".join(plan.preempts)),
        ]
    )


def run(
    context: typer.Context,
    file: JobFile,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until the job has ended and exit with its code.")] = False,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", help="Wait at most so long (90s, 30m, 4h), then exit 124; the job goes on."),
    ] = None,
    result: Annotated[
        Path | None, typer.Option("--result", help="Write state, reason and codes per rank to this JSON file.")
    ] = None,
    logs: Annotated[bool, typer.Option("--logs/--no-logs", help="Show the job's output while waiting.")] = True,
    rank: Annotated[int, typer.Option("--rank", min=0, help="The member whose output is shown.")] = 0,
    leave: Annotated[
        bool, typer.Option("--leave", help="Ctrl-C or SIGTERM leaves the job alone instead of cancelling it.")
    ] = False,
    key: KeyFlag = None,
    tenant: TenantFlag = None,
    name: NameFlag = None,
    env: EnvFlag = None,
    label: LabelFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Submit one job; with --wait show its output and exit with its own code.

    Exit codes with --wait: the job's own (first failing member's; 128+n for a signal; 1 if it failed without one).
    Of the tool: 65 rejected, 124 wait over, 69 gate unreachable, 130 cancelled, 64 usage, 78 configuration.

    Ctrl-C or SIGTERM asks the gate to cancel the job and waits for its end (exit 130); a second one leaves at once.
    With --leave the first one leaves at once and the job goes on. With --json the job's output goes to standard error.
    """
    limit_s = seconds(timeout, "--timeout") if timeout is not None else None
    if not wait and (limit_s is not None or result is not None):
        raise Quit(USAGE, "--timeout and --result go with --wait; add it")
    view = watching.View(as_json=as_json, logs=logs, rank=rank, leave=leave, limit_s=limit_s, result=result)
    with watching.reporting(view), gate(context) as client:
        spec = _changed(_only(read_jobs(file), file), tenant, name, env, label)
        spec = with_code(client, [spec], file)[0]
        job = client.submit(spec, key=key or default_key([spec], os.environ))
        if not wait:
            output.print_json(job) if as_json else output.show(job.id)
            return
        output.say(f"job {job.id}" + (" (this key had made it before)" if job.replayed else ""))
        raise Quit(watching.watch(client, job.id, view))


def _only(specs: list[JobSpec], file: Path) -> JobSpec:
    if len(specs) != 1:
        raise Quit(REJECTED, f"{file}: `run` takes one job and there are {len(specs)}; use `submit` for several")
    return specs[0]


def _changed(
    spec: JobSpec, tenant: str | None, name: str | None, env: list[str] | None, label: list[str] | None
) -> JobSpec:
    said: dict[str, Any] = {}
    if tenant is not None:
        said["tenant"] = tenant
    if name is not None:
        said["name"] = name
    if env:
        said["env"] = {**spec.env, **pairs(env, "--env")}
    if label:
        said["labels"] = {**spec.labels, **pairs(label, "--label")}
    if not said:
        return spec
    try:
        return JobSpec.model_validate({**spec.model_dump(mode="json", exclude_unset=True), **said})
    except ValueError as error:
        raise Quit(USAGE, f"--{'/--'.join(said)}: {error}") from error


def with_code(client: Client, specs: list[JobSpec], file: Path) -> list[JobSpec]:
    """The specs with the digest of their code in place of its folder; each folder is packed and sent once.

    A folder is relative to the job file. A digest stays as it is.
    """
    base = Path.cwd() if str(file) == "-" else file.resolve().parent
    sent: dict[tuple[Path, str | None], str] = {}
    changed = []
    for spec in specs:
        if spec.workdir is None or _DIGEST.fullmatch(spec.workdir):
            changed.append(spec)
            continue
        folder = (base / Path(spec.workdir).expanduser()).resolve()
        if (folder, spec.tenant) not in sent:
            sent[folder, spec.tenant] = client.upload_workdir(folder, tenant=spec.tenant)
        changed.append(spec.model_copy(update={"workdir": sent[folder, spec.tenant]}))
    return changed
