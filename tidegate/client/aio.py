"""The asyncio client. Carries calls; what they are is in `job_calls` and `operator_calls`."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import httpx
from httpx_sse import EventSource
from pydantic import BaseModel

from tidegate.archive.pack import pack
from tidegate.client import job_calls, operator_calls
from tidegate.client.bind import AsyncCall, AsyncList, AsyncStream
from tidegate.client.calls import Call, Listing
from tidegate.client.core import (
    TIMEOUT,
    Tries,
    answer_of,
    async_chunks,
    check_stream,
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


class AsyncClient:
    """One gate. Without arguments, URL and token come from the environment or the user's file (`settings.access`).

    >>> async with AsyncClient() as gate:
    ...     job = await gate.submit(JobSpec(name="hello", run="echo hello"))
    ...     end = await gate.wait(job.id)
    """

    submit = AsyncCall(job_calls.submit)
    dry_run = AsyncCall(job_calls.dry_run)
    submit_batch = AsyncCall(job_calls.submit_batch)
    get = AsyncCall(job_calls.get_job)
    cancel = AsyncCall(job_calls.cancel)
    hold = AsyncCall(job_calls.hold)
    unhold = AsyncCall(job_calls.unhold)
    resize = AsyncCall(job_calls.resize)
    checkpoint = AsyncCall(job_calls.checkpoint)
    requeue = AsyncCall(job_calls.requeue)
    update = AsyncCall(job_calls.update)
    explain = AsyncCall(job_calls.explain)
    put_workdir = AsyncCall(job_calls.put_workdir)

    list = AsyncList(job_calls.list_jobs)
    attempts = AsyncList(job_calls.attempts)
    tasks = AsyncList(job_calls.tasks)
    past_events = AsyncList(job_calls.past_events)

    events = AsyncStream(job_calls.events)
    logs = AsyncStream(job_calls.logs)

    whoami = AsyncCall(operator_calls.whoami)
    webhook_secret = AsyncCall(operator_calls.webhook_secret)
    set_quota = AsyncCall(operator_calls.set_quota)
    make_override = AsyncCall(operator_calls.make_override)
    end_override = AsyncCall(operator_calls.end_override)
    set_budget = AsyncCall(operator_calls.set_budget)
    delete_budget = AsyncCall(operator_calls.delete_budget)
    drain = AsyncCall(operator_calls.drain)
    forget_backend = AsyncCall(operator_calls.forget_backend)
    put_document = AsyncCall(operator_calls.put_document)
    delete_document = AsyncCall(operator_calls.delete_document)
    apply = AsyncCall(operator_calls.apply)
    diff = AsyncCall(operator_calls.diff)
    make_token = AsyncCall(operator_calls.make_token)
    revoke_token = AsyncCall(operator_calls.revoke_token)
    make_grant = AsyncCall(operator_calls.make_grant)
    revoke_grant = AsyncCall(operator_calls.revoke_grant)

    quotas = AsyncList(operator_calls.quotas)
    overrides = AsyncList(operator_calls.overrides)
    budgets = AsyncList(operator_calls.budgets)
    owners = AsyncList(operator_calls.owners)
    usage = AsyncList(operator_calls.usage)
    credits = AsyncList(operator_calls.credits)
    statement = AsyncList(operator_calls.statement)
    tenants = AsyncList(operator_calls.tenants)
    flavors = AsyncList(operator_calls.flavors)
    pools = AsyncList(operator_calls.pools)
    backends = AsyncList(operator_calls.backends)
    storages = AsyncList(operator_calls.storages)
    allowances = AsyncList(operator_calls.allowances)
    tokens = AsyncList(operator_calls.tokens)
    grants = AsyncList(operator_calls.grants)
    audit = AsyncList(operator_calls.audit)

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        retry: Retry | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        found = access(url, token)
        self.url = found.url
        self._retry = retry or Retry()
        self._http = httpx.AsyncClient(transport=transport, **options(found))

    def __repr__(self) -> str:
        return f"AsyncClient(url={self.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def do(self, call: Call[T], *, retry: Retry | None = None, timeouts: httpx.Timeout = TIMEOUT) -> T:
        """Make one call, again while that can help."""
        tries = Tries(call, retry or self._retry, self.url)
        while True:
            content = async_chunks(call.body) if isinstance(call.body, Path) else call.body
            try:
                response = await self._http.send(request_of(self._http, call, content, timeouts))
            except httpx.TransportError as error:
                pause = tries.after_error(error)
            else:
                again = tries.after_answer(response)
                if again is None:
                    return answer_of(call, response, response.content)
                pause = again
            await asyncio.sleep(pause)

    async def walk(self, listing: Listing[T]) -> AsyncIterator[T]:
        """All items of a list."""
        cursor: str | None = None
        while True:
            page = await self.do(listing.page(cursor))
            for item in page.items:
                yield item
            cursor = page.next
            if cursor is None:
                return

    async def stream(self, follow: Follow[ModelT]) -> AsyncIterator[ModelT]:
        """All events of a stream; a lost connection is taken up where it broke."""
        while True:
            follow.connecting()
            try:
                async for found in self._connected(follow):
                    yield found
            except httpx.TransportError as error:
                follow.failed(error)
            if follow.over():
                return
            pause = follow.pause_s(self.url)
            if pause:
                await asyncio.sleep(pause)
            if not follow.broken:
                follow.learned(job_ended=(await self.get(follow.job)).state.ended)

    async def _connected(self, follow: Follow[ModelT]) -> AsyncIterator[ModelT]:
        async with self._http.stream(
            "GET", follow.path, params=follow.query(), headers=dict(follow.headers()), timeout=READ_TIMEOUT
        ) as response:
            if not response.is_success:
                error = error_of(response, await response.aread())
                if not stream_may_go_on(error):
                    raise error
                follow.failed(error)
                return
            check_stream(response)
            async for event in EventSource(response).aiter_sse():
                found = follow.take(event)
                if found is not None:
                    yield found

    async def wait(self, job: str, *, timeout_s: float | None = None) -> JobDetail:
        """Until the job has ended. WaitTimeoutError when that takes longer; the job then goes on.

        A gate that is away for a while is waited for; UnreachableError after some minutes.
        """
        watch = Watch(job, timeout_s)
        while True:
            try:
                found = await self.do(job_calls.get_job(job), retry=ONCE, timeouts=httpx.Timeout(watch.look_s()))
            except (UnreachableError, ProblemError) as error:
                pause = watch.after_error(error)
            else:
                if found.state.ended:
                    return found
                pause = watch.pause_s()
            await asyncio.sleep(pause)

    async def upload_workdir(self, folder: str | Path, *, tenant: str | None = None) -> str:
        """Pack a folder (less what `.gitignore` names) and send it; returns the digest for `JobSpec.workdir`."""
        with tempfile.TemporaryDirectory(prefix="tidegate-") as scratch:
            packed = await asyncio.to_thread(pack, Path(folder), Path(scratch) / "workdir.tar.gz")
            await self.put_workdir(packed.path, packed.sha256, tenant=tenant)
        return packed.sha256
