"""The live backends of this process, by name, kept equal to the operators' rows. Builds through the registry alone.

A backend whose configuration is wrong is left out and its row says why; it never keeps the others from serving. Rows
that cannot be read change nothing: a database that is away says nothing about backends, and what was built serves on.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, select
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session, col

from backends import registry
from backends.errors import Misconfigured
from backends.port import Backend
from gateway.ledger.tables.capacity import BackendRow, Flavor, Pool

log = logging.getLogger(__name__)
REFRESH_S = 1.0


def backend_config(row: BackendRow, pools: list[tuple[Pool, Flavor]], data_dir: Path) -> dict[str, Any]:
    """What a kind's own settings are read from: the operators' words, its pools with their flavors, and a folder."""
    return {
        "state_dir": str(data_dir.resolve() / "backends" / row.name),
        **row.config,
        "pools": [
            {"name": pool.name, "flavor": flavor.name, "capacity_type": flavor.capacity_type, **pool.config}
            for pool, flavor in pools
        ],
    }


class BackendDirectory(Mapping[str, Backend]):
    """Backends by name. Looks at the rows again at most once a second; a changed row is built anew."""

    def __init__(self, engine: Engine, gateway: str, data_dir: Path) -> None:
        self._engine = engine
        self._gateway = gateway
        self._data_dir = data_dir
        self._lock = threading.Lock()
        self._built: dict[str, tuple[str, Backend]] = {}
        self._looked_at = float("-inf")
        self._known = False  # the rows have been read at least once

    def __getitem__(self, name: str) -> Backend:
        return self._refreshed()[name][1]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._refreshed()))

    def __len__(self) -> int:
        return len(self._refreshed())

    def close(self) -> None:
        """Let go of every backend; what they launched lives on."""
        with self._lock:
            built, self._built = self._built, {}
        for _, backend in built.values():
            backend.close()

    def _refreshed(self) -> dict[str, tuple[str, Backend]]:
        with self._lock:
            if time.monotonic() - self._looked_at >= REFRESH_S:
                try:
                    self._refresh()
                    self._known = True
                except SQLAlchemyError as error:
                    if not self._known:
                        raise  # "none" would be a lie
                    log.warning("the backends' rows cannot be read (%s); those known serve on", type(error).__name__)
                self._looked_at = time.monotonic()
            return dict(self._built)

    def _refresh(self) -> None:
        with Session(self._engine) as session:
            rows = session.scalars(select(BackendRow)).all()
            pools: dict[str, list[tuple[Pool, Flavor]]] = {}
            joined = select(Pool, Flavor).join(Flavor, col(Flavor.name) == col(Pool.flavor)).order_by(col(Pool.name))
            for pool, flavor in session.execute(joined).all():
                pools.setdefault(pool.backend, []).append((pool, flavor))
        wanted = {row.name: row for row in rows}
        for name in set(self._built) - set(wanted):
            self._built.pop(name)[1].close()
        for name, row in wanted.items():
            config = backend_config(row, pools.get(name, []), self._data_dir)
            mark = repr((row.kind, sorted(config.items(), key=str)))
            known = self._built.get(name)
            if known and known[0] == mark:
                continue
            try:
                backend = registry.build(name, row.kind, config, self._gateway)
            except Misconfigured as error:
                log.warning("backend %s is left out: %s", name, error)
                continue
            if known:
                known[1].close()
            self._built[name] = (mark, backend)
