"""Decisions as rows, each with what it rested on, so that it can be explained and made again. Decides nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.ledger.codec import dumps
from policies.decisions import Why


@dataclass(frozen=True, slots=True)
class Decided:
    """One decision and whether it was applied; `data` beyond the reason's numbers and remedy."""

    kind: str
    job_id: UUID | None
    attempt_id: str | None
    why: Why
    data: dict[str, Any] = field(default_factory=dict)
    applied: bool = True


_INSERT = text(
    """
    INSERT INTO decisions (at, epoch, job_id, attempt_id, kind, token, data, applied, snapshot, now_ms, policy, config)
    SELECT now(), :epoch, d.job_id, d.attempt_id, d.kind, d.token, d.data, d.applied, :snapshot, :now_ms, :policy,
        :config
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS d(n int, job_id uuid, attempt_id text, kind text, token text,
        data jsonb, applied boolean)
    ORDER BY d.n
    """
)


def record(
    session: Session, decided: Sequence[Decided], *, epoch: int, snapshot: str, now_ms: int, policy: str, config: str
) -> None:
    """All of a cycle's decisions in one statement."""
    session.execute(
        _INSERT,
        {
            "epoch": epoch,
            "snapshot": snapshot,
            "now_ms": now_ms,
            "policy": policy,
            "config": config,
            "rows": dumps([_row(n, one) for n, one in enumerate(decided)]),
        },
    )


def _row(n: int, one: Decided) -> dict[str, Any]:
    return {
        "n": n,
        "job_id": None if one.job_id is None else str(one.job_id),
        "attempt_id": one.attempt_id,
        "kind": one.kind,
        "token": one.why.token,
        "data": {"numbers": dict(one.why.numbers), "remedy": one.why.remedy, **one.data},
        "applied": one.applied,
    }
