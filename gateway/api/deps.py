"""What the API is given by `gateway.bootstrap`. Builds nothing and reads no setting by itself."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy import Engine
from sqlmodel import Session

from backends.port import Backend
from gateway.api.callers import Callers
from gateway.queries.config import Configs
from gateway.settings import Settings
from policies.decisions import Plan
from policies.snapshot import Snapshot

Planner = Callable[[Snapshot, int], Plan]
"""`policies.plan` with its settings bound: (snapshot, now_ms) to a plan. Pure."""


def utc_now() -> datetime:
    """The process's clock; rows take the database's."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Deps:
    """Concrete things, made once per process.

    backends: live backends by name, for logs only; empty where this process serves none.
    plan: None turns `?dry_run=true` into a problem that says so.
    """

    engine: Engine
    settings: Settings
    cursor_key: bytes = field(repr=False)
    backends: Mapping[str, Backend] = field(default_factory=dict)
    plan: Planner | None = None
    clock: Callable[[], datetime] = utc_now
    configs: Configs = field(default_factory=Configs)
    callers: Callers = field(default_factory=Callers)
    _statements: Engine = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_statements", self.engine.execution_options(isolation_level="AUTOCOMMIT"))

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A session in one transaction: committed at the end, rolled back on any exception."""
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def statement(self) -> Iterator[Session]:
        """A session for one writing statement: every statement is a transaction of its own, in one round trip."""
        with Session(self._statements, expire_on_commit=False) as session:
            yield session


async def _deps(request: Request) -> Deps:
    deps: Deps = request.app.state.deps
    return deps


DepsOf = Annotated[Deps, Depends(_deps)]
