"""The live backends of this process, by name, kept equal to the operators' rows. Builds through the registry alone.

A backend whose documents are wrong never keeps the others from serving, nor a pool the other pools of its backend: it
is left out, its row says why, and nothing is placed there until it is right. One that was built before serves on as it
was, for what lives there. Rows that cannot be read change nothing: a database that is away says nothing about backends.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Engine, select
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session, col

from backends import registry
from backends.errors import Misconfigured
from backends.port import Backend
from gateway.ledger import faults
from gateway.ledger.tables.capacity import BackendRow, Flavor, Pool
from gateway.operators import kinds
from gateway.operators.kinds import BackendPart, PoolPart

log = logging.getLogger(__name__)
REFRESH_S = 1.0


@dataclass(frozen=True, slots=True)
class _Slot:
    """One backend here. `mark`: the settings it was built from, "" where those of its rows could not be used."""

    backend: Backend | None = None
    mark: str = ""
    problem: str = ""
    pools: Mapping[str, str] = field(default_factory=dict)  # what is wrong with those that were left out


class BackendDirectory(Mapping[str, Backend]):
    """Backends by name. Looks at the rows again at most once a second; a changed row is built anew.

    `tells`: writes what is wrong to the rows. Workers do, since they place; a gate may lack what a kind needs.
    """

    def __init__(self, engine: Engine, gateway: str, data_dir: Path, *, tells: bool = False) -> None:
        self._engine = engine
        self._gateway = gateway
        self._data_dir = data_dir
        self._tells = tells
        self._lock = threading.Lock()
        self._slots: dict[str, _Slot] = {}
        self._looked_at = float("-inf")
        self._known = False  # the rows have been read at least once

    def __getitem__(self, name: str) -> Backend:
        return self._refreshed()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._refreshed()))

    def __len__(self) -> int:
        return len(self._refreshed())

    def close(self) -> None:
        """Let go of every backend; what they launched lives on."""
        with self._lock:
            slots, self._slots = self._slots, {}
        for slot in slots.values():
            _close(slot)

    def _refreshed(self) -> dict[str, Backend]:
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
            return {name: slot.backend for name, slot in self._slots.items() if slot.backend is not None}

    def _refresh(self) -> None:
        with Session(self._engine) as session:
            rows = session.scalars(select(BackendRow)).all()
            pools: dict[str, list[tuple[Pool, Flavor]]] = {}
            joined = select(Pool, Flavor).join(Flavor, col(Flavor.name) == col(Pool.flavor)).order_by(col(Pool.name))
            for pool, flavor in session.execute(joined).all():
                pools.setdefault(pool.backend, []).append((pool, flavor))
        for name in set(self._slots) - {row.name for row in rows}:
            _close(self._slots.pop(name))
        for row in rows:
            of_row = pools.get(row.name, [])
            known = self._slots.get(row.name, _Slot())
            parts = tuple(PoolPart(p.name, f.name, f.capacity_type, p.config) for p, f in of_row)
            slot = self._renewed(BackendPart(row.name, row.kind, row.config, parts), known)
            self._slots[row.name] = slot
            if (slot.problem, slot.pools) != (known.problem, known.pools):
                log.warning("backend %s: %s", row.name, _words(slot) or "nothing is wrong with it any more")
            if self._tells:
                self._tell(row, [pool for pool, _ in of_row], slot)

    def _renewed(self, part: BackendPart, known: _Slot) -> _Slot:
        mark = repr((part.kind, sorted(kinds.settings_of(part, self._data_dir).items(), key=str)))
        if known.mark == mark:
            return known
        words = dict(kinds.words_by_pool(kinds.judge(part).faults))
        problem = words.pop("", "")
        whole = kinds.without(part, words)
        if not problem and not whole.pools:
            problem = "it has no pool that could be used" if part.pools else "it has no pool yet"
        if not problem:
            try:
                built = registry.build(part.name, part.kind, kinds.settings_of(whole, self._data_dir), self._gateway)
            except Misconfigured as error:
                problem = str(error)
            except Exception as error:
                log.exception("backend %s could not be built", part.name)
                problem = f"it could not be built ({type(error).__name__}); the worker's log says more"
            else:
                _close(known)
                return _Slot(built, mark, "", words)
        return _Slot(known.backend, "", problem, words)

    def _tell(self, row: BackendRow, pools: list[Pool], slot: _Slot) -> None:
        gone = slot.backend is None
        said = {pool.name: slot.pools.get(pool.name, "") for pool in pools}
        stands = row.misconfigured == slot.problem[:500] and (row.dark_since is not None or not gone)
        if stands and all(pool.misconfigured == said[pool.name][:500] for pool in pools):
            return
        with Session(self._engine) as session, session.begin():
            faults.store(session, row.name, slot.problem, said, gone=gone)


def _words(slot: _Slot) -> str:
    left_out = "; ".join(f"pool {name} is left out: {why}" for name, why in sorted(slot.pools.items()))
    return "; ".join(part for part in (slot.problem, left_out) if part)


def _close(slot: _Slot) -> None:
    if slot.backend is not None:
        slot.backend.close()
