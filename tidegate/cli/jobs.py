"""Verbs about jobs that are there: `list show explain events logs`, and what may be wished of them."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from tidegate.cli import output
from tidegate.cli.exits import USAGE, Quit
from tidegate.cli.options import JobId, JsonFlag, LimitFlag, TenantFlag, age, gate, pairs, seconds, upto
from tidegate.wire.enums import ENDED, JobState, PriorityClass
from tidegate.wire.job import Explanation, Job, JobDetail

_LIVE = tuple(state for state in JobState if state not in ENDED)


def list_(
    context: typer.Context,
    *,
    state: Annotated[list[JobState] | None, typer.Option("--state", help="Only these states.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Jobs that have ended, too.")] = False,
    label: Annotated[list[str] | None, typer.Option("--label", help="key=value; all of them must be there.")] = None,
    tenant: TenantFlag = None,
    limit: LimitFlag = 100,
    as_json: JsonFlag = False,
) -> None:
    """Jobs that have not ended, oldest first; --all or --state for others."""
    states = tuple(state or (() if everything else _LIVE))
    pairs(label or [], "--label")
    with gate(context) as client:
        page = min(limit, 1000)
        found = upto(client.list(state=states, tenant=tenant, label=label or (), page_size=page), limit)
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ("ID", "NAME", "TENANT", "KIND", "CLASS", "STATE", "WHY", "TRIES", "AGE"),
        (
            (
                job.id,
                job.name,
                job.tenant,
                job.kind,
                job.priority,
                job.state,
                job.pending.token if job.pending else job.reason,
                job.attempts,
                age(job.submitted_at),
            )
            for job in found
        ),
        empty="no jobs" if everything or state else "no jobs that have not ended; --all shows the others",
    )


def show(context: typer.Context, job: JobId, *, as_json: JsonFlag = False) -> None:
    """One job with its attempts."""
    with gate(context) as client:
        found = client.get(job)
        tries = upto(client.attempts(job), 1000)
    if as_json:
        output.print_json({**found.model_dump(mode="json"), "tries": output.to_json(tries)})
        return
    _print_job(found)
    if tries:
        output.show("")
        output.print_table(
            ("TRY", "STATE", "REASON", "WHERE", "CODE", "GPU-HOURS", "COST", "STARTED", "ENDED"),
            (
                (
                    one.number if one.chunk is None else f"{one.chunk}/{one.number}",
                    one.state,
                    one.reason,
                    " ".join(f"{p.group}:{p.replicas}@{p.pool}" for p in one.placed),
                    one.exit_code,
                    output.gpu_hours(one.gpu_ms),
                    output.dollars(one.money),
                    one.started_at,
                    one.ended_at,
                )
                for one in tries
            ),
            empty="",
        )


def _print_job(job: Job | JobDetail) -> None:
    output.print_pairs(
        [
            ("id", job.id),
            ("name", job.name),
            ("tenant", job.tenant),
            ("principal", job.principal),
            ("kind", job.kind),
            ("class", job.priority),
            ("state", job.state),
            ("reason", job.reason),
            ("message", job.message),
            ("waits", job.pending.token if job.pending else ""),
            ("remedy", job.pending.remedy if job.pending else ""),
            ("may start", job.pending.starts_at if job.pending else None),
            ("exit code", job.exit_code),
            ("on hold", "yes" if job.on_hold else ""),
            ("attempts", job.attempts),
            ("preemptions", job.preemptions or ""),
            ("revocations", job.revocations or ""),
            ("array", f"{job.array_ended}/{job.array_size} ended" if job.array_size else ""),
            ("failed tasks", job.array_failed or ""),
            ("labels", job.labels),
            ("submitted", job.submitted_at),
            ("started", job.started_at),
            ("ended", job.ended_at),
        ]
    )


def explain(context: typer.Context, job: JobId, *, as_json: JsonFlag = False) -> None:
    """Why a job is where it is, what would change that and when it may start."""
    with gate(context) as client:
        found = client.explain(job)
    output.print_json(found) if as_json else _print_explanation(found)


def _print_explanation(found: Explanation) -> None:
    why = found.why
    output.print_pairs(
        [
            ("state", found.state),
            ("", found.words),
            ("waits", why.token if why else ""),
            ("numbers", why.numbers if why else ""),
            ("in front", why.blocker if why else ""),
            ("remedy", why.remedy if why else ""),
            ("may start", why.starts_at if why else None),
        ]
    )
    if found.decisions:
        output.show("")
        output.print_table(
            ("AT", "DECISION", "TOKEN", "APPLIED", "NUMBERS"),
            ((one.at, one.kind, one.token, one.applied, one.data) for one in found.decisions),
            empty="",
        )


def events(
    context: typer.Context,
    job: JobId,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until the job's end.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """What happened to a job. With --json one event a line."""
    with gate(context) as client:
        for event in client.events(job) if follow else client.past_events(job):
            if as_json:
                output.print_json(event)
                continue
            data = output.cell(event.data) if event.data else ""
            words = (output.cell(event.at), event.kind, event.reason, event.attempt or "", data)
            output.show("  ".join(output.cell(word) for word in words if word))


def logs(
    context: typer.Context,
    job: JobId,
    *,
    rank: Annotated[int, typer.Option("--rank", min=0, help="The member.")] = 0,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="An earlier try; the newest otherwise.")
    ] = None,
    index: Annotated[int | None, typer.Option("--index", min=0, help="Of an array: the task.")] = None,
    offset: Annotated[int, typer.Option("--offset", min=0, help="From this byte on.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until that try has ended.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Output of one member. On a terminal without control sequences. With --json one piece a line."""
    with gate(context) as client:
        for piece in client.logs(job, rank=rank, attempt=attempt, index=index, offset=offset, follow=follow):
            output.print_json(piece) if as_json else output.print_log(piece.text)


