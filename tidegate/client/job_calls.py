"""The calls about jobs: one function each, which both clients offer under the same name."""

from collections.abc import Sequence
from pathlib import Path

from tidegate.client.calls import Call, Listing, get, given, model, nothing, segment, send
from tidegate.client.follow import Follow
from tidegate.wire.enums import JobState, PriorityClass
from tidegate.wire.job import (
    Attempt,
    BatchSubmit,
    BatchSubmitted,
    CancelRequest,
    DryRun,
    Event,
    Explanation,
    Job,
    JobDetail,
    JobUpdate,
    LogEvent,
    ResizeRequest,
    Submitted,
    Task,
)
from tidegate.wire.spec import JobSpec


def submit(spec: JobSpec, *, key: str | None = None) -> Call[Submitted]:
    """Submit a job once, however often the call is made with the same `key` (default: one of its own per call).

    ProblemError 409 `key-conflict` when the key has made another job, 422 when the job can never run.
    """
    return send("POST", "/v1/jobs", model(Submitted), spec, key=key, sparse=True)


def dry_run(spec: JobSpec) -> Call[DryRun]:
    """What would be done with the job now; nothing is stored."""
    return send("POST", "/v1/jobs", model(DryRun), spec, params={"dry_run": True}, sparse=True)


def submit_batch(specs: Sequence[JobSpec], *, key: str | None = None) -> Call[BatchSubmitted]:
    """Submit up to 1,000 jobs of one tenant, all or none. Job n has the key `<key>/<n>`."""
    batch = given(BatchSubmit, jobs=tuple(specs))
    return send("POST", "/v1/jobs:batch", model(BatchSubmitted), batch, key=key, sparse=True)


def get_job(job: str) -> Call[JobDetail]:
    """One job with its spec. ProblemError 404 when there is none that the token may see."""
    return get(_job(job), JobDetail)


def list_jobs(
    *,
    state: Sequence[JobState] = (),
    tenant: str | None = None,
    label: Sequence[str] = (),
    page_size: int | None = None,
) -> Listing[Job]:
    """Jobs, oldest first: of any of the states, of a tenant and below it, with all `key=value` labels."""
    states = [one.value for one in state]
    return Listing("/v1/jobs", Job, {"state": states, "tenant": tenant, "label": list(label), "limit": page_size})


def cancel(job: str, *, index: int | None = None, message: str = "") -> Call[Job]:
    """End a job, or the one `index` of an array. Twice is once; what has ended stays as it is."""
    what = given(CancelRequest, index=index, message=message or None)
    return send("POST", _job(job, ":cancel"), model(Job), what, sparse=True)


def hold(job: str) -> Call[Job]:
    """Keep a queued job from being admitted."""
    return send("POST", _job(job, ":hold"), model(Job))


def unhold(job: str) -> Call[Job]:
    """Let it be admitted again."""
    return send("POST", _job(job, ":unhold"), model(Job))


def resize(job: str, replicas: int, *, group: str = "main") -> Call[Job]:
    """Another size for the elastic group of a job."""
    return send("POST", _job(job, ":resize"), model(Job), given(ResizeRequest, group=group, replicas=replicas))


def checkpoint(job: str) -> Call[Job]:
    """Ask a running job to save and go on."""
    return send("POST", _job(job, ":checkpoint"), model(Job))


def requeue(job: str) -> Call[Job]:
    """Ask a running job to save and leave; it is queued again. Not repeated after a lost answer: the next attempt
    might be meant then.
    """
    return send("POST", _job(job, ":requeue"), model(Job), repeatable=False)


def update(
    job: str,
    *,
    priority: PriorityClass | None = None,
    labels: dict[str, str] | None = None,
    max_duration: int | None = None,
) -> Call[Job]:
    """Change labels (always), priority or `max_duration` in seconds (while it is queued). None leaves a thing alone."""
    change = given(JobUpdate, priority=priority, labels=labels, max_duration=max_duration)
    return send("PATCH", _job(job), model(Job), change, sparse=True)


def explain(job: str) -> Call[Explanation]:
    """Why it is where it is, what would change that, and when it may start."""
    return get(_job(job, "/explain"), Explanation)


def attempts(job: str) -> Listing[Attempt]:
    """Its attempts in order."""
    return Listing(_job(job, "/attempts"), Attempt)


def tasks(job: str) -> Listing[Task]:
    """The indexes of an array to which something has happened."""
    return Listing(_job(job, "/tasks"), Task)


def past_events(job: str) -> Listing[Event]:
    """What has happened so far, oldest first."""
    return Listing(_job(job, "/events"), Event)


def events(job: str, *, after: int = 0) -> Follow[Event]:
    """What happens to a job, as it happens, from the event after the id `after` until the job's end."""
    return Follow(job, _job(job, "/events"), Event, {"after": after or None})


def logs(
    job: str,
    *,
    rank: int = 0,
    attempt: int | None = None,
    index: int | None = None,
    offset: int = 0,
    follow: bool = False,
) -> Follow[LogEvent]:
    """Output of one member in pieces, of one attempt or the newest, of an array the task `index`.

    With `follow` until that attempt has ended. Each piece's `offset` is where to go on after it.
    """
    params = {"rank": rank, "attempt": attempt, "index": index, "offset": offset or None, "follow": follow}
    return Follow(job, _job(job, "/logs"), LogEvent, params, endless=follow)


def put_workdir(archive: Path, sha256: str, *, tenant: str | None = None) -> Call[None]:
    """Send a packed code archive, unless the tenant has it already."""
    headers = {"Content-Type": "application/gzip", "Content-Length": str(archive.stat().st_size)}
    return Call("PUT", f"/v1/workdirs/{segment(sha256)}", nothing, {"tenant": tenant}, archive, headers)


def _job(job: str, rest: str = "") -> str:
    return f"/v1/jobs/{segment(job)}{rest}"
