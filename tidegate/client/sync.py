"""The blocking client. Carries calls; what they are is in `job_calls` and `operator_calls`. Threads may share it."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import httpx
from httpx_sse import EventSource
from pydantic import BaseModel

from tidegate.archive.pack import pack
from tidegate.client import job_calls, operator_calls
from tidegate.client.bind import SyncCall, SyncList, SyncStream
from tidegate.client.calls import Call, Listing
from tidegate.client.core import (
    TIMEOUT,
    Tries,
    answer_of,
    check_stream,
    chunks,
    error_of,
    options,
    request_of,
    stream_may_go_on,
)
from tidegate.client.errors import ProblemError, UnreachableError
from tidegate.client.follow import READ_TIMEOUT, Follow
from tidegate.client.retry import Retry
from tidegate.client.settings import access
from tidegate.client.watch import ONCE, Watch
from tidegate.wire.job import JobDetail

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)


class Client:
    """One gate. Without arguments, URL and token come from the environment or the user's file (`settings.access`).

    >>> with Client() as gate:
    ...     job = gate.submit(JobSpec(name="hello", run="echo hello"))
    ...     end = gate.wait(job.id)
    """

    submit = SyncCall(job_calls.submit)
    dry_run = SyncCall(job_calls.dry_run)
    submit_batch = SyncCall(job_calls.submit_batch)
    get = SyncCall(job_calls.get_job)
    cancel = SyncCall(job_calls.cancel)
    hold = SyncCall(job_calls.hold)
    unhold = SyncCall(job_calls.unhold)
    resize = SyncCall(job_calls.resize)
    checkpoint = SyncCall(job_calls.checkpoint)
    requeue = SyncCall(job_calls.requeue)
    update = SyncCall(job_calls.update)
    explain = SyncCall(job_calls.explain)
    put_workdir = SyncCall(job_calls.put_workdir)

    list = SyncList(job_calls.list_jobs)
    attempts = SyncList(job_calls.attempts)
    tasks = SyncList(job_calls.tasks)
    past_events = SyncList(job_calls.past_events)

    events = SyncStream(job_calls.events)
    logs = SyncStream(job_calls.logs)

    whoami = SyncCall(operator_calls.whoami)
    webhook_secret = SyncCall(operator_calls.webhook_secret)
    set_quota = SyncCall(operator_calls.set_quota)
    make_override = SyncCall(operator_calls.make_override)
    end_override = SyncCall(operator_calls.end_override)
    set_budget = SyncCall(operator_calls.set_budget)
    delete_budget = SyncCall(operator_calls.delete_budget)
    drain = SyncCall(operator_calls.drain)
    forget_backend = SyncCall(operator_calls.forget_backend)
    put_document = SyncCall(operator_calls.put_document)
    delete_document = SyncCall(operator_calls.delete_document)
    apply = SyncCall(operator_calls.apply)
    diff = SyncCall(operator_calls.diff)
    make_token = SyncCall(operator_calls.make_token)
    revoke_token = SyncCall(operator_calls.revoke_token)
    make_grant = SyncCall(operator_calls.make_grant)
    revoke_grant = SyncCall(operator_calls.revoke_grant)

    quotas = SyncList(operator_calls.quotas)
    overrides = SyncList(operator_calls.overrides)
    budgets = SyncList(operator_calls.budgets)
    owners = SyncList(operator_calls.owners)
    usage = SyncList(operator_calls.usage)
    credits = SyncList(operator_calls.credits)
    statement = SyncList(operator_calls.statement)
    tenants = SyncList(operator_calls.tenants)
    flavors = SyncList(operator_calls.flavors)
    pools = SyncList(operator_calls.pools)
    backends = SyncList(operator_calls.backends)
    storages = SyncList(operator_calls.storages)
    allowances = SyncList(operator_calls.allowances)
    tokens = SyncList(operator_calls.tokens)
    grants = SyncList(operator_calls.grants)
    audit = SyncList(operator_calls.audit)

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        retry: Retry | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        found = access(url, token)
        self.url = found.url
        self._retry = retry or Retry()
        self._http = httpx.Client(transport=transport, **options(found))

    def __repr__(self) -> str:
        return f"Client(url={self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def do(self, call: Call[T], *, retry: Retry | None = None, timeouts: httpx.Timeout = TIMEOUT) -> T:
        """Make one call, again while that can help."""
        tries = Tries(call, retry or self._retry, self.url)
        while True:
            content = chunks(call.body) if isinstance(call.body, Path) else call.body
            try:
                response = self._http.send(request_of(self._http, call, content, timeouts))
            except httpx.TransportError as error:
                pause = tries.after_error(error)
            else:
                again = tries.after_answer(response)
                if again is None:
                    return answer_of(call, response, response.content)
                pause = again
            time.sleep(pause)

    def walk(self, listing: Listing[T]) -> Iterator[T]:
        """All items of a list."""
        cursor: str | None = None
        while True:
            page = self.do(listing.page(cursor))
            yield from page.items
            cursor = page.next
            if cursor is None:
                return

    def stream(self, follow: Follow[ModelT]) -> Iterator[ModelT]:
        """All events of a stream; a lost connection is taken up where it broke."""
        while True:
            follow.connecting()
            try:
                yield from self._connected(follow)
            except httpx.TransportError as error:
                follow.failed(error)
            if follow.over():
                return
            pause = follow.pause_s(self.url)
            if pause:
                time.sleep(pause)
            if not follow.broken:
                follow.learned(job_ended=(self.get(follow.job)).state.ended)

    def _connected(self, follow: Follow[ModelT]) -> Iterator[ModelT]:
        with self._http.stream(
            "GET", follow.path, params=follow.query(), headers=dict(follow.headers()), timeout=READ_TIMEOUT
        ) as response:
            if not response.is_success:
                error = error_of(response, response.read())
                if not stream_may_go_on(error):
                    raise error
                follow.failed(error)
                return
            check_stream(response)
            for event in EventSource(response).iter_sse():
                found = follow.take(event)
                if found is not None:
                    yield found

    def wait(self, job: str, *, timeout_s: float | None = None) -> JobDetail:
        """Until the job has ended. WaitTimeoutError when that takes longer; the job then goes on.

        A gate that is away for a while is waited for; UnreachableError after some minutes.
        """
        watch = Watch(job, timeout_s)
        while True:
            try:
                found = self.do(job_calls.get_job(job), retry=ONCE, timeouts=httpx.Timeout(watch.look_s()))
            except (UnreachableError, ProblemError) as error:
                pause = watch.after_error(error)
            else:
                if found.state.ended:
                    return found
                pause = watch.pause_s()
            time.sleep(pause)

    def upload_workdir(self, folder: str | Path, *, tenant: str | None = None) -> str:
        """Pack a folder (less what `.gitignore` names) and send it; returns the digest for `JobSpec.workdir`."""
        with tempfile.TemporaryDirectory(prefix="tidegate-") as scratch:
            packed = pack(Path(folder), Path(scratch) / "workdir.tar.gz")
            self.put_workdir(packed.path, packed.sha256, tenant=tenant)
        return packed.sha256