def cancel(
    context: typer.Context,
    job: JobId,
    *,
    index: Annotated[int | None, typer.Option("--index", min=0, help="Of an array: this task alone.")] = None,
    message: Annotated[str, typer.Option("--message", "-m", help="Why, for the job's history.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """End a job, or one task of an array. Twice is once."""
    with gate(context) as client:
        _print_act(client.cancel(job, index=index, message=message), as_json=as_json)


def _verb(name: str, help_text: str) -> Callable[..., None]:
    """A verb that takes a job and says what the job is then."""

    def act(context: typer.Context, job: JobId, *, as_json: JsonFlag = False) -> None:
        with gate(context) as client:
            _print_act(getattr(client, name)(job), as_json=as_json)

    act.__doc__ = help_text
    return act


hold = _verb("hold", "Keep a queued job from being admitted.")
unhold = _verb("unhold", "Let a held job be admitted again.")
checkpoint = _verb("checkpoint", "Ask a running job to save and go on.")
requeue = _verb("requeue", "Ask a running job to save and leave; it is queued again.")


def resize(
    context: typer.Context,
    job: JobId,
    replicas: Annotated[int, typer.Argument(min=1, help="How many there shall be.")],
    *,
    group: Annotated[str, typer.Option("--group", help="Of a job with several groups: which.")] = "main",
    as_json: JsonFlag = False,
) -> None:
    """Another size for an elastic job."""
    with gate(context) as client:
        _print_act(client.resize(job, replicas, group=group), as_json=as_json)


def update(
    context: typer.Context,
    job: JobId,
    *,
    priority: Annotated[PriorityClass | None, typer.Option("--priority", help="While it is queued.")] = None,
    label: Annotated[list[str] | None, typer.Option("--label", help="key=value; all labels anew, at any time.")] = None,
    max_duration: Annotated[
        str | None, typer.Option("--max-duration", help="For example 4h; while it is queued.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Change class, labels or longest duration."""
    change: dict[str, Any] = {
        "priority": priority,
        "labels": pairs(label, "--label") if label else None,
        "max_duration": seconds(max_duration, "--max-duration") if max_duration is not None else None,
    }
    if all(value is None for value in change.values()):
        raise Quit(USAGE, "nothing to change; give --priority, --label or --max-duration")
    with gate(context) as client:
        _print_act(client.update(job, **change), as_json=as_json)


def _print_act(job: Job, *, as_json: bool) -> None:
    if as_json:
        output.print_json(job)
        return
    hold_words = ", on hold" if job.on_hold else ""
    output.show(f"{job.id} {job.state}{hold_words}")
