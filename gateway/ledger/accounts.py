"""Double entry: accounts locked in ascending id, facts booked once by cause, each unit's entries summing to zero.

Never decides an amount. A tenant's account cannot go below zero: the database refuses it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger.codec import dumps
from policies.vocabulary import Account


@dataclass(frozen=True, slots=True)
class Key:
    """Which account. tenant_id None: the system's, which may be negative."""

    kind: Account
    tenant_id: int | None
    flavor: str
    unit: str

    @property
    def order(self) -> tuple[str, int, str, str]:
        """Any fixed order: new accounts are made in it, so that two makers never wait for each other in a ring."""
        return self.kind, -1 if self.tenant_id is None else self.tenant_id, self.flavor, self.unit


@dataclass(frozen=True, slots=True)
class Balance:
    """An account's row as it stood when it was locked."""

    id: int
    posted: int
    pending: int


@dataclass(frozen=True, slots=True)
class Line:
    """One side of a fact."""

    account: Key
    amount: int
    pending: bool = False


class UnbalancedError(AssertionError):
    """Entries of one unit do not sum to zero: a defect of ours; nothing was booked."""


_KEYS = """
    unnest(CAST(:kinds AS text[]), CAST(:tenants AS int[]), CAST(:flavors AS text[]), CAST(:units AS text[]))
        WITH ORDINALITY AS k(kind, tenant_id, flavor, unit, n)
"""
_MATCH = """
    a.kind = k.kind AND a.tenant_id IS NOT DISTINCT FROM k.tenant_id AND a.flavor = k.flavor AND a.unit = k.unit
"""
# All of them or none: where one is missing nothing is locked.
_LOCK = text(
    f"""
    SELECT k.n, a.id, a.posted, a.pending FROM {_KEYS} JOIN accounts a ON {_MATCH}
    WHERE (SELECT count(*) FROM {_KEYS} JOIN accounts a ON {_MATCH}) = cardinality(CAST(:kinds AS text[]))
    ORDER BY a.id FOR NO KEY UPDATE OF a
    """  # noqa: S608  (constants only)
)
_MAKE = text(
    f"""
    INSERT INTO accounts (kind, tenant_id, flavor, unit, posted, pending, version)
    SELECT k.kind, k.tenant_id, k.flavor, k.unit, 0, 0, 1 FROM {_KEYS}
    WHERE NOT EXISTS (SELECT FROM accounts a WHERE {_MATCH}) ORDER BY k.n
    ON CONFLICT DO NOTHING
    """  # noqa: S608  (constants only)
)
_FACT = text(
    """
    INSERT INTO transactions (cause, kind, data) VALUES (:cause, :kind, CAST(:data AS jsonb))
    ON CONFLICT (cause) DO NOTHING RETURNING id
    """
)
_ENTRIES = text(
    """
    INSERT INTO entries (transaction_id, account_id, amount, pending)
    SELECT :id, account_id, amount, pending FROM unnest(
        CAST(:accounts AS int[]), CAST(:amounts AS bigint[]), CAST(:pendings AS boolean[])
    ) AS e(account_id, amount, pending)
    """
)
_BALANCES = text(
    """
    UPDATE accounts SET posted = posted + b.posted_by, pending = pending + b.pending_by, version = version + 1
    FROM unnest(CAST(:accounts AS int[]), CAST(:posted AS bigint[]), CAST(:pending AS bigint[]))
        AS b(account_id, posted_by, pending_by)
    WHERE accounts.id = b.account_id
    """
)


def locked(session: Session, keys: Iterable[Key]) -> dict[Key, Balance]:
    """Get or make these accounts and lock them in ascending id. Ask once for all that a transaction will touch."""
    wanted = sorted(set(keys), key=lambda key: key.order)
    if not wanted:
        return {}
    parameters = {
        "kinds": [key.kind.value for key in wanted],
        "tenants": [key.tenant_id for key in wanted],
        "flavors": [key.flavor for key in wanted],
        "units": [key.unit for key in wanted],
    }
    rows = session.execute(_LOCK, parameters).all()
    if not rows:
        # New accounts are made before any is locked: their makers wait for each other, which no holder of locks may do.
        session.execute(_MAKE, parameters)
        rows = session.execute(_LOCK, parameters).all()
    return {wanted[row.n - 1]: Balance(row.id, row.posted, row.pending) for row in rows}


def book(
    session: Session,
    *,
    cause: str,
    kind: str,
    lines: Sequence[Line],
    data: Mapping[str, Any] | None = None,
    known: Mapping[Key, Balance] | None = None,
) -> bool:
    """Book one fact; False when this cause was booked before, and then nothing changes. Lines of 0 are left out.

    known: what `locked` has answered in this transaction for every account of the lines; spares asking again.
    """
    lines = [line for line in lines if line.amount]
    _must_balance(cause, lines)
    found = locked(session, (line.account for line in lines)) if known is None else known
    fact = session.execute(_FACT, {"cause": cause, "kind": kind, "data": dumps(dict(data or {}))}).scalar_one_or_none()
    if fact is None:
        return False
    if not lines:
        return True
    posted: dict[int, int] = defaultdict(int)
    pending: dict[int, int] = defaultdict(int)
    for line in lines:
        (pending if line.pending else posted)[found[line.account].id] += line.amount
    ids = sorted({*posted, *pending})
    session.execute(
        _ENTRIES,
        {
            "id": fact,
            "accounts": [found[line.account].id for line in lines],
            "amounts": [line.amount for line in lines],
            "pendings": [line.pending for line in lines],
        },
    )
    session.execute(
        _BALANCES,
        {"accounts": ids, "posted": [posted[id_] for id_ in ids], "pending": [pending[id_] for id_ in ids]},
    )
    return True


def booked(session: Session, cause: str) -> bool:
    """Whether this cause was booked."""
    return (
        session.execute(text("SELECT 1 FROM transactions WHERE cause = :cause"), {"cause": cause}).first() is not None
    )


def _must_balance(cause: str, lines: Sequence[Line]) -> None:
    sums: dict[tuple[str, str, bool], int] = defaultdict(int)
    for line in lines:
        sums[line.account.unit, line.account.flavor, line.pending] += line.amount
    if any(sums.values()):
        raise UnbalancedError(f"{cause}: entries of {sorted(k[0] for k, v in sums.items() if v)} do not sum to zero")
