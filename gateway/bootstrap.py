"""The composition root: the one place that reads settings and builds concrete things.

Everything else is given what it needs. Importing this module does nothing.
"""

import asyncio
import hashlib
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import uvicorn
from fastapi import FastAPI
from sqlalchemy import Engine
from temporalio.client import Client

from gateway.api.app import create_app
from gateway.api.deps import Deps
from gateway.directory import BackendDirectory
from gateway.ledger.engine import make_engine
from gateway.ledger.presence import Presence, alone
from gateway.ledger.store import PostgresStore
from gateway.queries.config import Configs
from gateway.settings import Settings
from gateway.webhooks.sending import Sender
from gateway.webhooks.signing import key_of
from policies.decisions import Plan
from policies.plan import plan
from policies.settings import PolicySettings
from policies.snapshot import Snapshot
from workflows.recover import RecoverReport, recover
from workflows.worker import connect, serve


def read_settings() -> Settings:
    """From the environment."""
    return Settings()


def start_logging(settings: Settings) -> None:
    """One line a record, to standard error."""
    logging.basicConfig(
        level=settings.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )


def policy_settings(settings: Settings) -> PolicySettings:
    """The policy's numbers with the operators' changes."""
    return PolicySettings(**settings.policy)  # type: ignore[arg-type]


def planner(settings: Settings) -> Callable[[Snapshot, int], Plan]:
    """The live policy, for the arbiter and for dry runs alike."""
    numbers = policy_settings(settings)
    return lambda snapshot, now_ms: plan(snapshot, numbers, now_ms)


def engine_of(settings: Settings) -> Engine:
    """The ledger's engine."""
    return make_engine(settings.database_url.get_secret_value(), pool_size=settings.database_pool_size)


def directory_of(settings: Settings, engine: Engine, *, tells: bool = False) -> BackendDirectory:
    """The backends that operators configured; `tells`: what is wrong with one is written to its row."""
    return BackendDirectory(engine, settings.gateway_name, settings.data_dir, tells=tells)


def cursor_key(settings: Settings) -> bytes:
    """Signs page cursors; the same in every replica, since all of them have the same database."""
    given = settings.cursor_key or settings.database_url
    return hashlib.sha256(b"tidegate cursor " + given.get_secret_value().encode()).digest()


def api(settings: Settings) -> FastAPI:
    """The HTTP API over a fresh engine."""
    engine = engine_of(settings)
    return create_app(
        Deps(
            engine=engine,
            settings=settings,
            cursor_key=cursor_key(settings),
            backends=directory_of(settings, engine),
            plan=planner(settings),
            configs=Configs(queue_limit=settings.queue_limit),
        )
    )


def run_api() -> None:
    """Serve the API until SIGTERM."""
    settings = read_settings()
    start_logging(settings)
    uvicorn.run(
        api(settings),
        host=settings.listen_host,
        port=settings.listen_port,
        log_level=settings.log_level,
        access_log=False,
        timeout_graceful_shutdown=5,
    )


def run_worker() -> None:
    """Serve workflows and activities until SIGTERM."""
    settings = read_settings()
    start_logging(settings)
    asyncio.run(_worker(settings))


def run_recover() -> RecoverReport:
    """`tidegate recover`."""
    settings = read_settings()
    start_logging(settings)
    return asyncio.run(_recover(settings))


async def _worker(settings: Settings) -> None:
    leave = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, leave.set)
    dsn = settings.database_url.get_secret_value()
    at_work = Presence(dsn, barred=lambda: _set(leave, loop))
    try:
        if not await asyncio.to_thread(at_work.enter, leave.is_set):
            return
        with _worker_parts(settings) as (store, backends):
            client = await _temporal(settings)
            webhooks = Sender(key_of(settings), allow=settings.webhook_allow, ca_file=settings.webhook_ca_file)
            await serve(client, store, backends, settings, plan=planner(settings), stop=leave, webhooks=webhooks)
    finally:
        at_work.close()


def _set(event: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
    """From another thread."""
    loop.call_soon_threadsafe(event.set)


async def _recover(settings: Settings) -> RecoverReport:
    with alone(settings.database_url.get_secret_value()), _worker_parts(settings) as (store, backends):
        return await recover(store, backends, await _temporal(settings))


class UnreachableTemporalError(Exception):
    """The workflows' server does not answer; the message names its address."""


async def _temporal(settings: Settings) -> Client:
    key = settings.temporal_api_key
    try:
        return await connect(
            settings.temporal_address,
            settings.temporal_namespace,
            api_key=key.get_secret_value() if key else None,
            tls=settings.temporal_tls,
        )
    except RuntimeError as error:
        raise UnreachableTemporalError(f"Temporal at {settings.temporal_address} does not answer") from error


@contextmanager
def _worker_parts(settings: Settings) -> Iterator[tuple[PostgresStore, BackendDirectory]]:
    engine = engine_of(settings)
    policy = policy_settings(settings)
    dsn = settings.database_url.get_secret_value()
    with ExitStack() as ends:
        ends.callback(engine.dispose)
        store = PostgresStore(engine, dsn, settings, policy=policy, config_digest=policy.version)
        ends.callback(store.close)
        backends = directory_of(settings, engine, tells=True)
        ends.callback(backends.close)
        yield store, backends
