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
    SELECT now(), :epoch, d.job_id, d.attempt_id, d.kind, d.token, CAST(d.data AS jsonb), d.applied, :snapshot, :now_ms,
        :policy, :config
    FROM unnest(CAST(:jobs AS uuid[]), CAST(:attempts AS text[]), CAST(:kinds AS text[]), CAST(:tokens AS text[]),
        CAST(:datas AS text[]), CAST(:applieds AS boolean[]))
        WITH ORDINALITY AS d(job_id, attempt_id, kind, token, data, applied, n)
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
            "jobs": [one.job_id for one in decided],
            "attempts": [one.attempt_id for one in decided],
            "kinds": [one.kind for one in decided],
            "tokens": [one.why.token for one in decided],
            "datas": [
                dumps({"numbers": dict(one.why.numbers), "remedy": one.why.remedy, **one.data}) for one in decided
            ],
            "applieds": [one.applied for one in decided],
        },
    )
