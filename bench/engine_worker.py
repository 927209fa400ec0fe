"""The production worker with one backend whose work costs nothing, under the name that the operators' files use.

`python -m bench.engine_worker NAME POOL…`, with the gate's settings in the environment.
"""

import asyncio
import signal
import sys

from bench.instant import InstantBackend
from gateway.bootstrap import engine_of, planner, policy_settings, read_settings, start_logging
from gateway.ledger.store import PostgresStore
from workflows.worker import connect, serve


async def work(name: str, pools: list[str]) -> None:
    """Until SIGTERM."""
    settings = read_settings()
    start_logging(settings)
    leave = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    engine = engine_of(settings)
    policy = policy_settings(settings)
    dsn = settings.database_url.get_secret_value()
    store = PostgresStore(engine, dsn, settings, policy=policy, config_digest=policy.version)
    try:
        client = await connect(settings.temporal_address, settings.temporal_namespace)
        backends = {name: InstantBackend(name, pools)}
        await serve(client, store, backends, settings, plan=planner(settings), stop=leave)
    finally:
        store.close()
        engine.dispose()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2:]))
