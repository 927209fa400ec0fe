"""The rows behind an attempt in skipped time, twice: in memory for breadth, in PostgreSQL for the truth. One interface,
so that one scene runs on both, and the one in memory cannot lie for long.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, cast

from sqlalchemy import Engine, text

from backends.naming import attempt_id
from gateway.ledger import outbox, wishes
from gateway.ledger.check import check
from gateway.ledger.config import PlainSettings
from gateway.ledger.engine import in_transaction
from gateway.ledger.store import PostgresStore
from policies.decisions import Act, Admit, Why
from policies.settings import PolicySettings
from policies.snapshot import Placed, Resources
from tests.builders.ledger import FLAVOR, GPU
from tests.unit.store.world import Gate, queued, rows, scalar, write
from tests.workflows.memory import MemoryStore
from workflows.store import OutboxItem, Store

RECOVERY_S: Final = 60
TERM_S: Final = 10
BACKEND_WAIT_S: Final = 600
GRACE_S: Final = 300
SAVE_S: Final = 120


@dataclass(frozen=True)
class Ended:
    """How an attempt stands in the books, and its job where there is one."""

    reason: str
    state: str
    exit_code: int | None = None
    job_state: str = ""


class Clocked(Protocol):
    """What tells the time."""

    def now(self) -> datetime: ...


@dataclass(frozen=True)
class Wanted:
    """The job of an attempt, as far as its workflow is concerned."""

    checkpoints: bool = False
    grace_s: int = GRACE_S
    gang_timeout_s: int = 600
    max_duration_s: int | None = None
    retry_max: int = 0


class Books(Protocol):
    """Everything a scene asks of the rows."""

    @property
    def store(self) -> Store: ...

    def open(self, backends: Sequence[str], clock: Clocked) -> None:
        """Before the scene: these backends, one pool `pool-NAME` each."""
        ...

    def time_is(self, ahead: timedelta) -> None:
        """How far the scene's time is ahead of the machine's."""
        ...

    def attempt(self, wanted: Wanted = ..., backends: Sequence[str] = ...) -> str:
        """A job admitted to these backends (all of them); its attempt, RESERVED."""
        ...

    def cancel(self, attempt: str) -> None:
        """A user's wish."""
        ...

    def checkpoint(self, attempt: str) -> None:
        """The same."""
        ...

    def owed(self) -> Sequence[OutboxItem]:
        """What the relay has to deliver, once."""
        ...

    def delivered(self, ids: Sequence[int]) -> None:
        """The relay has delivered these."""
        ...

    def undelivered(self, item: int, error: str) -> None:
        """The relay could not."""
        ...

    def ended(self, attempt: str) -> Ended:
        """The row."""
        ...

    def check(self) -> None:
        """After the scene."""
        ...


class MemoryBooks:
    """Rows in memory."""

    def __init__(self) -> None:
        self._owed: list[str] = []
        self.memory = MemoryStore(self._owed.append)
        self._backends: Sequence[str] = ()

    @property
    def store(self) -> Store:
        return cast("Store", self.memory)

    def open(self, backends: Sequence[str], clock: Clocked) -> None:
        self._backends = backends
        self.memory.clock = clock.now

    def time_is(self, ahead: timedelta) -> None:
        """The clock says it."""

    def attempt(self, wanted: Wanted = Wanted(), backends: Sequence[str] = ()) -> str:
        return self.memory.add(
            attempt_id(uuid.uuid4(), 1),
            backends or self._backends,
            term_s=TERM_S,
            recovery_s=RECOVERY_S,
            backend_wait_timeout_s=BACKEND_WAIT_S,
            grace_s=wanted.grace_s,
            save_timeout_s=SAVE_S if wanted.checkpoints else 0,
            checkpoints=wanted.checkpoints,
            gang_timeout_s=wanted.gang_timeout_s,
            max_duration_s=wanted.max_duration_s,
        )

    def cancel(self, attempt: str) -> None:
        self.memory.wish(attempt, want_cancel=True)

    def checkpoint(self, attempt: str) -> None:
        self.memory.wish(attempt, want_checkpoint=self.memory.rows[attempt].want_checkpoint + 1)

    def owed(self) -> Sequence[OutboxItem]:
        keys = list(dict.fromkeys(self._owed))
        self._owed.clear()
        return [OutboxItem(number, "nudge", key) for number, key in enumerate(keys)]

    def delivered(self, ids: Sequence[int]) -> None:
        """They were handed out once."""

    def undelivered(self, item: int, error: str) -> None:
        raise AssertionError(error)

    def ended(self, attempt: str) -> Ended:
        end = self.memory.ends.get(attempt)
        state = self.memory.rows[attempt].state
        return Ended(end.reason if end else "", state, end.exit_code if end else None)

    def check(self) -> None:
        """One settlement each, and no more."""
        assert self.memory.firsts == len(self.memory.ends)


# The database's now(), moved: what the code asks for by this name is found here before pg_catalog.
_CLOCK: Final = """
CREATE TABLE public.skipped (ahead interval NOT NULL);
INSERT INTO public.skipped VALUES ('0');
GRANT SELECT ON public.skipped TO PUBLIC;
CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql STABLE
    AS 'SELECT pg_catalog.now() + (SELECT ahead FROM public.skipped)';
DO $$
DECLARE one record;
BEGIN
    FOR one IN SELECT table_name, column_name FROM information_schema.columns
        WHERE table_schema = 'public' AND column_default = 'now()' LOOP
        EXECUTE format('ALTER TABLE %%I ALTER %%I SET DEFAULT public.now()', one.table_name, one.column_name);
    END LOOP;
END $$;
"""


