"""What became of it all: doubles, lost, leaked, by the jobs' own records, the ledger's rows and the process table."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psycopg

from gateway.embedded.postgres import EmbeddedPostgres
from soak.drive import Sent
from soak.records import Records

SETTLE_S = 120.0  # for what the gate clears away by itself: objects that nobody wants, processes of a dead instance

# Everything here must be empty once all jobs have ended. One statement: the gate goes on working.
LEFT = """
    SELECT 'lease' AS what, attempt_id AS which FROM leases WHERE state IN ('held', 'contingent')
    UNION ALL SELECT 'attempt', id FROM attempts WHERE ended_at IS NULL
    UNION ALL SELECT 'job', id::text FROM jobs WHERE ended_at IS NULL
    UNION ALL SELECT 'token', id::text FROM tokens WHERE attempt_id IS NOT NULL AND revoked_at IS NULL
    UNION ALL SELECT 'outbox row', kind || ' ' || target FROM outbox WHERE done_at IS NULL
    UNION ALL SELECT 'hold of ' || kind, tenant_id || ' ' || unit FROM accounts
        WHERE tenant_id IS NOT NULL AND (pending <> 0 OR kind = 'concurrency' AND posted <> 0)
"""


@dataclass(slots=True)
class Verdict:
    """A soak has passed when every list is empty."""

    doubles: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    books: list[str] = field(default_factory=list)
    attempts: Counter[str] = field(default_factory=Counter)

    @property
    def passed(self) -> bool:
        """Whether all are zero."""
        return not (self.doubles or self.lost or self.leaked or self.books)


def judge(
    jobs: Sequence[Sent], submitted: int, records: Records, server: EmbeddedPostgres, check: Callable[[], str]
) -> Verdict:
    """Once the users have left. Waits for what the gate clears away late, at most SETTLE_S."""
    verdict = Verdict()
    for line in records.overlaps():
        verdict.doubles.append(f"{line.place}: attempt {line.attempt} began {line.more.get('how')}")
    with server.connect() as connection:
        (stored,) = connection.execute("SELECT count(*) FROM jobs").fetchone() or (0,)
        if stored != submitted:
            verdict.doubles.append(f"{submitted} jobs were submitted and {stored} are stored")
        verdict.lost += [_wrong_end(connection, sent) for sent in jobs if not _as_wanted(sent)]
        verdict.leaked = _left(connection, records)
        for state, count in connection.execute("SELECT state, count(*) FROM attempts GROUP BY state").fetchall():
            verdict.attempts[str(state)] = int(str(count))
    if said := check():
        verdict.books.append(said)
    return verdict


def _as_wanted(sent: Sent) -> bool:
    ended, wanted = sent.ended, sent.wanted
    return ended is not None and ended.state == wanted.state and wanted.exit_code in {None, ended.exit_code}


def _wrong_end(connection: psycopg.Connection[tuple[object, ...]], sent: Sent) -> str:
    rows = connection.execute(
        "SELECT id, state, reason, message, exit_code, observed FROM attempts WHERE job_id = %s ORDER BY number",
        (sent.id,),
    ).fetchall()
    now = "open" if sent.ended is None else f"{sent.ended.state} {sent.ended.reason} code {sent.ended.exit_code}"
    wanted = f"{sent.wanted.state} code {sent.wanted.exit_code}"
    return f"{sent.wanted.spec.name} {sent.id}: {now}, should be {wanted}; attempts: {rows}"


def _left(connection: psycopg.Connection[tuple[object, ...]], records: Records) -> list[str]:
    deadline = time.monotonic() + SETTLE_S
    while True:
        left = [f"{what} {which}" for what, which in connection.execute(LEFT).fetchall()]
        left += [f"process {pid} works on" for pid in records.working()]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)