class LedgerBooks:
    """Rows in PostgreSQL, whose clock goes with the scene's."""

    def __init__(self, engine: Engine, url: str, *, policy: PolicySettings | None = None) -> None:
        self._engine = engine
        self._ahead = timedelta()
        with engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL ROLE NONE")
            connection.exec_driver_sql(_CLOCK)
            name = connection.execute(text("SELECT current_database()")).scalar_one()
            connection.exec_driver_sql(f'ALTER DATABASE "{name}" SET search_path = public, pg_catalog')
        engine.dispose()  # whoever connects from now on has the new path
        self.gate = Gate(engine, url)
        settings = PlainSettings(recovery_s=RECOVERY_S, term_s=TERM_S, backend_wait_timeout_s=BACKEND_WAIT_S)
        self.ledger = PostgresStore(engine, url, settings, policy=policy)
        self.gate.store = self.ledger
        self._backends: Sequence[str] = ()
        self.epoch = self.ledger.take_epoch("a test")

    @property
    def store(self) -> Store:
        return self.ledger

    def open(self, backends: Sequence[str], clock: Clocked) -> None:
        self._backends = backends
        self.gate.tenant("acme", max_gpus=32)
        for name in backends:
            write(self._engine, "INSERT INTO backends (name, kind) VALUES (:name, 'local')", name=name)
            write(
                self._engine,
                "INSERT INTO pools (name, backend, flavor) VALUES (:pool, :name, :flavor)",
                pool=f"pool-{name}",
                name=name,
                flavor=FLAVOR,
            )

    def time_is(self, ahead: timedelta) -> None:
        if ahead - self._ahead > timedelta(milliseconds=50):
            self._ahead = ahead
            with self._engine.begin() as connection:
                connection.exec_driver_sql("SET LOCAL ROLE NONE")
                connection.execute(text("UPDATE public.skipped SET ahead = :ahead"), {"ahead": ahead})

    def attempt(self, wanted: Wanted = Wanted(), backends: Sequence[str] = ()) -> str:
        job = self.submit(wanted, len(backends or self._backends))
        return self.admit(job, backends)

    def submit(self, wanted: Wanted, members: int = 1, tenant: str = "acme", **changes: Any) -> str:
        """A job of so many members with one GPU each."""
        spec: dict[str, Any] = {
            "num_nodes": members,
            "resources": {"accelerators": "H100:1", "cpus": 1, "memory": "1Gi"},
            "grace": wanted.grace_s,
            "gang_timeout": wanted.gang_timeout_s,
            "retry": {"max": wanted.retry_max},
        }
        if wanted.checkpoints:
            spec["checkpoint"] = {"url": "file:///c", "save_timeout": SAVE_S}
        if wanted.max_duration_s is not None:
            spec["max_duration"] = wanted.max_duration_s
        return self.gate.submit(tenant, **spec, **changes)

    def admit(self, job: str, backends: Sequence[str] = (), **changes: Any) -> str:
        """Admit it, a member at each backend; its new attempt."""
        cycle = self.ledger.cycle()
        report = self.gate.commit(cycle, Act(admits=(self.an_admit(cycle, job, backends),)), epoch=self.epoch)
        assert report.admitted == (job,), report
        return self.gate.attempt(job)

    def an_admit(self, cycle: Any, job: str, backends: Sequence[str] = (), victims: tuple[str, ...] = ()) -> Admit:
        """The decision to do so."""
        member = Resources(GPU, 1000, 1 << 30)
        placed = tuple(Placed("main", f"pool-{name}", FLAVOR, 1, member) for name in backends or self._backends)
        return Admit(job, queued(cycle, job).version, placed, Why("Fits"), contingent_on=victims)

    def job_of(self, attempt: str) -> str:
        """The id of its job."""
        return str(scalar(self._engine, "SELECT job_id FROM attempts WHERE id = :id", id=attempt))

    def cancel(self, attempt: str) -> None:
        self.gate.wish(wishes.cancel, self.job_of(attempt))

    def checkpoint(self, attempt: str) -> None:
        self.gate.wish(wishes.checkpoint, self.job_of(attempt))

    def owed(self) -> Sequence[OutboxItem]:
        return in_transaction(self._engine, lambda session: outbox.claim(session, 100))

    def delivered(self, ids: Sequence[int]) -> None:
        in_transaction(self._engine, lambda session: outbox.done(session, ids))

    def undelivered(self, item: int, error: str) -> None:
        raise AssertionError(error)

    def ended(self, attempt: str) -> Ended:
        query = (
            "SELECT a.reason, a.state, a.exit_code, j.state AS job_state FROM attempts a"
            " JOIN jobs j ON j.id = a.job_id WHERE a.id = :id"
        )
        row = rows(self._engine, query, id=attempt)[0]
        return Ended(row.reason or "", row.state, row.exit_code, row.job_state)

    def check(self) -> None:
        assert check(self._engine) == []

    def close(self) -> None:
        """Let its connections go."""
        self.ledger.close()
